/* What CUDA answers where nothing is the pool's, and of the program's own blocks when they are used
 * wrongly: printed, and the same with this library and without. The first argument says which. */
#include "cu.h"

#include <pthread.h>

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

#define TELL(call) printf("%s: " #call " is %d\n", what, (int)(call))

/* Questions about an address; what is answered lies relative to it, or is as it was. */
static void ask(const char *what, CUdeviceptr p) {
  CUdeviceptr base = 77;
  size_t bytes = 77;
  int kind = 77, device = 77;
  uint64_t start = 77, length = 77;
  int attributes[4] = {2, 9, 11, 12};
  void *data[4] = {&kind, &device, &start, &length};
  CUresult result = cuMemGetAddressRange_v2(&base, &bytes, p);
  printf("%s: range is %d, %lld %zu\n", what, result, (long long)(base == 77 ? 77 : base - p),
         bytes);
  TELL(cuPointerGetAttribute(&kind, 2, p));
  TELL(cuPointerGetAttribute(&device, 9, p));
  printf("%s: kind %d, device %d\n", what, kind, device);
  TELL(cuPointerGetAttribute(&start, 11, p));
  printf("%s: start %lld\n", what, (long long)(start == 77 ? 77 : start - p));
  kind = device = 77;
  start = length = 77;
  TELL(cuPointerGetAttributes(4, attributes, data, p));
  printf("%s: together %d %d %lld %llu\n", what, kind, device,
         (long long)(start == 77 || start == 0 ? start : start - p), (unsigned long long)length);
}

static void give(const char *what, CUdeviceptr p) {
  TELL(cuMemFree_v2(p));
  TELL(cuMemFreeAsync(p, NULL));
  TELL(cuIpcCloseMemHandle(p));
}

/* HAMi-core#321, #217, #281: addresses that the pool does not know. */
static void foreign(void) {
  const size_t page = 2 << 20;
  Properties pinned = {.type = 1, .handle_types = 1, .location = 1};
  CUdeviceptr managed = 0, mapped = 0, own = 0;
  CUmemoryPool pool = own_pool();
  CUipcMemHandle handle;
  uint64_t memory = 0;
  void *host = NULL;
  int local = 0;
  begin();
  OK(cuMemAlloc_v2(&own, 4096));
  OK(cuMemAllocManaged(&managed, 4096, 1));
  OK(cuMemAllocHost_v2(&host, 4096));
  OK(cuMemCreate(&memory, page, &pinned, 0));
  OK(cuMemAddressReserve(&mapped, page, 0, 0, 0));
  OK(cuMemMap(mapped, page, 0, memory, 0));
  struct {
    const char *what;
    CUdeviceptr p;
  } all[] = {{"nothing", 0},
             {"a number", 0x1234},
             {"a local", (CUdeviceptr)(uintptr_t)&local},
             {"pinned memory", (CUdeviceptr)(uintptr_t)host},
             {"inside managed memory", managed + 256},
             {"a mapping of one's own", mapped}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const char *what = all[i].what;
    ask(what, all[i].p);
    give(what, all[i].p);
    TELL(cuIpcGetMemHandle(&handle, all[i].p));
    TELL(cuIpcOpenMemHandle_v2(&own, (CUipcMemHandle){{1}}, 1));
  }
  const char *what = "the driver's";
  ask(what, managed);
  TELL(cuMemFree_v2(managed));
  CUdeviceptr ordered = 0;
  TELL(cuMemAllocFromPoolAsync(&ordered, 5000, pool, NULL));
  TELL(cuMemFree_v2(ordered));
  TELL(cuMemAllocFromPoolAsync(&ordered, 5000, pool, NULL));
  TELL(cuMemFreeAsync(ordered, NULL));
  TELL(cuMemFreeHost(host));
  TELL(cuMemUnmap(mapped, page));
  TELL(cuMemAddressFree(mapped, page));
  TELL(cuMemRelease(memory));
  TELL(cuMemPoolDestroy(pool));
  /* Everything came back: the last kilobyte can be had again. */
  size_t free_bytes = 0, again = 0, total = 0;
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  for (int i = 0; i < 100; i++) {
    OK(cuMemAllocManaged(&managed, 16 << 20, 1));
    OK(cuMemFree_v2(managed));
  }
  OK(cuMemGetInfo_v2(&again, &total));
  IS(again, free_bytes);
  /* OptiX asks for one of the two only (HAMi-core#234, #321, #333). */
  if (forebay_preload_count != NULL) {
    again = 0;
    OK(cuMemGetInfo_v2(&again, NULL));
    IS(again, free_bytes);
    OK(cuMemGetInfo_v2(NULL, &again));
    IS(again, total);
  }
}

