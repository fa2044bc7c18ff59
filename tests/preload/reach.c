/* Which devices reach the pool's memory after a refusal, after a capture, after a reset. The first
 * argument says which. */
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

#define WORDS 1024

static CUmemoryPool pool;
static CUcontext contexts[3];

/* What the device may do with memory of the driver's pool. */
static int drivers(int device) {
  Place place = {1, device};
  int flags = 9;
  OK(cuMemPoolGetAccess(&flags, pool, &place));
  return flags;
}

/* And with a block of the pool. */
static int pools(int device, CUdeviceptr p) {
  Place place = {1, device};
  unsigned long long flags = 9;
  OK(cuMemGetAccess(&flags, &place, p));
  return (int)flags;
}

static CUdeviceptr block(void) {
  CUdeviceptr p = 0;
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemAllocAsync(&p, WORDS * 4, NULL));
  OK(cuStreamSynchronize(NULL));
  return p;
}

/* A block that contexts' peers reach. */
static CUdeviceptr plain(void) {
  CUdeviceptr p = 0;
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemAlloc_v2(&p, WORDS * 4));
  return p;
}

static CUstream captures(int device) {
  CUstream stream;
  OK(cuCtxSetCurrent(contexts[device]));
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 2));
  return stream;
}

static void ends(CUstream stream) {
  CUgraph graph = NULL;
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
}

static void written_by(int device, CUdeviceptr p, unsigned value) {
  unsigned word = 0;
  OK(cuCtxSetCurrent(contexts[device]));
  OK(cuMemsetD32_v2(p, value, WORDS));
  OK(cuCtxSynchronize());
  OK(cuMemcpyDtoH_v2(&word, p + 4 * (WORDS - 1), 4));
  IS(word, value);
}

/* A list of which a part is refused changes nothing, here or there. */
static void refused(void) {
  CUdeviceptr p = block();
  CUstream stream = captures(0);
  Access both[2] = {{1, 1, 3}, {1, 2, 3}};
  IS(cuMemPoolSetAccess(pool, both, 2), 217);
  IS(drivers(1), 0);
  IS(drivers(2), 0);
  ends(stream);
  OK(cuMemPoolSetAccess(pool, both, 1));
  stream = captures(0);
  Access other[2] = {{1, 1, 0}, {1, 2, 3}};
  IS(cuMemPoolSetAccess(pool, other, 2), 217);
  IS(drivers(1), 3);
  IS(drivers(2), 0);
  IS(pools(1, p), 3);
  IS(pools(2, p), 0);
  ends(stream);
  /* The driver refuses what the pool has done: it is undone. The last wish for a device holds. */
  Access wrong[2] = {{1, 2, 3}, {1, 1, 77}};
  IS(cuMemPoolSetAccess(pool, wrong, 2), INVALID_VALUE);
  IS(pools(1, p), 3);
  IS(pools(2, p), 0);
  Access twice[3] = {{1, 2, 3}, {1, 1, 0}, {1, 2, 0}};
  OK(cuMemPoolSetAccess(pool, twice, 3));
  IS(pools(1, p) == 0 && pools(2, p) == 0, 1);
  IS(drivers(1) == 0 && drivers(2) == 0, 1);
}

/* A pool is made while a capture is open: its peers reach it once that is over, or when they are
 * enabled anew. */
static void owed(void) {
  CUdeviceptr p = 0;
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuMemAlloc_v2(&p, 4096));
  OK(cuCtxEnablePeerAccess(contexts[0], 0));
  CUstream stream = captures(1);
  CUdeviceptr q = plain();
  OK(cuCtxSetCurrent(contexts[1]));
  ends(stream);
  written_by(1, q, 5);
  OK(cuCtxDisablePeerAccess(contexts[0]));
  IS(pools(1, q), 0);
  OK(cuCtxEnablePeerAccess(contexts[0], 0));
  written_by(1, q, 6);
  /* Disabled before it was enabled: it stays without. */
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuCtxEnablePeerAccess(contexts[0], 0));
  stream = captures(1);
  q = plain();
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuCtxDisablePeerAccess(contexts[0]));
  ends(stream);
  IS(pools(1, q), 0);
}

/* The driver's default memory pool outlives the context, with its peers. */
static void kept(void) {
  Access one = {1, 1, 3};
  block();
  OK(cuMemPoolSetAccess(pool, &one, 1));
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
  CUdeviceptr p = block();
  IS(drivers(1), 3);
  written_by(1, p, 7);
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  OK(cuInit(0));
  for (int i = 2; i >= 0; i--) {
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    OK(cuCtxSetCurrent(contexts[i]));
  }
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  if (strcmp(what, "refused") == 0) {
    refused();
  } else if (strcmp(what, "owed") == 0) {
    owed();
  } else {
    kept();
  }
  puts("well");
  return 0;
}
