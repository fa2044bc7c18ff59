/* The README's C example. */
#include <forebay.h>
#include <stdio.h>

int main(void) {
  void *block = NULL;
  if (forebay_malloc(&block, 64 << 20) != FOREBAY_OK) {
    fprintf(stderr, "%s\n", forebay_last_error());
    return 1;
  }
  /* ... launch work on block, as on memory from cudaMalloc ... */
  if (forebay_free(block) != FOREBAY_OK) return 1;

  forebay_stats stats = {.struct_size = sizeof stats};
  if (forebay_pool_stats(NULL, &stats) != FOREBAY_OK) return 1;
  printf("live %llu B, mapped %llu B\n", (unsigned long long)stats.live_bytes,
         (unsigned long long)stats.mapped_bytes);
  return 0;
}
