/* Memory nodes of graphs through CUDA's runtime: a captured cudaMallocAsync and cudaFreeAsync,
 * launched three times. The same with and without the preload library. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (256 * 1024)

#define OK(call)                                                                     \
  do {                                                                               \
    cudaError_t code_ = (call);                                                      \
    if (code_ != cudaSuccess) {                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                  \
              cudaGetErrorName(code_));                                              \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

#define HOLDS(what)                                                                  \
  do {                                                                               \
    if (!(what)) {                                                                   \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);             \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

/* Of libforebay_preload.so; absent without it. */
extern int forebay_preload_count(const char *name, uint64_t *served, uint64_t *passed)
    __attribute__((weak));

/* Calls of a function of the driver, and of the runtime's that may be answered before it. */
static void counts(const char *name, const char *early, uint64_t served, uint64_t passed) {
  uint64_t found[2] = {0, 0}, before[2] = {0, 0};
  if (forebay_preload_count == NULL) {
    return;
  }
  HOLDS(forebay_preload_count(name, &found[0], &found[1]) == 0);
  HOLDS(forebay_preload_count(early, &before[0], &before[1]) == 0);
  HOLDS(found[0] + before[0] == served && found[1] == passed && before[1] == 0);
}

int main(void) {
  cudaStream_t stream, other;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  char *out = NULL;
  void *node = NULL;
  unsigned char *host = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  OK(cudaMalloc((void **)&out, BYTES));
  OK(cudaMallocHost((void **)&host, BYTES));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMallocAsync(&node, BYTES, stream));
  OK(cudaMemsetAsync(node, 0x5b, BYTES, stream));
  OK(cudaMemcpyAsync(out, node, BYTES, cudaMemcpyDeviceToDevice, stream));
  OK(cudaFreeAsync(node, stream));
  OK(cudaStreamEndCapture(stream, &graph));
  counts("cuMemAllocAsync", "cudaMallocAsync", 0, 1);
  counts("cuMemFreeAsync", "cudaFreeAsync", 0, 1);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) {
    char *beside = NULL;
    OK(cudaMemset(out, 0, BYTES));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaMallocAsync((void **)&beside, BYTES, other));
    HOLDS(beside + BYTES <= (char *)node || (char *)node + BYTES <= beside);
    OK(cudaMemsetAsync(beside, i, BYTES, other));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(host, out, BYTES, cudaMemcpyDeviceToHost));
    for (size_t at = 0; at < BYTES; at++) {
      HOLDS(host[at] == 0x5b);
    }
    OK(cudaFreeAsync(beside, other));
    OK(cudaStreamSynchronize(other));
  }
  counts("cuMemAllocAsync", "cudaMallocAsync", 3, 1);
  counts("cuMemFreeAsync", "cudaFreeAsync", 3, 1);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaFreeHost(host));
  OK(cudaFree(out));
  OK(cudaStreamDestroy(other));
  OK(cudaStreamDestroy(stream));
  puts("well");
  return 0;
}
