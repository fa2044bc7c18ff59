/* The runtime's names under the preload library: what they answer and what they leave behind is the
 * runtime's, whoever serves. The first argument says what is checked. */
#include "cu.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>

#define HUGE_BYTES ((size_t)1 << 40)

cudaError_t cudaMallocAsync_ptsz(void **p, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync_ptsz(void *p, cudaStream_t stream);

static void *global;

/* All calls of either kind of name: none may count twice. */
static long long allocations(void) {
  return served("cudaMalloc") + served("cudaMallocAsync") + served("cudaMallocAsync_ptsz") +
         served("cuMemAlloc_v2") + passed("cuMemAlloc_v2") + served("cuMemAllocAsync") +
         passed("cuMemAllocAsync") + served("cuMemAllocAsync_ptsz") +
         passed("cuMemAllocAsync_ptsz");
}

static long long frees(void) {
  return served("cudaFree") + served("cudaFreeAsync") + served("cudaFreeAsync_ptsz") +
         served("cuMemFree_v2") + passed("cuMemFree_v2") + served("cuMemFreeAsync") +
         passed("cuMemFreeAsync") + served("cuMemFreeAsync_ptsz") + passed("cuMemFreeAsync_ptsz");
}

static void counts(void) {
  void *p = NULL, *q = NULL;
  unsigned word = 0;
  /* The first call is the runtime's: it starts. */
  OK(cudaMalloc(&p, 1000));
  IS(served("cudaMalloc"), 0);
  IS(served("cuMemAlloc_v2"), 1);
  OK(cudaMalloc(&q, 1000));
  IS(served("cudaMalloc"), 1);
  IS(served("cuMemAlloc_v2"), 1);
  OK(cudaMemset(q, 7, 1000));
  OK(cudaMemcpy(&word, (char *)q + 996, 4, cudaMemcpyDeviceToHost));
  IS(word, 0x07070707);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(cuMemGetAddressRange_v2(&base, &bytes, (CUdeviceptr)(uintptr_t)q + 5));
  IS(base, (CUdeviceptr)(uintptr_t)q);
  IS(bytes, 1000);
  OK(cudaFree(p));
  OK(cudaFree(q));
  IS(served("cudaFree"), 2);
  IS(served("cuMemFree_v2"), 0);
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  long long before = allocations(), freed = frees();
  for (int i = 0; i < 10; i++) {
    OK(cudaMallocAsync(&p, 5000, stream));
    OK(cudaMallocAsync_ptsz(&q, 5000, NULL));
    OK(cudaMemsetAsync(p, i, 5000, stream));
    OK(cudaFreeAsync(p, stream));
    OK(cudaFreeAsync_ptsz(q, NULL));
    OK(cudaMallocAsync(&p, 5000, NULL));
    OK(cudaFreeAsync_ptsz(p, stream));
  }
  IS(allocations() - before, 30);
  IS(frees() - freed, 30);
  IS(served("cudaMallocAsync"), 20);
  IS(served("cudaMallocAsync_ptsz"), 10);
  IS(served("cudaFreeAsync"), 10);
  /* A thread's own default stream has no lane: the driver's name waits for it. */
  IS(served("cudaFreeAsync_ptsz"), 10);
  IS(served("cuMemFreeAsync_ptsz"), 10);
  OK(cudaStreamDestroy(stream));
  OK(cudaMallocManaged(&p, 4096, 1));
  OK(cudaFree(p));
  IS(passed("cuMemFree_v2"), 1);
}

/* A failed call is the thread's last error, and a success leaves that alone. */
static void errors(void) {
  void *p = NULL, *q = (void *)1;
  OK(cudaMalloc(&p, 64));
  OK(cudaMalloc(&q, 0));
  IS(q == NULL, 1);
  OK(cudaGetLastError());
  IS(cudaMalloc(NULL, 64), INVALID_VALUE);
  IS(cudaPeekAtLastError(), INVALID_VALUE);
  OK(cudaMalloc(&q, 64));
  IS(served("cudaMalloc"), 1);
  IS(cudaGetLastError(), INVALID_VALUE);
  OK(cudaGetLastError());
  IS(cudaMalloc(&p, HUGE_BYTES), OUT_OF_MEMORY);
  IS(cudaGetLastError(), OUT_OF_MEMORY);
  IS(cudaMallocAsync(&p, HUGE_BYTES, NULL), OUT_OF_MEMORY);
  IS(cudaGetLastError(), OUT_OF_MEMORY);
  IS(cudaFree((char *)q + 16), INVALID_VALUE);
  IS(cudaGetLastError(), INVALID_VALUE);
  OK(cudaFree(q));
  IS(cudaFree(q), INVALID_VALUE);
  IS(cudaGetLastError(), INVALID_VALUE);
  IS(cudaFreeAsync(q, NULL), INVALID_VALUE);
  IS(cudaGetLastError(), INVALID_VALUE);
  OK(cudaFree(NULL));
  OK(cudaGetLastError());
}

static int device_of(void *p) {
  int device = -1;
  OK(cuPointerGetAttribute(&device, 9, (CUdeviceptr)(uintptr_t)p));
  return device;
}

/* Memory is the device's that is current, whoever made it so. */
static void devices(void) {
  CUcontext contexts[2];
  void *p = NULL, *all[40];
  for (int i = 0; i < 2; i++) {
    OK(cudaSetDevice(i));
    OK(cudaMalloc(&p, 100));
    OK(cudaFree(p));
    OK(cuCtxGetCurrent(&contexts[i]));
  }
  for (int i = 0; i < 40; i++) {
    int device = i / 3 % 2;
    if (i % 2) {
      OK(cudaSetDevice(device));
    } else {
      OK(cuCtxSetCurrent(contexts[device]));
    }
    for (int again = 0; again < 3; again++) {
      OK(i % 4 < 2 ? cudaMalloc(&p, 3000) : cudaMallocAsync(&p, 3000, NULL));
      IS(device_of(p), device);
      if (again < 2) {
        OK(cudaFree(p));
      }
    }
    all[i] = p;
  }
  IS(served("cudaMalloc") > 20, 1);
  for (int i = 0; i < 40; i++) {
    OK(i % 2 ? cudaFree(all[i]) : cudaFreeAsync(all[i], NULL));
  }
  /* What a reset ends is not given back into what comes after. */
  OK(cudaSetDevice(0));
  OK(cudaMalloc(&p, 3000));
  OK(cudaDeviceReset());
  IS(cudaFree(p), INVALID_VALUE);
  IS(cudaGetLastError(), INVALID_VALUE);
  void *q = NULL;
  OK(cudaMalloc(&q, 3000));
  OK(cudaMemset(q, 1, 3000));
  OK(cudaFree(q));
}

/* A thread's first call is the runtime's: it makes the device's context current there. */
static void *first_free(void *p) {
  CUcontext context = NULL;
  OK(cuCtxGetCurrent(&context));
  IS(context == NULL, 1);
  OK(cudaFree(p));
  OK(cuCtxGetCurrent(&context));
  IS(context != NULL, 1);
  return NULL;
}

static void threads(void) {
  for (int i = 0; i < 3; i++) {
    pthread_t thread;
    void *p = NULL;
    OK(cudaMalloc(&p, 4000));
    IS(pthread_create(&thread, NULL, first_free, p), 0);
    IS(pthread_join(thread, NULL), 0);
  }
  IS(served("cudaFree"), 0);
}

/* The same with FOREBAY_FREE=sync: a free waits, and hears of the fault. */
static void lost_free(void) {
  void *p[4] = {NULL};
  for (int i = 0; i < 4; i++) {
    OK(cudaMalloc(&p[i], 4000));
  }
  IS(cudaDeviceSynchronize(), 700);
  IS(cudaGetLastError(), 700);
  for (int i = 0; i < 4; i++) {
    IS(cudaFree(p[i]), 700);
    IS(cudaPeekAtLastError(), 700);
  }
}

/* While the program has chosen a memory pool of its own, stream-ordered memory comes from that. */
static void pools(void) {
  struct cudaMemPoolProps properties;
  cudaMemPool_t own = NULL, standard = NULL;
  void *p = NULL;
  OK(cudaMalloc(&p, 64));
  OK(cudaFree(p));
  OK(cudaDeviceGetDefaultMemPool(&standard, 0));
  memset(&properties, 0, sizeof properties);
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  OK(cudaMemPoolCreate(&own, &properties));
  OK(cudaMallocAsync(&p, 5000, NULL));
  OK(cudaFreeAsync(p, NULL));
  IS(served("cudaMallocAsync"), 1);
  OK(cudaDeviceSetMemPool(0, own));
  OK(cudaMallocAsync(&p, 5000, NULL));
  IS(served("cudaMallocAsync"), 1);
  IS(passed("cuMemAllocAsync"), 1);
  OK(cudaFreeAsync(p, NULL));
  IS(passed("cuMemFreeAsync"), 1);
  OK(cudaDeviceSetMemPool(0, standard));
  OK(cudaMallocAsync(&p, 5000, NULL));
  OK(cudaFreeAsync(p, NULL));
  IS(served("cudaMallocAsync"), 2);
  OK(cudaMemPoolDestroy(own));
}

/* After a fault that ends the context: what needs the device says so, and nothing else breaks. */
static void lost(void) {
  void *p = NULL;
  for (int i = 0; i < 4; i++) {
    OK(cudaMalloc(&p, 4000));
  }
  IS(cudaDeviceSynchronize(), 700);
  IS(cudaGetLastError(), 700);
  IS(cudaMemset(p, 0, 4000), 700);
  cudaError_t error = cudaSuccess;
  for (int i = 0; i < 64 && error == cudaSuccess; i++) {
    error = cudaMalloc(&p, 8 << 20);
  }
  IS(error, 700);
  IS(cudaGetLastError(), 700);
  IS(cudaMalloc(&p, 8 << 20), 700);
}

/* cccl#7063, ZLUDA#404: after the runtime's own end it answers 4; after main until then it works.
 */
static void after_the_runtime(void) {
  void *p = NULL;
  if (cudaMalloc(&p, 64) != 4 || cudaFree(global) != 4 || cudaFreeAsync(global, NULL) != 4) {
    _Exit(9);
  }
}

static void before_the_runtimes_end(void) {
  void *p = NULL;
  if (cudaMalloc(&p, 64) != cudaSuccess || cudaFree(p) != cudaSuccess) {
    _Exit(8);
  }
}

static void exits(void) {
  IS(atexit(after_the_runtime), 0);
  OK(cudaMalloc(&global, 64));
  void *p = NULL;
  OK(cudaMalloc(&p, 64));
  OK(cudaFree(p));
  IS(atexit(before_the_runtimes_end), 0);
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  IS(dlsym(RTLD_DEFAULT, "cudaMalloc") != NULL, 1);
  struct {
    const char *name;
    void (*run)(void);
  } all[] = {{"counts", counts},   {"errors", errors}, {"devices", devices},
             {"threads", threads}, {"lost", lost},     {"exit", exits},
               {"pools", pools},     {"lost-free", lost_free}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(all[i].name, what) == 0) {
      all[i].run();
      puts("well");
      return 0;
    }
  }
  return 2;
}
