/* The header as the first and only include, in C11: it brings all that it needs. */
#include <forebay.h>

int main(void) {
  forebay_pool_options options;
  forebay_stats stats;
  size_t bytes = sizeof options + sizeof stats;
  uint64_t wide = bytes;
  bool owned = forebay_owns(&wide);
  return owned || forebay_abi_version() == 0 || FOREBAY_OK != 0;
}
