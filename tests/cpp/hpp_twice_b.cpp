// The second file of the program in hpp_twice_a.cpp.
#include <forebay.hpp>
#include <forebay.hpp>

std::size_t other_file(forebay::buffer &buffer);

std::size_t other_file(forebay::buffer &buffer) {
  forebay::check(forebay_record_use(nullptr, buffer.data(), nullptr));
  return buffer.size();
}
