/* A program that asks by a weak name whether it has a runtime, and has none: what it is told must
 * not end it. */
#include <stdio.h>

extern int cudaMalloc(void **p, unsigned long bytes) __attribute__((weak));
extern int cudaFree(void *p) __attribute__((weak));

int main(void) {
  void *p = NULL;
  if (cudaMalloc != NULL && (cudaMalloc(&p, 64) != 100 || cudaFree(p) != 100)) {
    return 1;
  }
  puts("well");
  return 0;
}
