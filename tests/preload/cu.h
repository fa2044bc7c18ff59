/* The part of CUDA's driver API that these programs use, declared by hand: no toolkit is needed. */
#ifndef FOREBAY_TEST_CU_H
#define FOREBAY_TEST_CU_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct {
  unsigned char reserved[64];
} CUipcMemHandle;

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxAttach(CUcontext *context, unsigned flags);
CUresult cuCtxDetach(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSynchronize(void);
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr p);
CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t width, size_t height,
                            unsigned element);
CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *p, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const void *properties);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags);
CUresult cuMemAllocHost_v2(void **p, size_t bytes);
CUresult cuMemFreeHost(void *p);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p);
CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p);
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr p);
CUresult cuPointerSetAttribute(const void *data, int attribute, CUdeviceptr p);
CUresult cuMemRetainAllocationHandle(uint64_t *handle, void *p);
CUresult cuIpcGetMemHandle(void *handle, CUdeviceptr p);
CUresult cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr p);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuMemsetD32_v2(CUdeviceptr p, unsigned value, size_t count);
CUresult cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t count, CUstream stream);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuGetProcAddress(const char *name, void **to, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status);

/* Of libforebay_preload.so; absent without it. */
extern int forebay_preload_count(const char *name, uint64_t *served, uint64_t *passed)
    __attribute__((weak));

#define SUCCESS 0
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define NOT_INITIALIZED 3
#define INVALID_CONTEXT 201
#define NOT_FOUND 500
#define NOT_SUPPORTED 801

/* Ends the program with the line that failed. */
#define IS(what, expected)                                                                   \
  do {                                                                                       \
    long long is_ = (long long)(what);                                                       \
    if (is_ != (long long)(expected)) {                                                      \
      fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #what, is_,       \
              (long long)(expected));                                                        \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

#define OK(call) IS(call, SUCCESS)

/* How often the pool served the function; -1 without the preload library. */
static inline long long served(const char *name) {
  uint64_t count = 0;
  if (forebay_preload_count == NULL) {
    return -1;
  }
  IS(forebay_preload_count(name, &count, NULL), 0);
  return (long long)count;
}

static inline long long passed(const char *name) {
  uint64_t count = 0;
  if (forebay_preload_count == NULL) {
    return -1;
  }
  IS(forebay_preload_count(name, NULL, &count), 0);
  return (long long)count;
}

/* The primary context of device 0, current. */
static inline CUcontext begin(void) {
  CUdevice device;
  CUcontext context;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

/* A memory pool of the program's own on device 0. */
static inline CUmemoryPool own_pool(void) {
  /* CUmemPoolProps: pinned memory, no handles to share, of a device, the device's number. */
  int properties[22] = {1, 0, 1, 0};
  CUmemoryPool pool = NULL;
  OK(cuMemPoolCreate(&pool, properties));
  return pool;
}

#endif
