/* Contents that tell whose they are: each block is filled with words made of a seed, so that
 * a block overwritten by another one is noticed. Also the harness's random numbers. Where the
 * memory is a GPU's, blocks are written and read by copies on the default stream, which are
 * waited for. */
#ifndef FOREBAY_TESTS_PATTERN_H
#define FOREBAY_TESTS_PATTERN_H

#include "check.h"

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

/* Whether blocks are a device's memory, which the CPU cannot touch. */
static inline bool on_device(void) {
  const char *backend = getenv("FOREBAY_BACKEND");
  return backend != NULL && strcmp(backend, "cuda") == 0;
}

/* Contents of `bytes` bytes that begin `first` bytes (a multiple of 8) into a block. */
static inline void words_fill(void *to, size_t first, size_t bytes, uint64_t seed) {
  uint64_t *words = to;
  const size_t count = bytes / sizeof *words;
  for (size_t i = 0; i < count; i++) words[i] = seed + first / sizeof *words + i;
  memset((unsigned char *)to + count * sizeof *words, (int)(seed & 0xff), bytes % 8);
}

static inline bool words_hold(const void *from, size_t first, size_t bytes, uint64_t seed) {
  const uint64_t *words = from;
  const size_t count = bytes / sizeof *words;
  for (size_t i = 0; i < count; i++) {
    if (words[i] != seed + first / sizeof *words + i) return false;
  }
  const unsigned char *rest = (const unsigned char *)(words + count);
  for (size_t i = 0; i < bytes % 8; i++) {
    if (rest[i] != (unsigned char)seed) return false;
  }
  return true;
}

/* Memory of the CPU's that parts of blocks pass through. */
enum { STAGE_BYTES = 1 << 20 };
static _Thread_local uint64_t stage[STAGE_BYTES / sizeof(uint64_t)];

static inline void staged_copy(void *to, const void *from, size_t bytes) {
  CHECK_OK(forebay_stream_copy(NULL, to, from, bytes, NULL));
  CHECK_OK(forebay_stream_synchronize(NULL, NULL));
}

static inline void pattern_fill(void *block, size_t bytes, uint64_t seed) {
  if (!on_device()) {
    words_fill(block, 0, bytes, seed);
    return;
  }
  for (size_t first = 0; first < bytes; first += STAGE_BYTES) {
    const size_t part = bytes - first < STAGE_BYTES ? bytes - first : STAGE_BYTES;
    words_fill(stage, first, part, seed);
    staged_copy((char *)block + first, stage, part);
  }
}

static inline bool pattern_holds(const void *block, size_t bytes, uint64_t seed) {
  if (!on_device()) return words_hold(block, 0, bytes, seed);
  for (size_t first = 0; first < bytes; first += STAGE_BYTES) {
    const size_t part = bytes - first < STAGE_BYTES ? bytes - first : STAGE_BYTES;
    staged_copy(stage, (const char *)block + first, part);
    if (!words_hold(stage, first, part, seed)) return false;
  }
  return true;
}

static inline bool same_bytes(const unsigned char *at, size_t bytes, unsigned char value) {
  return bytes == 0 || (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0);
}

/* Whether every byte of the block is `value`. */
static inline bool bytes_are(const void *block, size_t bytes, unsigned char value) {
  if (!on_device()) return same_bytes(block, bytes, value);
  for (size_t first = 0; first < bytes; first += STAGE_BYTES) {
    const size_t part = bytes - first < STAGE_BYTES ? bytes - first : STAGE_BYTES;
    staged_copy(stage, (const char *)block + first, part);
    if (!same_bytes((const unsigned char *)stage, part, value)) return false;
  }
  return true;
}

/* Makes every byte of the block `value`. */
static inline void bytes_fill(void *block, size_t bytes, unsigned char value) {
  if (!on_device()) {
    memset(block, value, bytes);
    return;
  }
  CHECK_OK(forebay_stream_fill(NULL, block, value, bytes, NULL));
  CHECK_OK(forebay_stream_synchronize(NULL, NULL));
}

/* Small parts of blocks. */
static inline void read_part(void *to, const void *from, size_t bytes) {
  if (on_device()) {
    staged_copy(to, from, bytes);
  } else {
    memcpy(to, from, bytes);
  }
}

static inline void write_part(void *to, const void *from, size_t bytes) {
  read_part(to, from, bytes);
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
