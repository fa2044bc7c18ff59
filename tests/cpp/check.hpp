// Checks for the C++ harness: CHECK(condition) and CHECK_THROWS(type, expression). A failed
// check prints file and line and ends the process with 1.
#ifndef FOREBAY_TESTS_CHECK_HPP
#define FOREBAY_TESTS_CHECK_HPP

#include <cstdio>
#include <cstdlib>

#define CHECK(...)                                                                     \
  do {                                                                                 \
    if (!(__VA_ARGS__)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (false)

#define CHECK_THROWS(type, ...)                                                        \
  do {                                                                                 \
    bool check_thrown = false;                                                         \
    try {                                                                              \
      static_cast<void>(__VA_ARGS__);                                                  \
    } catch (const type &) {                                                           \
      check_thrown = true;                                                             \
    }                                                                                  \
    if (!check_thrown) {                                                               \
      std::fprintf(stderr, "%s:%d: no %s from: %s\n", __FILE__, __LINE__, #type,       \
                   #__VA_ARGS__);                                                      \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (false)

// Ends a test: says what was shown.
inline int shown(const char *what) {
  std::printf("ok: %s\n", what);
  return 0;
}

// A size with no unit to forget.
constexpr std::size_t mib(std::size_t count) { return count << 20; }

#endif
