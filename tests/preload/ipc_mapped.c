/* The driver refuses its own legacy handles for memory that is mapped, with the preload library and
 * without; it gives them for memory from cuMemAlloc. With the library, what is asked of the pool's
 * memory before a way is chosen leads to a handle of the pool's (NCCL, UCX). */
#include "cu.h"

typedef struct {
  int type, handle_types, location, device;
  void *windows;
  unsigned char flags[8];
} Properties;

CUresult cuMemCreate(uint64_t *handle, size_t bytes, const Properties *what, uint64_t flags);
CUresult cuMemRelease(uint64_t handle);
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t align, CUdeviceptr at,
                             uint64_t flags);
CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes);
CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, uint64_t handle, uint64_t flags);
CUresult cuMemUnmap(CUdeviceptr p, size_t bytes);

int main(void) {
  const size_t page = 2 << 20;
  Properties pinned = {.type = 1, .handle_types = 1, .location = 1};
  CUdeviceptr p = 0, base = 0;
  CUipcMemHandle handle;
  uint64_t memory = 0, retained = 0;
  size_t bytes = 0;
  begin();
  OK(cuMemCreate(&memory, page, &pinned, 0));
  OK(cuMemAddressReserve(&p, page, 0, 0, 0));
  OK(cuMemMap(p, page, 0, memory, 0));
  IS(cuIpcGetMemHandle(&handle, p), INVALID_VALUE);
  IS(served("cuIpcGetMemHandle") <= 0, 1);
  /* A program's own mappings are asked about as ever. */
  OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)p));
  OK(cuMemRelease(retained));
  OK(cuMemUnmap(p, page));
  OK(cuMemAddressFree(p, page));
  OK(cuMemRelease(memory));

  unsigned char legacy = 0;
  OK(cuMemAlloc_v2(&p, 3000));
  OK(cuMemGetAddressRange_v2(&base, &bytes, p + 2999));
  IS(base, p);
  IS(bytes, 3000);
  OK(cuPointerGetAttribute(&legacy, 10, p));
  IS(legacy, 1);
  IS(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)p), INVALID_VALUE);
  OK(cuIpcGetMemHandle(&handle, base));
  OK(cuMemFree_v2(p));
  IS(served("cuIpcGetMemHandle") == (forebay_preload_count == NULL ? -1 : 1), 1);
  puts("well");
  return 0;
}
