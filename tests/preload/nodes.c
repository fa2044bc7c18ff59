/* Memory nodes of graphs beside the pool: captured allocations and frees are the driver's, at one
 * address over all launches, and the pool gives none of that memory out. Without the preload
 * library the same must hold. */
#include "cu.h"

#define BYTES (256 * 1024)
#define WORDS (BYTES / 4)
#define BESIDE 64

static unsigned word_at(CUdeviceptr p) {
  unsigned word = 0;
  OK(cuMemcpyDtoH_v2(&word, p, 4));
  return word;
}

/* Blocks of the pool, made and freed while the graph's memory is live or not: none lies in it. */
static void beside(CUdeviceptr node, unsigned value, CUstream stream) {
  CUdeviceptr block[BESIDE];
  for (int i = 0; i < BESIDE; i++) {
    if (i % 2 == 0) {
      OK(cuMemAlloc_v2(&block[i], BYTES));
    } else {
      OK(cuMemAllocAsync(&block[i], BYTES, stream));
    }
    IS(block[i] + BYTES <= node || node + BYTES <= block[i], 1);
    OK(cuMemsetD32Async(block[i], value, WORDS, stream));
  }
  OK(cuStreamSynchronize(stream));
  for (int i = 0; i < BESIDE; i++) {
    IS(word_at(block[i] + BYTES - 4), value);
    if (i % 2 == 0) {
      OK(cuMemFree_v2(block[i]));
    } else {
      OK(cuMemFreeAsync(block[i], stream));
    }
  }
}

/* Allocates, fills, copies out and, if inside, frees; answers the node's address. */
static CUdeviceptr record(CUstream stream, CUdeviceptr out, unsigned value, int inside,
                          CUgraph *graph) {
  CUdeviceptr node = 0;
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuMemAllocAsync(&node, BYTES, stream));
  OK(cuMemsetD32Async(node, value, WORDS, stream));
  OK(cuMemcpyDtoDAsync_v2(out, node, BYTES, stream));
  if (inside) {
    OK(cuMemFreeAsync(node, stream));
  }
  OK(cuStreamEndCapture(stream, graph));
  return node;
}

int main(void) {
  CUstream stream, other;
  CUgraph graph;
  CUgraphExec exec;
  CUdeviceptr out = 0;
  begin();
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamCreate(&other, 1));
  OK(cuMemAlloc_v2(&out, BYTES));
  int preloaded = forebay_preload_count != NULL;

  long long before = served("cuMemAllocAsync"), freed = served("cuMemFreeAsync");
  CUdeviceptr node = record(stream, out, 11, 1, &graph);
  IS(served("cuMemAllocAsync"), before);
  IS(served("cuMemFreeAsync"), freed);
  if (preloaded) {
    IS(passed("cuMemAllocAsync"), 1);
    IS(passed("cuMemFreeAsync"), 1);
  }
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (unsigned i = 0; i < 3; i++) {
    OK(cuMemsetD32_v2(out, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    IS(word_at(out), 11);
    IS(word_at(out + BYTES - 4), 11);
    beside(node, 100 + i, other);
  }
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));

  /* Memory that the graph leaves is used and freed outside, by either call, and is the driver's. */
  node = record(stream, out, 12, 0, &graph);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (unsigned i = 0; i < 3; i++) {
    OK(cuGraphLaunch(exec, stream));
    IS(cuGraphLaunch(exec, stream), INVALID_VALUE);
    OK(cuStreamSynchronize(stream));
    IS(word_at(node), 12);
    beside(node, 200 + i, other);
    IS(word_at(node + BYTES - 4), 12);
    long long mine = served("cuMemFreeAsync"), plain = served("cuMemFree_v2");
    if (i == 1) {
      OK(cuMemFree_v2(node));
    } else {
      OK(cuMemFreeAsync(node, stream));
    }
    IS(served("cuMemFreeAsync"), mine);
    IS(served("cuMemFree_v2"), plain);
  }
  OK(cuStreamSynchronize(stream));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));

  /* A captured free of other memory is refused, the pool's as the driver's own. */
  CUdeviceptr mine = 0;
  OK(cuMemAllocAsync(&mine, BYTES, other));
  OK(cuStreamSynchronize(other));
  OK(cuStreamBeginCapture_v2(stream, 0));
  IS(cuMemFreeAsync(mine, stream), INVALID_VALUE);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuMemsetD32Async(mine, 5, WORDS, other));
  OK(cuStreamSynchronize(other));
  IS(word_at(mine), 5);
  OK(cuMemFreeAsync(mine, other));

  OK(cuMemFree_v2(out));
  OK(cuStreamDestroy_v2(other));
  OK(cuStreamDestroy_v2(stream));
  puts("well");
  return 0;
}