/* HAMi-core#172, #187, #188: a thread without a context, where no call may guess a device. */
static void *bare(void *stream) {
  const char *what = "without a context";
  CUdeviceptr p = 99;
  size_t pitch = 99, bytes = 99;
  CUipcMemHandle handle;
  TELL(cuMemAlloc_v2(&p, 5000));
  TELL(cuMemAlloc_v2(&p, 50 << 20));
  TELL(cuMemAllocPitch_v2(&p, &pitch, 100, 7, 4));
  TELL(cuMemAllocAsync(&p, 5000, NULL));
  TELL(cuMemAllocAsync_ptsz(&p, 5000, NULL));
  TELL(cuMemAllocAsync(&p, 5000, (CUstream)2));
  TELL(cuMemAllocManaged(&p, 5000, 1));
  TELL(cuMemGetInfo_v2(&bytes, &bytes));
  TELL(cuMemFree_v2(0));
  TELL(cuMemFreeAsync(0, NULL));
  TELL(cuCtxSynchronize());
  TELL(cuIpcOpenMemHandle_v2(&p, (CUipcMemHandle){{1}}, 1));
  TELL(cuIpcGetMemHandle(&handle, 4096));
  printf("%s: outputs %d %d %d\n", what, (int)p, (int)pitch, (int)bytes);
  (void)stream;
  return NULL;
}

/* Blocks of the program's own, used wrongly. */
static void own(void) {
  CUdeviceptr p[3] = {0};
  begin();
  for (int i = 0; i < 3; i++) {
    OK(cuMemAlloc_v2(&p[i], 1000));
  }
  ask("a block", p[0]);
  ask("its inside", p[0] + 999);
  const char *what = "inside a block";
  give(what, p[0] + 256);
  what = "twice";
  OK(cuMemFree_v2(p[0]));
  TELL(cuMemFree_v2(p[0]));
  CUdeviceptr ordered = 0;
  OK(cuMemAllocAsync(&ordered, 1000, NULL));
  OK(cuMemFree_v2(ordered));
  TELL(cuMemFree_v2(ordered));
  OK(cuMemAllocAsync(&ordered, 1000, NULL));
  OK(cuMemFreeAsync(ordered, NULL));
  OK(cuCtxSynchronize());
  TELL(cuMemFreeAsync(ordered, NULL));
  OK(cuMemFree_v2(p[1]));
  what = "arguments";
  TELL(cuMemAlloc_v2(NULL, 4));
  TELL(cuMemAlloc_v2(&p[0], 0));
  TELL(cuMemAllocAsync(NULL, 4, NULL));
  TELL(cuMemAllocAsync(&p[0], 0, NULL));
  TELL(cuMemAlloc_v2(&p[0], (size_t)1 << 50));
  TELL(cuMemAlloc_v2(&p[0], SIZE_MAX));
  TELL(cuMemAllocAsync(&p[0], SIZE_MAX, NULL));
  OK(cuMemFree_v2(p[2]));
}

int main(int count, char **arguments) {
  const char *which = count > 1 ? arguments[1] : "";
  if (strcmp(which, "foreign") == 0) {
    begin();
    foreign();
  } else if (strcmp(which, "bare") == 0) {
    pthread_t thread;
    CUdeviceptr p = 0;
    begin();
    OK(cuMemAlloc_v2(&p, 5000));
    IS(pthread_create(&thread, NULL, bare, NULL), 0);
    IS(pthread_join(thread, NULL), 0);
    OK(cuMemFree_v2(p));
  } else {
    own();
  }
  puts("well");
  return 0;
}
