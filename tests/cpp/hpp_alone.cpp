// The C++ header as the first and only include.
#include <forebay.hpp>

int main() {
  forebay::buffer none;
  return none ? 1 : 0;
}
