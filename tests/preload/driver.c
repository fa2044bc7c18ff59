/* The same memory and data as runtime.c through CUDA's driver API. */
#define _POSIX_C_SOURCE 200809L
#include "checks.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (WORDS * sizeof(uint32_t))

static int failed;

static void expect(CUresult code, const char *call, int line)
{
    if (code != CUDA_SUCCESS) {
        fprintf(stderr, "line %d: %s: %d\n", line, call, (int)code);
        failed++;
    }
}

#define CHECK(call) expect((call), #call, __LINE__)

void tell(const char *kind, uint64_t sum)
{
    printf("%s %016llx\n", kind, (unsigned long long)sum);
}

static void plain_memory(void)
{
    static uint32_t in[WORDS], out[WORDS];
    CUdeviceptr a = 0, b = 0;
    pattern(in, WORDS, 1);
    CHECK(cuMemAlloc(&a, BYTES));
    CHECK(cuMemAlloc(&b, BYTES));
    CHECK(cuMemcpyHtoD(a, in, BYTES));
    CHECK(cuMemsetD8(b, 0x5a, BYTES));
    CHECK(cuMemcpyDtoD(b, a + BYTES / 2, BYTES / 2));
    CHECK(cuMemcpyDtoH(out, b, BYTES));
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    tell("malloc", checksum(out, WORDS));
}

/* Rows of `width` bytes: all filled, the first ones written, all read back. */
static void rows(const char *kind, size_t width, size_t height, size_t written, uint32_t seed,
                 unsigned char fill)
{
    static uint32_t in[ROW * ROWS], out[ROW * ROWS];
    CUdeviceptr a = 0;
    size_t pitch = 0;
    pattern(in, width * height / 4, seed);
    CHECK(cuMemAllocPitch(&a, &pitch, width, height, 4));
    CHECK(cuMemsetD2D8(a, pitch, fill, width, height));
    for (size_t row = 0; row < written; row++) {
        CHECK(cuMemcpyHtoD(a + row * pitch, (const char *)in + row * width, width));
    }
    for (size_t row = 0; row < height; row++) {
        CHECK(cuMemcpyDtoH((char *)out + row * width, a + row * pitch, width));
    }
    CHECK(cuMemFree(a));
    tell(kind, checksum(out, width * height / 4));
}

static void managed_memory(void)
{
    CUdeviceptr a = 0;
    CHECK(cuMemAllocManaged(&a, BYTES, CU_MEM_ATTACH_GLOBAL));
    if (a == 0) {
        return;
    }
    uint32_t *words = (uint32_t *)(uintptr_t)a;
    pattern(words, WORDS, 4);
    CHECK(cuMemsetD8(a, 0x44, BYTES / 2));
    CHECK(cuCtxSynchronize());
    tell("managed", checksum(words, WORDS));
    CHECK(cuMemFree(a));
}

static void pinned_memory(void)
{
    void *in = NULL, *out = NULL;
    CUdeviceptr a = 0;
    CUstream stream = NULL;
    CHECK(cuMemHostAlloc(&in, BYTES, 0));
    CHECK(cuMemHostAlloc(&out, BYTES, 1));
    CHECK(cuMemAlloc(&a, BYTES));
    CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    if (in == NULL || out == NULL) {
        return;
    }
    pattern(in, WORDS, 5);
    CHECK(cuMemcpyHtoDAsync(a, in, BYTES, stream));
    CHECK(cuMemcpyDtoHAsync(out, a, BYTES, stream));
    CHECK(cuStreamSynchronize(stream));
    tell("pinned", checksum(out, WORDS));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuMemFree(a));
    CHECK(cuMemFreeHost(in));
    CHECK(cuMemFreeHost(out));
}

static void registered_memory(void)
{
    void *out = NULL;
    CUdeviceptr a = 0;
    if (posix_memalign(&out, 4096, BYTES) != 0) {
        failed++;
        return;
    }
    pattern(out, WORDS, 6);
    CHECK(cuMemHostRegister(out, BYTES, 0));
    CHECK(cuMemAlloc(&a, BYTES));
    CHECK(cuMemsetD8(a, 0x66, BYTES));
    CHECK(cuMemcpyDtoHAsync(out, a, BYTES / 4, NULL));
    CHECK(cuStreamSynchronize(NULL));
    tell("registered", checksum(out, WORDS));
    CHECK(cuMemFree(a));
    CHECK(cuMemHostUnregister(out));
    free(out);
}

