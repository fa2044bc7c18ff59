// The C++ header twice in one file, in two files of one program: nothing is defined twice.
#include <forebay.hpp>
#include <forebay.hpp>

std::size_t other_file(forebay::buffer &buffer);

int main() {
  forebay::buffer buffer(1000);
  return other_file(buffer) == 1000 ? 0 : 1;
}
