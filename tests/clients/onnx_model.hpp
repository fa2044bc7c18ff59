// A model for ONNX Runtime, made by hand: y = x + x of `count` floats, and then its negative.
//
// The bytes are those of ONNX's protobuf messages; field numbers are in the comments. Two nodes, so
// that a value in between needs memory of its own.
#ifndef FOREBAY_TESTS_ONNX_MODEL_HPP
#define FOREBAY_TESTS_ONNX_MODEL_HPP

#include <cstdint>
#include <string>

namespace onnx_model {

inline std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
inline std::string number(unsigned field, std::uint64_t value) {
  return varint(field << 3) + varint(value);
}
inline std::string part(unsigned field, const std::string &bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + bytes;
}

/// A value's name (1) and type (2): a tensor (1) of floats (1: 1) with one dimension (2: 1: 1).
inline std::string value(const std::string &name, std::uint64_t count) {
  const std::string shape = part(1, number(1, count));
  return part(1, name) + part(2, part(1, number(1, 1) + part(2, shape)));
}
/// A node's inputs (1), output (2), and operator (4).
inline std::string node(const std::string &inputs, const std::string &to, const std::string &op) {
  return inputs + part(2, to) + part(4, op);
}

/// The model: version (1), operator set (8: 2), graph (7) of nodes (1), name (2), input (11),
/// output (12).
inline std::string twice_negative(std::uint64_t count) {
  const std::string add = node(part(1, "x") + part(1, "x"), "sum", "Add");
  const std::string neg = node(part(1, "sum"), "y", "Neg");
  const std::string graph = part(1, add) + part(1, neg) + part(2, "g") +
                            part(11, value("x", count)) + part(12, value("y", count));
  return number(1, 8) + part(8, part(1, "") + number(2, 13)) + part(7, graph);
}

}  // namespace onnx_model
#endif
