/* A C program as its user would write it: cudaMalloc's calls under Forebay's names. */
#include <forebay.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  void *block = NULL;
  if (forebay_malloc(&block, 1 << 20) != FOREBAY_OK) {
    fprintf(stderr, "%s\n", forebay_last_error());
    return 1;
  }
  memset(block, 1, 1 << 20); /* host backend: the memory is the CPU's too */
  if (forebay_free(block) != FOREBAY_OK) return 1;
  if (forebay_free(block) != FOREBAY_ERROR_DOUBLE_FREE) return 1;
  printf("forebay %s from C\n", forebay_version());
  return 0;
}
