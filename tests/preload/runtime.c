/* Memory of every kind through CUDA's runtime: allocate, move data, print checksums. */
#define _POSIX_C_SOURCE 200809L
#include "runtime.h"

#include "checks.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (WORDS * sizeof(uint32_t))

static int failed;

static void expect(cudaError_t code, const char *call, int line)
{
    if (code != cudaSuccess) {
        fprintf(stderr, "line %d: %s: %s\n", line, call, cudaGetErrorName(code));
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
    void *a = NULL, *b = NULL;
    pattern(in, WORDS, 1);
    CHECK(cudaMalloc(&a, BYTES));
    CHECK(cudaMalloc(&b, BYTES));
    CHECK(cudaMemcpy(a, in, BYTES, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(b, 0x5a, BYTES));
    CHECK(cudaMemcpy(b, (char *)a + BYTES / 2, BYTES / 2, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(out, b, BYTES, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    tell("malloc", checksum(out, WORDS));
}

static void pitched_memory(void)
{
    static uint32_t in[ROW * ROWS / 4], out[ROW * ROWS / 4];
    void *a = NULL;
    size_t pitch = 0;
    pattern(in, ROW * ROWS / 4, 2);
    CHECK(cudaMallocPitch(&a, &pitch, ROW, ROWS));
    CHECK(cudaMemset2D(a, pitch, 0x11, ROW, ROWS));
    CHECK(cudaMemcpy2D(a, pitch, in, ROW, ROW, ROWS_WRITTEN, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(out, ROW, a, pitch, ROW, ROWS, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(a));
    tell("pitch", checksum(out, ROW * ROWS / 4));
}

static void planes(void)
{
    static uint32_t in[PLANE_ROW * PLANE_ROWS / 4], out[PLANE_ROW * PLANE_ROWS / 4];
    struct cudaPitchedPtr a = {NULL, 0, 0, 0};
    struct cudaExtent extent = {PLANE_ROW, PLANE_ROWS / 4, 4};
    pattern(in, PLANE_ROW * PLANE_ROWS / 4, 3);
    CHECK(cudaMalloc3D(&a, extent));
    CHECK(cudaMemset2D(a.ptr, a.pitch, 0x22, PLANE_ROW, PLANE_ROWS));
    CHECK(cudaMemcpy2D(a.ptr, a.pitch, in, PLANE_ROW, PLANE_ROW, PLANE_ROWS_WRITTEN,
                       cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(out, PLANE_ROW, a.ptr, a.pitch, PLANE_ROW, PLANE_ROWS,
                       cudaMemcpyDeviceToHost));
    CHECK(cudaFree(a.ptr));
    tell("planes", checksum(out, PLANE_ROW * PLANE_ROWS / 4));
}

static void managed_memory(void)
{
    void *a = NULL;
    CHECK(cudaMallocManaged(&a, BYTES, cudaMemAttachGlobal));
    if (a == NULL) {
        return;
    }
    pattern(a, WORDS, 4);
    CHECK(cudaMemset(a, 0x44, BYTES / 2));
    CHECK(cudaDeviceSynchronize());
    tell("managed", checksum(a, WORDS));
    CHECK(cudaFree(a));
}

static void pinned_memory(void)
{
    void *in = NULL, *out = NULL, *a = NULL;
    cudaStream_t stream = NULL;
    CHECK(cudaMallocHost(&in, BYTES));
    CHECK(cudaHostAlloc(&out, BYTES, cudaHostAllocPortable));
    CHECK(cudaMalloc(&a, BYTES));
    CHECK(cudaStreamCreate(&stream));
    if (in == NULL || out == NULL) {
        return;
    }
    pattern(in, WORDS, 5);
    CHECK(cudaMemcpyAsync(a, in, BYTES, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(out, a, BYTES, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    tell("pinned", checksum(out, WORDS));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(a));
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
}

static void registered_memory(void)
{
    void *out = NULL, *a = NULL;
    if (posix_memalign(&out, 4096, BYTES) != 0) {
        failed++;
        return;
    }
    pattern(out, WORDS, 6);
    CHECK(cudaHostRegister(out, BYTES, cudaHostRegisterDefault));
    CHECK(cudaMalloc(&a, BYTES));
    CHECK(cudaMemset(a, 0x66, BYTES));
    CHECK(cudaMemcpyAsync(out, a, BYTES / 4, cudaMemcpyDeviceToHost, 0));
    CHECK(cudaStreamSynchronize(0));
    tell("registered", checksum(out, WORDS));
    CHECK(cudaFree(a));
    CHECK(cudaHostUnregister(out));
    free(out);
}

/* Memory in stream order, of the device's current pool or of one that is named. */
static void ordered_memory(const char *kind, int named, uint32_t seed)
{
    void *in = NULL, *out = NULL, *a = NULL;
    cudaStream_t stream = NULL;
    CHECK(cudaMallocHost(&in, BYTES));
    CHECK(cudaMallocHost(&out, BYTES));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (in == NULL || out == NULL) {
        return;
    }
    pattern(in, WORDS, seed);
    if (named) {
        cudaMemPool_t pool = NULL;
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cudaMallocFromPoolAsync(&a, BYTES, pool, stream));
    } else {
        CHECK(cudaMallocAsync(&a, BYTES, stream));
    }
    CHECK(cudaMemcpyAsync(a, in, BYTES, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(a, 0x77, BYTES / 8, stream));
    CHECK(cudaMemcpyAsync(out, a, BYTES, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaStreamSynchronize(stream));
    tell(kind, checksum(out, WORDS));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
}

static void two_streams(void)
{
    void *in = NULL, *out = NULL, *a = NULL, *b = NULL;
    cudaStream_t first = NULL, second = NULL;
    cudaEvent_t written = NULL, read = NULL;
    CHECK(cudaMallocHost(&in, BYTES));
    CHECK(cudaMallocHost(&out, 2 * BYTES));
    CHECK(cudaMalloc(&a, BYTES));
    CHECK(cudaMalloc(&b, BYTES));
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
    if (in == NULL || out == NULL) {
        return;
    }
    pattern(in, WORDS, 9);
    CHECK(cudaMemcpyAsync(a, in, BYTES, cudaMemcpyHostToDevice, first));
    CHECK(cudaEventRecord(written, first));
    CHECK(cudaStreamWaitEvent(second, written, 0));
    CHECK(cudaMemcpyAsync(b, a, BYTES, cudaMemcpyDeviceToDevice, second));
    CHECK(cudaEventRecord(read, second));
    CHECK(cudaStreamWaitEvent(first, read, 0));
    CHECK(cudaMemsetAsync(a, 0x99, BYTES, first));
    CHECK(cudaMemcpyAsync(out, a, BYTES, cudaMemcpyDeviceToHost, first));
    CHECK(cudaMemcpyAsync((char *)out + BYTES, b, BYTES, cudaMemcpyDeviceToHost, second));
    CHECK(cudaEventSynchronize(read));
    CHECK(cudaDeviceSynchronize());
    tell("streams", checksum(out, 2 * (size_t)WORDS));
    CHECK(cudaEventDestroy(written));
    CHECK(cudaEventDestroy(read));
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFreeHost(in));
    CHECK(cudaFreeHost(out));
}

static void captured_graph(void)
{
    void *out = NULL, *a = NULL, *b = NULL;
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    CHECK(cudaMallocHost(&out, BYTES));
    CHECK(cudaMalloc(&a, BYTES));
    CHECK(cudaMalloc(&b, BYTES));
    CHECK(cudaMemset(b, 0x0a, BYTES));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamCreate(&stream));
    if (out == NULL) {
        return;
    }
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemsetAsync(a, 0xaa, BYTES, stream));
    CHECK(cudaMemcpyAsync(b, a, BYTES / 2, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemcpyAsync(out, b, BYTES, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    tell("graph", checksum(out, WORDS));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(a));
    CHECK(cudaFree(b));
    CHECK(cudaFreeHost(out));
}

int run_checks(void)
{
    failed = 0;
    CHECK(cudaSetDevice(0));
    plain_memory();
    pitched_memory();
    planes();
    managed_memory();
    pinned_memory();
    registered_memory();
    ordered_memory("async", 0, 7);
    ordered_memory("pool", 1, 8);
    two_streams();
    captured_graph();
    CHECK(cudaDeviceSynchronize());
    fflush(stdout);
    return failed;
}
