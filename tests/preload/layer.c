/* Another layer of LD_PRELOAD before the driver's functions, as memory trackers and sharing layers
 * are (torch_memory_saver#4, openucx/ucx#4540): it counts what passes and hands it on. Its
 * cuMemCreate refuses everything, as a quota would. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

int layer_allocations, layer_frees, layer_pages;

#define NEXT(name) dlsym(RTLD_NEXT, name)

int cuMemAlloc_v2(uint64_t *p, size_t bytes) {
  int (*next)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))NEXT("cuMemAlloc_v2");
  int result = next(p, bytes);
  layer_allocations += result == 0;
  return result;
}

int cuMemFree_v2(uint64_t p) {
  int (*next)(uint64_t) = (int (*)(uint64_t))NEXT("cuMemFree_v2");
  int result = next(p);
  layer_frees += result == 0;
  return result;
}

int cuMemAllocAsync(uint64_t *p, size_t bytes, void *stream) {
  int (*next)(uint64_t *, size_t, void *) =
      (int (*)(uint64_t *, size_t, void *))NEXT("cuMemAllocAsync");
  int result = next(p, bytes, stream);
  layer_allocations += result == 0;
  return result;
}

int cuMemFreeAsync(uint64_t p, void *stream) {
  int (*next)(uint64_t, void *) = (int (*)(uint64_t, void *))NEXT("cuMemFreeAsync");
  int result = next(p, stream);
  layer_frees += result == 0;
  return result;
}

int cuMemCreate(uint64_t *handle, size_t bytes, const void *properties, uint64_t flags) {
  (void)handle;
  (void)bytes;
  (void)properties;
  (void)flags;
  layer_pages++;
  return 2;
}
