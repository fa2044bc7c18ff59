/* What each look-up of each name answers, by version and flags: one line a distinct answer. The
 * same with this library and without, since its functions have the names of those they stand for
 * (HAMi-core#215, #233: names and versions that led to entries of another form). */
#include "cu.h"

#include <dlfcn.h>

typedef CUresult (*get1)(const char *, void **, int, uint64_t);
typedef CUresult (*get2)(const char *, void **, int, uint64_t, int *);

static const char *const names[] = {
    "cuGetProcAddress", "cuMemAlloc", "cuMemFree", "cuMemAllocPitch", "cuMemAllocAsync",
    "cuMemFreeAsync", "cuMemAllocFromPoolAsync", "cuDeviceSetMemPool", "cuMemPoolSetAccess",
    "cuMemAllocManaged", "cuMemAllocHost", "cuMemHostAlloc", "cuMemCreate", "cuArrayCreate",
    "cuArray3DCreate", "cuMipmappedArrayCreate", "cuMemGetInfo", "cuMemGetAddressRange",
    "cuPointerGetAttribute", "cuPointerGetAttributes", "cuPointerSetAttribute",
    "cuMemRetainAllocationHandle", "cuMemGetHandleForAddressRange", "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuCtxCreate", "cuCtxDestroy",
    "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxAttach", "cuCtxDetach",
    "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset",
    "cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess", "cuStreamCreate",
    "cuStreamCreateWithPriority", "cuStreamDestroy", "cuStreamBeginCapture",
    "cuStreamBeginCaptureToGraph", "cuStreamEndCapture",
    /* Not this library's: names beside them. */
    "cuInit", "cuMemsetD8Async", "cuMemPrefetchAsync", "cuMemAdvise", "cuDeviceGetUuid",
    "cuCtxGetCurrent", "cuMemMap", "cuGetExportTable", "cuNoSuchThing"};

static const int versions[] = {1000,  2000,  2020,  3020,  4000,  4010,  5000,  5050,  6000,
                               7000,  10000, 10010, 10020, 11000, 11020, 11030, 11040, 11070,
                               12000, 12020, 12030, 12050, 12080, 12090, 13000, 13010, 99000};

static const char *const endings[] = {"", "_v2", "_v3", "_v4", "_ptsz", "_v2_ptsz", "_v2_ptds"};

static int ours;

/* The name by which an answer is exported. */
static const char *name_of(void *found) {
  Dl_info info = {NULL, NULL, NULL, NULL};
  if (found == NULL) {
    return "nothing";
  }
  IS(dladdr(found, &info) != 0, 1);
  ours += strstr(info.dli_fname, "libforebay_preload") != NULL;
  return info.dli_saddr == found ? info.dli_sname : "unnamed";
}

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
  IS(driver != NULL, 1);
  get1 first = (get1)(uintptr_t)dlsym(driver, "cuGetProcAddress");
  get2 second = (get2)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2");
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    for (size_t e = 0; e < sizeof endings / sizeof *endings; e++) {
      char symbol[64];
      snprintf(symbol, sizeof symbol, "%s%s", names[i], endings[e]);
      found = dlsym(driver, symbol);
      /* Whether there is an error to tell goes with whether there is an answer. */
      IS((dlerror() == NULL) == (found != NULL), 1);
      printf("%s: %s\n", symbol, name_of(found));
    }
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
      for (uint64_t flags = 0; flags < 4; flags++) {
        int status = -7;
        CUresult one = -7, two = -7;
        void *by_first = NULL;
        found = NULL;
        if (second != NULL) {
          two = second(names[i], &found, versions[v], flags, &status);
        }
        if (first != NULL) {
          one = first(names[i], &by_first, versions[v], flags);
        }
        printf("%s %d %d: %d %d %s, %d %s\n", names[i], versions[v], (int)flags, two, status,
               name_of(two == SUCCESS ? found : NULL), one,
               name_of(one == SUCCESS ? by_first : NULL));
      }
    }
  }
  IS(ours > 0, forebay_preload_count != NULL);
  puts("well");
  return 0;
}
