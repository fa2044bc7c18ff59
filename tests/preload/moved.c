/* A block that others know by its physical memory keeps that while the pool moves pages about it:
 * torch_memory_saver#88 mapped other memory at the same address, and a network card kept the old.
 * The descriptor of a range tells on the simulated driver where its memory lies. */
#include "cu.h"

#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BLOCKS 100

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr p, size_t bytes, int kind,
                                       unsigned long long flags);

static long place_of(CUdeviceptr p) {
  int fd = -1;
  OK(cuMemGetHandleForAddressRange(&fd, p, 2 * MIB, 1, 0));
  long at = lseek(fd, 0, SEEK_CUR);
  close(fd);
  return at;
}

int main(void) {
  CUdeviceptr p[BLOCKS] = {0}, large = 0;
  long place[BLOCKS] = {0};
  begin();
  for (int i = 0; i < BLOCKS; i++) {
    OK(cuMemAlloc_v2(&p[i], 2 * MIB));
    OK(cuMemsetD32_v2(p[i], 1000u + (unsigned)i, 2 * MIB / 4));
  }
  for (int i = 0; i < BLOCKS; i++) {
    place[i] = place_of(p[i]);
  }
  for (int i = 1; i < BLOCKS; i += 2) {
    OK(cuMemFree_v2(p[i]));
  }
  OK(cuCtxSynchronize());
  /* Pages of the freed blocks move together. */
  OK(cuMemAlloc_v2(&large, 120 * MIB));
  OK(cuMemsetD32_v2(large, 1, 120 * MIB / 4));
  int moved = 0;
  for (CUdeviceptr at = large; at < large + 120 * MIB; at += 2 * MIB) {
    long here = place_of(at);
    for (int i = 1; i < BLOCKS; i += 2) {
      moved += place[i] == here && p[i] != at;
    }
  }
  IS(moved >= BLOCKS / 4, 1);
  for (int i = 0; i < BLOCKS; i += 2) {
    unsigned word = 0;
    IS(place_of(p[i]), place[i]);
    OK(cuMemcpyDtoH_v2(&word, p[i] + 2 * MIB - 4, 4));
    IS(word, 1000 + i);
    OK(cuMemFree_v2(p[i]));
  }
  OK(cuMemFree_v2(large));
  IS(served("cuMemAlloc_v2"), BLOCKS + 1);
  puts("well");
  return 0;
}
