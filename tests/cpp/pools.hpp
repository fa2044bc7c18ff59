// A pool for tests: a hard limit in bytes, and no keeper, so that its accounts stand still.
#ifndef FOREBAY_TESTS_POOLS_HPP
#define FOREBAY_TESTS_POOLS_HPP

#include <forebay.hpp>

inline forebay::pool make_pool(std::size_t limit_bytes) {
  forebay::pool_options options;
  options.limit = limit_bytes;
  options.keeper = 0;
  return forebay::pool(options);
}

#endif
