/* Contents that tell whose they are: each block is filled with words made of a seed, so that
 * a block overwritten by another one is noticed. Also the harness's random numbers. CPU
 * access: host backend only. */
#ifndef FOREBAY_TESTS_PATTERN_H
#define FOREBAY_TESTS_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A step of splitmix64. */
static inline uint64_t random_next(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* A size between `low` and `high`, each doubling equally likely. */
static inline size_t random_size(uint64_t *state, size_t low, size_t high) {
  unsigned doublings = 0;
  while ((low << doublings) < high) doublings++;
  const size_t base = low << (random_next(state) % (doublings == 0 ? 1 : doublings));
  const size_t size = base + (size_t)(random_next(state) % base);
  return size > high ? high : size;
}

static inline void pattern_fill(void *block, size_t bytes, uint64_t seed) {
  uint64_t *words = block;
  const size_t count = bytes / sizeof *words;
  for (size_t i = 0; i < count; i++) words[i] = seed + i;
  memset((unsigned char *)block + count * sizeof *words, (int)(seed & 0xff), bytes % 8);
}

static inline bool pattern_holds(const void *block, size_t bytes, uint64_t seed) {
  const uint64_t *words = block;
  const size_t count = bytes / sizeof *words;
  for (size_t i = 0; i < count; i++) {
    if (words[i] != seed + i) return false;
  }
  const unsigned char *rest = (const unsigned char *)(words + count);
  for (size_t i = 0; i < bytes % 8; i++) {
    if (rest[i] != (unsigned char)seed) return false;
  }
  return true;
}

/* Whether every byte of the block is `value`. */
static inline bool bytes_are(const void *block, size_t bytes, unsigned char value) {
  const unsigned char *at = block;
  return bytes == 0 || (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0);
}

/* Whether a message names a number of bytes, as digits or as whole MiB. */
static inline bool names_bytes(const char *text, size_t bytes) {
  const char *const forms[] = {"%zu MiB", "%zu.0 MiB", "%zu.00 MiB", "%zuMiB", "%zuM"};
  char want[64];
  snprintf(want, sizeof want, "%zu", bytes);
  if (strstr(text, want) != NULL) return true;
  if (bytes % ((size_t)1 << 20) != 0) return false;
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    const char *number = strstr(forms[i], "%zu") + 3;
    snprintf(want, sizeof want, "%zu%s", bytes >> 20, number);
    if (strstr(text, want) != NULL) return true;
  }
  return false;
}

#endif
