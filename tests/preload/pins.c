/* What others are told of a block's place holds until its free: its pages are pinned, once for each
 * time; a call that fails pins nothing. And each allocation has a number of its own. */
#include "cu.h"

#include <dlfcn.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr p, size_t bytes, int kind,
                                       unsigned long long flags);

static int (*unpin)(CUdeviceptr);

static void is_pinned(CUdeviceptr p, int times) {
  for (int i = 0; i < times; i++) {
    OK(unpin(p));
  }
  IS(unpin(p) != SUCCESS, 1);
}

static uint64_t number(CUdeviceptr p) {
  uint64_t id = 0, again = 0;
  int which = 7;
  void *data = &again;
  OK(cuPointerGetAttribute(&id, 7, p));
  OK(cuPointerGetAttributes(1, &which, &data, p + 100));
  IS(id == again && id != 0, 1);
  return id;
}

int main(void) {
  begin();
  CUdeviceptr p[4] = {0};
  for (int i = 0; i < 4; i++) {
    OK(cuMemAlloc_v2(&p[i], MIB));
  }
  void *pool = dlopen("libforebay.so.0", RTLD_NOW | RTLD_NOLOAD);
  IS(pool != NULL, 1);
  unpin = (int (*)(CUdeviceptr))dlsym(pool, "forebay_unpin");
  is_pinned(p[0], 0);
  unsigned yes = 1;
  OK(cuPointerSetAttribute(&yes, 6, p[0] + 5));
  is_pinned(p[0], 1);
  IS(cuPointerSetAttribute(&yes, 3, p[0]), INVALID_VALUE);
  IS(cuPointerSetAttribute(NULL, 6, p[0]), INVALID_VALUE);
  is_pinned(p[0], 0);

  /* Who asks takes the way by IPC handles, as with memory of cuMemAlloc. */
  uint64_t handle = 0;
  IS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p[1]), INVALID_VALUE);
  is_pinned(p[1], 0);

  /* Blocks in a row, in the order of their addresses. */
  CUdeviceptr first = p[0], last = p[0];
  for (int i = 1; i < 4; i++) {
    first = p[i] < first ? p[i] : first;
    last = p[i] > last ? p[i] : last;
  }
  IS(last - first, 3 * MIB);
  int fd = -1;
  OK(cuMemGetHandleForAddressRange(&fd, first, 4 * MIB, 1, 0));
  close(fd);
  for (int i = 0; i < 4; i++) {
    is_pinned(p[i], 1);
  }
  IS(cuMemGetHandleForAddressRange(&fd, first, 4 * MIB, 77, 0) != SUCCESS, 1);
  for (int i = 0; i < 4; i++) {
    is_pinned(p[i], 0);
  }

  uint64_t one = number(p[0]), two = number(p[1]);
  IS(one != two, 1);
  IS(number(p[0]) == one, 1);
  /* An address that comes back is another allocation. */
  int came_back = 0;
  for (int i = 0; i < 50; i++) {
    CUdeviceptr before = p[0];
    OK(cuMemFree_v2(p[0]));
    OK(cuCtxSynchronize());
    OK(cuMemAlloc_v2(&p[0], MIB));
    came_back += p[0] == before;
    IS(number(p[0]) != one && number(p[0]) != two, 1);
    one = number(p[0]);
  }
  IS(came_back > 0, 1);
  for (int i = 0; i < 4; i++) {
    OK(cuMemFree_v2(p[i]));
  }
  puts("well");
  return 0;
}
