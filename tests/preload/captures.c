/* Graph captures: allocation nodes stay the driver's, and the pool goes on beside. */
#include "cu.h"

#define BYTES (256 * 1024)

int main(void) {
  begin();
  CUstream stream, beside;
  CUgraph graph;
  CUgraphExec exec;
  CUdeviceptr p = 0, q = 0, r = 0;
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamCreate(&beside, 1));
  OK(cuMemAlloc_v2(&p, BYTES));
  OK(cuMemAlloc_v2(&q, BYTES));
  OK(cuStreamBeginCapture_v2(stream, 0));
  /* The driver's to answer: a node of the graph. */
  CUdeviceptr node = 0;
  OK(cuMemAllocAsync(&node, BYTES, stream));
  IS(passed("cuMemAllocAsync"), 1);
  OK(cuMemsetD32Async(q, 3, BYTES / 4, stream));
  OK(cuMemcpyDtoDAsync_v2(p, q, BYTES, stream));
  OK(cuMemFreeAsync(node, stream));
  IS(passed("cuMemFreeAsync"), 1);
  /* Frees of the pool's memory while it captures record no fence, which would end the capture. */
  for (int i = 0; i < 200; i++) {
    OK(cuMemAlloc_v2(&r, 128 * 1024));
    OK(cuMemFree_v2(r));
    OK(cuMemAllocAsync(&r, 64 * 1024, beside));
    OK(cuMemFreeAsync(r, beside));
  }
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 3; i++) {
    OK(cuMemsetD32_v2(p, 0, BYTES / 4));
    OK(cuCtxSynchronize());
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    unsigned word = 0;
    OK(cuMemcpyDtoH_v2(&word, p + BYTES - 4, 4));
    IS(word, 3);
  }
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
  /* A capture that comes to nothing leaves the pool as it was. */
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuMemAllocAsync(&r, BYTES, stream));
  IS(passed("cuMemAllocAsync"), 1);
  OK(cuMemFreeAsync(r, stream));
  /* The legacy stream may not be used, nor asked about, beside a capture on a blocking stream: the
   * driver says so, and ends the capture. */
  CUstream blocking;
  OK(cuStreamCreate(&blocking, 0));
  OK(cuStreamBeginCapture_v2(blocking, 0));
  IS(cuMemAllocAsync(&r, BYTES, NULL), 906);
  IS(cuMemAllocAsync(&r, BYTES, blocking), 901);
  IS(passed("cuMemAllocAsync"), 3);
  IS(cuStreamEndCapture(blocking, &graph), 901);
  OK(cuStreamDestroy_v2(blocking));
  OK(cuStreamDestroy_v2(beside));
  OK(cuStreamDestroy_v2(stream));
  OK(cuMemFree_v2(p));
  OK(cuMemFree_v2(q));
  puts("well");
  return 0;
}