static void ordered_memory(const char *kind, int named, uint32_t seed)
{
    void *in = NULL, *out = NULL;
    CUdeviceptr a = 0;
    CUstream stream = NULL;
    CHECK(cuMemHostAlloc(&in, BYTES, 0));
    CHECK(cuMemHostAlloc(&out, BYTES, 0));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (in == NULL || out == NULL) {
        return;
    }
    pattern(in, WORDS, seed);
    if (named) {
        CUmemoryPool pool = NULL;
        CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cuMemAllocFromPoolAsync(&a, BYTES, pool, stream));
    } else {
        CHECK(cuMemAllocAsync(&a, BYTES, stream));
    }
    CHECK(cuMemcpyHtoDAsync(a, in, BYTES, stream));
    CHECK(cuMemsetD8Async(a, 0x77, BYTES / 8, stream));
    CHECK(cuMemcpyDtoHAsync(out, a, BYTES, stream));
    CHECK(cuMemFreeAsync(a, stream));
    CHECK(cuStreamSynchronize(stream));
    tell(kind, checksum(out, WORDS));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuMemFreeHost(in));
    CHECK(cuMemFreeHost(out));
}

static void two_streams(void)
{
    void *in = NULL, *out = NULL;
    CUdeviceptr a = 0, b = 0;
    CUstream first = NULL, second = NULL;
    CUevent written = NULL, read = NULL;
    CHECK(cuMemHostAlloc(&in, BYTES, 0));
    CHECK(cuMemHostAlloc(&out, 2 * BYTES, 0));
    CHECK(cuMemAlloc(&a, BYTES));
    CHECK(cuMemAlloc(&b, BYTES));
    CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&written, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&read, CU_EVENT_DISABLE_TIMING));
    if (in == NULL || out == NULL) {
        return;
    }
    pattern(in, WORDS, 9);
    CHECK(cuMemcpyHtoDAsync(a, in, BYTES, first));
    CHECK(cuEventRecord(written, first));
    CHECK(cuStreamWaitEvent(second, written, 0));
    CHECK(cuMemcpyDtoDAsync(b, a, BYTES, second));
    CHECK(cuEventRecord(read, second));
    CHECK(cuStreamWaitEvent(first, read, 0));
    CHECK(cuMemsetD8Async(a, 0x99, BYTES, first));
    CHECK(cuMemcpyDtoHAsync(out, a, BYTES, first));
    CHECK(cuMemcpyDtoHAsync((char *)out + BYTES, b, BYTES, second));
    CHECK(cuEventSynchronize(read));
    CHECK(cuCtxSynchronize());
    tell("streams", checksum(out, 2 * (size_t)WORDS));
    CHECK(cuEventDestroy(written));
    CHECK(cuEventDestroy(read));
    CHECK(cuStreamDestroy(first));
    CHECK(cuStreamDestroy(second));
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    CHECK(cuMemFreeHost(in));
    CHECK(cuMemFreeHost(out));
}

static void captured_graph(void)
{
    void *out = NULL;
    CUdeviceptr a = 0, b = 0;
    CUstream stream = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CHECK(cuMemHostAlloc(&out, BYTES, 0));
    CHECK(cuMemAlloc(&a, BYTES));
    CHECK(cuMemAlloc(&b, BYTES));
    CHECK(cuMemsetD8(b, 0x0a, BYTES));
    CHECK(cuCtxSynchronize());
    CHECK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    if (out == NULL) {
        return;
    }
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(cuMemsetD8Async(a, 0xaa, BYTES, stream));
    CHECK(cuMemcpyDtoDAsync(b, a, BYTES / 2, stream));
    CHECK(cuMemcpyDtoHAsync(out, b, BYTES, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    tell("graph", checksum(out, WORDS));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    CHECK(cuMemFreeHost(out));
}

int main(void)
{
    CUcontext context = NULL;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    plain_memory();
    rows("pitch", ROW, ROWS, ROWS_WRITTEN, 2, 0x11);
    rows("planes", PLANE_ROW, PLANE_ROWS, PLANE_ROWS_WRITTEN, 3, 0x22);
    managed_memory();
    pinned_memory();
    registered_memory();
    ordered_memory("async", 0, 7);
    ordered_memory("pool", 1, 8);
    two_streams();
    captured_graph();
    CHECK(cuCtxSynchronize());
    CHECK(cuDevicePrimaryCtxRelease(0));
    return failed == 0 ? 0 : 1;
}
