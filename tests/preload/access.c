/* Access of another device to the default memory pool's memory, which is the pool's: given before
 * there is one, and after; taken away; and refused as a whole where the pool cannot give it. */
#include "cu.h"

typedef struct {
  int kind, device, flags;
} Access;
typedef struct {
  int kind, device;
} Place;

CUresult cuCtxDisablePeerAccess(CUcontext peer);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const Access *map, size_t count);
CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, Place *place);
CUresult cuMemGetAccess(unsigned long long *flags, const Place *place, CUdeviceptr p);

static CUmemoryPool pool;
static CUcontext contexts[2];

static void set(int flags) {
  Access map[2] = {{1, 0, 3}, {1, 1, flags}};
  OK(cuMemPoolSetAccess(pool, map, 2));
}

/* What device 1 may do with a block of device 0's, as the driver sees it. */
static unsigned long long of_peer(CUdeviceptr p) {
  Place place = {1, 1};
  unsigned long long flags = 9;
  OK(cuMemGetAccess(&flags, &place, p));
  return flags;
}

static int pools(void) {
  Place place = {1, 1};
  int flags = 9;
  OK(cuMemPoolGetAccess(&flags, pool, &place));
  return flags;
}

static CUdeviceptr block(void) {
  CUdeviceptr p = 0;
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemAllocAsync(&p, 3 << 20, NULL));
  OK(cuStreamSynchronize(NULL));
  return p;
}

static void written_by_peer(CUdeviceptr p, unsigned value) {
  unsigned word = 0;
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuMemsetD32_v2(p, value, (3 << 20) / 4));
  OK(cuCtxSynchronize());
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemcpyDtoH_v2(&word, p + (3 << 20) - 4, 4));
  IS(word, value);
}

int main(void) {
  OK(cuInit(0));
  for (int i = 1; i >= 0; i--) {
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    OK(cuCtxSetCurrent(contexts[i]));
  }
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  /* Before the pool is made. */
  set(3);
  CUdeviceptr p = block();
  IS(of_peer(p), 3);
  written_by_peer(p, 5);
  set(0);
  IS(of_peer(p), 0);
  CUdeviceptr q = block();
  IS(of_peer(q), 0);
  /* After; what is mapped already and what comes. */
  set(3);
  IS(of_peer(p) == 3 && of_peer(q) == 3, 1);
  written_by_peer(q, 6);
  CUdeviceptr r = block();
  written_by_peer(r, 7);
  /* Two reasons: the pool's memory stays open until neither holds. */
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuCtxEnablePeerAccess(contexts[0], 0));
  set(0);
  IS(of_peer(p), 3);
  set(3);
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuCtxDisablePeerAccess(contexts[0]));
  IS(of_peer(p), 3);
  set(0);
  IS(of_peer(p), 0);
  /* Another memory pool is none of the pool's business. */
  OK(cuCtxSetCurrent(contexts[0]));
  CUmemoryPool own = own_pool();
  Access other = {1, 1, 3};
  OK(cuMemPoolSetAccess(own, &other, 1));
  IS(of_peer(p), 0);
  IS(cuMemPoolSetAccess(pool, NULL, 1), INVALID_VALUE);
  other.device = 77;
  IS(cuMemPoolSetAccess(pool, &other, 1), INVALID_VALUE);
  OK(cuMemPoolDestroy(own));
  /* While a capture is open the pool opens nothing to anybody: then the driver's pool does not. */
  CUstream stream;
  CUgraph graph;
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 2));
  Access map[2] = {{1, 0, 3}, {1, 1, 3}};
  IS(cuMemPoolSetAccess(pool, map, 2), 217);
  IS(pools(), 0);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  IS(of_peer(p), 0);
  set(3);
  IS(pools(), 3);
  IS(of_peer(p), 3);
  OK(cuMemFreeAsync(p, NULL));
  OK(cuMemFreeAsync(q, NULL));
  OK(cuMemFree_v2(r));
  IS(served("cuMemAllocAsync"), 3);
  puts("well");
  return 0;
}
