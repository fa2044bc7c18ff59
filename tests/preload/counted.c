/* Each call of the program is counted once: nothing that the driver does inside itself leads back
 * to the preload library. Without the library only the calls must go well. */
#include "cu.h"

#define BLOCKS 3

struct row {
  const char *name;
  long long served, passed;
};

static const struct row rows[] = {
  {"cuMemAlloc_v2", BLOCKS, 0},
  {"cuMemAllocPitch_v2", 1, 0},
  {"cuMemFree_v2", BLOCKS + 1, 1},
  {"cuMemAllocAsync", 1, 1},
  {"cuMemFreeAsync", 1, 2},
  {"cuMemAllocFromPoolAsync", 0, 1},
  {"cuMemAllocManaged", 0, 1},
  {"cuMemAllocHost_v2", 0, 1},
  {"cuMemHostAlloc", 0, 0},
  {"cuMemCreate", 0, 0},
  {"cuMemAllocAsync_ptsz", 0, 0},
  {"cuMemFreeAsync_ptsz", 0, 0},
};

/* Memory of every kind that the library stands before, used and given back. */
static void memory(CUstream stream) {
  CUdeviceptr block[BLOCKS], rows_of = 0, async = 0, own = 0, managed = 0;
  size_t pitch = 0;
  unsigned word = 0;
  void *host = NULL;
  CUmemoryPool pool = own_pool();
  for (int i = 0; i < BLOCKS; i++) {
    OK(cuMemAlloc_v2(&block[i], (size_t)4096 << (7 * i)));
    OK(cuMemsetD32_v2(block[i], 7, 1024));
  }
  OK(cuMemAllocPitch_v2(&rows_of, &pitch, 300, 17, 4));
  OK(cuMemAllocAsync(&async, 1 << 20, stream));
  OK(cuMemAllocFromPoolAsync(&own, 1 << 20, pool, stream));
  OK(cuMemAllocManaged(&managed, 1 << 20, 1));
  OK(cuMemAllocHost_v2(&host, 1 << 20));
  OK(cuMemsetD32Async(async, 9, 1024, stream));
  OK(cuMemcpyDtoDAsync_v2(own, async, 4096, stream));
  OK(cuMemsetD32_v2(managed, 1, 1024));
  OK(cuStreamSynchronize(stream));
  OK(cuMemcpyDtoH_v2(&word, own, 4));
  IS(word, 9);
  OK(cuMemFreeAsync(async, stream));
  OK(cuMemFreeAsync(own, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemFree_v2(rows_of));
  OK(cuMemFree_v2(managed));
  OK(cuMemFreeHost(host));
  for (int i = 0; i < BLOCKS; i++) {
    OK(cuMemcpyDtoH_v2(&word, block[i] + 4092, 4));
    IS(word, 7);
    OK(cuMemFree_v2(block[i]));
  }
  OK(cuMemPoolDestroy(pool));
}

/* An allocation and a free in a graph, which are the driver's, launched twice. */
static void graph(CUstream stream) {
  CUdeviceptr node = 0;
  CUgraph captured;
  CUgraphExec exec;
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuMemAllocAsync(&node, 1 << 20, stream));
  OK(cuMemsetD32Async(node, 3, 1024, stream));
  OK(cuMemFreeAsync(node, stream));
  OK(cuStreamEndCapture(stream, &captured));
  OK(cuGraphInstantiateWithFlags(&exec, captured, 0));
  for (int i = 0; i < 2; i++) {
    OK(cuGraphLaunch(exec, stream));
  }
  OK(cuStreamSynchronize(stream));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(captured));
}

int main(void) {
  CUstream stream;
  begin();
  OK(cuStreamCreate(&stream, 1));
  memory(stream);
  graph(stream);
  OK(cuStreamDestroy_v2(stream));
  OK(cuCtxSynchronize());
  for (size_t i = 0; forebay_preload_count != NULL && i < sizeof rows / sizeof rows[0]; i++) {
    if (served(rows[i].name) != rows[i].served || passed(rows[i].name) != rows[i].passed) {
      fprintf(stderr, "%s: %lld served, %lld passed on, not %lld and %lld\n", rows[i].name,
              served(rows[i].name), passed(rows[i].name), rows[i].served, rows[i].passed);
      return 1;
    }
  }
  puts("counted well");
  return 0;
}
