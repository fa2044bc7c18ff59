// A C++ program as its user would write it: a container and a buffer out of the pool.
#include <forebay.hpp>

#include <cstdio>
#include <vector>

int main() {
  forebay::memory_resource resource;
  std::pmr::vector<int> numbers(1000, 7, &resource);
  const forebay::buffer buffer(1 << 20);
  if (numbers[999] != 7 || buffer.size() != 1 << 20) return 1;
  std::printf("forebay %s from C++\n", forebay_version());
  return 0;
}
