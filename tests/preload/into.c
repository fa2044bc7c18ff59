/* A stream that captures into a graph of the program's is destroyed: the graph stays the program's,
 * while one that the capture made is nobody's. Built with -DDRIVER as the driver, of which this is
 * all that is called. */
#ifdef DRIVER
#include <stddef.h>
#include <stdint.h>

/* The graph of the capture that is open, and how many graphs were destroyed. */
static uintptr_t open;
static int destroyed;

int graphs_destroyed(void) { return destroyed; }
int cuCtxGetCurrent(uintptr_t *context) { return *context = 0, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, 0; }
int cuStreamIsCapturing(uintptr_t stream, int *status) {
  (void)stream;
  return *status = open != 0, 0;
}
int cuStreamBeginCapture_v2(uintptr_t stream, int mode) {
  (void)stream, (void)mode;
  return open = 0x2000, 0;
}
int cuStreamBeginCaptureToGraph(uintptr_t stream, uintptr_t graph, const void *nodes,
                                const void *edges, size_t count, int mode) {
  (void)stream, (void)nodes, (void)edges, (void)count, (void)mode;
  return open = graph, 0;
}
int cuStreamEndCapture(uintptr_t stream, uintptr_t *graph) {
  (void)stream;
  *graph = open;
  return open = 0, 0;
}
int cuStreamDestroy_v2(uintptr_t stream) {
  (void)stream;
  return 0;
}
int cuGraphDestroy(uintptr_t graph) {
  (void)graph;
  return destroyed++, 0;
}
#else
#include "cu.h"

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *nodes,
                                     const void *edges, size_t count, int mode);
int graphs_destroyed(void);

int main(void) {
  CUstream stream = (CUstream)0x1000;
  OK(cuStreamBeginCaptureToGraph(stream, (CUgraph)0x3000, NULL, NULL, 0, 2));
  OK(cuStreamDestroy_v2(stream));
  IS(graphs_destroyed(), 0);
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuStreamDestroy_v2(stream));
  IS(graphs_destroyed(), 1);
  puts("well");
  return 0;
}
#endif
