/* What the programs of this folder share: data, and the lines that they print.
 *
 * Each program allocates memory of every kind, moves data through it, and prints one line a kind:
 * its name and a checksum of the bytes that came back. The programs reach CUDA by different ways,
 * and all must print the same. */
#ifndef FOREBAY_TESTS_CHECKS_H
#define FOREBAY_TESTS_CHECKS_H

#include <stddef.h>
#include <stdint.h>

/* Words of a plain buffer. */
#define WORDS 4096
/* Bytes of a row, and rows, of pitched memory; rows that are written. */
#define ROW 300
#define ROWS 17
#define ROWS_WRITTEN 10
/* The same of planes, all rows in a row. */
#define PLANE_ROW 64
#define PLANE_ROWS 32
#define PLANE_ROWS_WRITTEN 24

/* Word `i` of the data with this seed. */
static inline uint32_t pattern_word(uint32_t seed, uint32_t i)
{
    return i * 2654435761u + seed * 40503u;
}

/* Writes `words` words of the data with this seed. */
static inline void pattern(uint32_t *to, size_t words, uint32_t seed)
{
    for (size_t i = 0; i < words; i++) {
        to[i] = pattern_word(seed, (uint32_t)i);
    }
}

/* The sum of all words, each times its place counted from 1, modulo 2^64. */
static inline uint64_t checksum(const uint32_t *words, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (uint64_t)words[i] * (i + 1);
    }
    return sum;
}

/* Prints a line. */
void tell(const char *kind, uint64_t sum);

#endif
