/* A small inference server on plain CUDA: nothing of Forebay is called or linked.
 *
 * Workers share the model's weights and serve requests, each on a stream of its own: pinned
 * buffers, asynchronous copies, activations from cudaMallocAsync, events between streams. Then each
 * decodes: one step is captured as a graph and launched many times over a history that grows. The
 * weights are opened by a second process, where the runtime can share memory. Every result is
 * checked against the same arithmetic on the CPU, and checksums are printed; they depend on
 * nothing but this file.
 *
 * Usage: inference. Exits with 0 when all was right, 1 when not, 2 when kernels cannot run. */
#include "kernels.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

extern char **environ;

namespace {

constexpr uint32_t WIDTH = 64, BATCH = 4, LAYERS = 3;
constexpr uint32_t WORKERS = 3, REQUESTS = 6, STEPS = 16;
constexpr uint32_t WORDS = WIDTH * BATCH;
constexpr size_t BYTES = WORDS * sizeof(uint32_t);
constexpr size_t LAYER_WORDS = static_cast<size_t>(WIDTH) * WIDTH;
constexpr size_t WEIGHT_BYTES = LAYERS * LAYER_WORDS * sizeof(uint32_t);

[[noreturn]] void fail(const char *call, cudaError_t code)
{
    std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorName(code));
    std::exit(1);
}

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            fail(#call, code_);                                                                    \
        }                                                                                          \
    } while (0)

uint64_t checksum(const uint32_t *words, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += static_cast<uint64_t>(words[i]) * (i + 1);
    }
    return sum;
}

void fill(uint32_t *to, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = static_cast<uint32_t>(i) * 2654435761u + seed * 40503u + 1;
    }
}

/* All layers of a request on the CPU. */
std::vector<uint32_t> forward(std::vector<uint32_t> rows, const std::vector<uint32_t> &weights)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        std::vector<uint32_t> out(WORDS);
        for (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t *of = weights.data() + layer * LAYER_WORDS + (i % WIDTH) * WIDTH;
            out[i] = dense_element(rows.data() + i / WIDTH * WIDTH, of, WIDTH);
        }
        rows = out;
    }
    return rows;
}

/* The decoded state on the CPU. */
std::vector<uint32_t> decoded(std::vector<uint32_t> state, const std::vector<uint32_t> &weights)
{
    std::vector<uint32_t> history;
    for (uint32_t step = 1; step <= STEPS; step++) {
        std::vector<uint32_t> row(WORDS);
        for (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t *of = weights.data() + (i % WIDTH) * WIDTH;
            row[i] = dense_element(state.data() + i / WIDTH * WIDTH, of, WIDTH);
        }
        history.insert(history.end(), row.begin(), row.end());
        for (uint32_t i = 0; i < WORDS; i++) {
            state[i] = attend_element(history.data(), step, WORDS, i);
        }
    }
    return state;
}

/* What workers share. */
struct Model {
    std::vector<uint32_t> host;
    uint32_t *weights = nullptr;
    cudaEvent_t ready = nullptr;
};

struct Worker {
    uint32_t number = 0;
    const Model *model = nullptr;
    uint64_t requests = 0, state = 0;
    bool right = true;

    void run()
    {
        CHECK(cudaSetDevice(0));
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaStreamWaitEvent(stream, model->ready, 0));
        CHECK(cudaMallocHost(reinterpret_cast<void **>(&in), BYTES));
        CHECK(cudaHostAlloc(reinterpret_cast<void **>(&out), BYTES, cudaHostAllocPortable));
        for (uint32_t i = 0; i < REQUESTS; i++) {
            request(i);
        }
        decode();
        CHECK(cudaFreeHost(in));
        CHECK(cudaFreeHost(out));
        CHECK(cudaStreamDestroy(stream));
    }

  private:
    cudaStream_t stream = nullptr;
    uint32_t *in = nullptr, *out = nullptr;

    /* Takes what came back into the checksum, and compares it. */
    uint64_t judge(const std::vector<uint32_t> &expected)
    {
        right = right && std::memcmp(expected.data(), out, BYTES) == 0;
        return checksum(out, WORDS);
    }

    void request(uint32_t i)
    {
        uint32_t *from = nullptr, *to = nullptr;
        fill(in, WORDS, 1000 * (number + 1) + i);
        CHECK(cudaMallocAsync(reinterpret_cast<void **>(&from), BYTES, stream));
        CHECK(cudaMallocAsync(reinterpret_cast<void **>(&to), BYTES, stream));
        CHECK(cudaMemcpyAsync(from, in, BYTES, cudaMemcpyHostToDevice, stream));
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const uint32_t *of = model->weights + layer * LAYER_WORDS;
            CHECK(launch_dense(stream, from, of, to, WIDTH, BATCH));
            std::swap(from, to);
        }
        CHECK(cudaMemcpyAsync(out, from, BYTES, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaFreeAsync(from, stream));
        CHECK(cudaFreeAsync(to, stream));
        CHECK(cudaStreamSynchronize(stream));
        requests += judge(forward(std::vector<uint32_t>(in, in + WORDS), model->host));
    }

    void decode()
    {
        uint32_t *current = nullptr, *row = nullptr, *history = nullptr, *length = nullptr;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cudaEvent_t start = nullptr, end = nullptr;
        fill(in, WORDS, 7 * (number + 1));
        CHECK(cudaMalloc(reinterpret_cast<void **>(&current), BYTES));
        CHECK(cudaMalloc(reinterpret_cast<void **>(&row), BYTES));
        CHECK(cudaMalloc(reinterpret_cast<void **>(&history), BYTES * STEPS));
        CHECK(cudaMalloc(reinterpret_cast<void **>(&length), sizeof(uint32_t)));
        CHECK(cudaEventCreate(&start));
        CHECK(cudaEventCreate(&end));
        CHECK(cudaMemsetAsync(length, 0, sizeof(uint32_t), stream));
        CHECK(cudaMemcpyAsync(current, in, BYTES, cudaMemcpyHostToDevice, stream));
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        CHECK(launch_dense(stream, current, model->weights, row, WIDTH, BATCH));
        CHECK(launch_append(stream, history, length, row, WORDS));
        CHECK(launch_attend(stream, history, length, current, WORDS));
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaEventRecord(start, stream));
        for (uint32_t step = 0; step < STEPS; step++) {
            CHECK(cudaGraphLaunch(exec, stream));
        }
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaMemcpyAsync(out, current, BYTES, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms = -1;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        right = right && ms >= 0;
        state = judge(decoded(std::vector<uint32_t>(in, in + WORDS), model->host));
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaEventDestroy(start));
        CHECK(cudaEventDestroy(end));
        for (void *memory : {current, row, history, length}) {
            CHECK(cudaFree(memory));
        }
    }
};

/* The second process: opens the weights by their handle, given as hexadecimal digits. */
int reader(const char *digits)
{
    cudaIpcMemHandle_t handle;
    for (size_t i = 0; i < sizeof handle; i++) {
        const char pair[] = {digits[2 * i], digits[2 * i + 1], 0};
        handle.reserved[i] = static_cast<char>(std::strtoul(pair, nullptr, 16));
    }
    void *weights = nullptr;
    std::vector<uint32_t> words(LAYERS * LAYER_WORDS), expected(words.size());
    CHECK(cudaIpcOpenMemHandle(&weights, handle, cudaIpcMemLazyEnablePeerAccess));
    CHECK(cudaMemcpy(words.data(), weights, WEIGHT_BYTES, cudaMemcpyDeviceToHost));
    CHECK(cudaIpcCloseMemHandle(weights));
    fill(expected.data(), expected.size(), 1);
    std::printf("ipc %016llx\n",
                static_cast<unsigned long long>(checksum(words.data(), words.size())));
    return words == expected ? 0 : 1;
}

/* Has the weights read by a second process; whether it read them right. */
bool share(uint32_t *weights)
{
    cudaIpcMemHandle_t handle;
    cudaError_t code = cudaIpcGetMemHandle(&handle, weights);
    if (code == cudaErrorNotSupported) {
        cudaGetLastError();
        std::printf("ipc not available\n");
        return true;
    }
    CHECK(code);
    std::string digits;
    for (char byte : handle.reserved) {
        char pair[3];
        std::snprintf(pair, sizeof pair, "%02x", static_cast<unsigned char>(byte));
        digits += pair;
    }
    std::fflush(stdout);
    char self[] = "/proc/self/exe", option[] = "--read";
    char *words[] = {self, option, digits.data(), nullptr};
    pid_t child = 0;
    int status = -1;
    if (posix_spawn(&child, self, nullptr, nullptr, words, environ) != 0 ||
        waitpid(child, &status, 0) != child) {
        return false;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

} // namespace

int main(int count, char **words)
{
    if (count == 3 && std::strcmp(words[1], "--read") == 0) {
        return reader(words[2]);
    }
    if (!kernels_ready()) {
        std::fprintf(stderr, "kernels need nvcc, or a runtime that takes bodies for the CPU\n");
        return 2;
    }
    Model model;
    model.host.resize(LAYERS * LAYER_WORDS);
    fill(model.host.data(), model.host.size(), 1);
    cudaStream_t loading = nullptr;
    CHECK(cudaStreamCreate(&loading));
    CHECK(cudaMalloc(reinterpret_cast<void **>(&model.weights), WEIGHT_BYTES));
    CHECK(cudaEventCreateWithFlags(&model.ready, cudaEventDisableTiming));
    CHECK(cudaMemcpyAsync(model.weights, model.host.data(), WEIGHT_BYTES, cudaMemcpyHostToDevice,
                          loading));
    CHECK(cudaEventRecord(model.ready, loading));
    std::vector<Worker> workers(WORKERS);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i].number = i;
        workers[i].model = &model;
        threads.emplace_back([&workers, i] { workers[i].run(); });
    }
    bool right = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        threads[i].join();
        std::printf("worker %u requests %016llx state %016llx\n", i,
                    static_cast<unsigned long long>(workers[i].requests),
                    static_cast<unsigned long long>(workers[i].state));
        right = right && workers[i].right;
    }
    right = share(model.weights) && right;
    CHECK(cudaEventDestroy(model.ready));
    CHECK(cudaStreamDestroy(loading));
    CHECK(cudaFree(model.weights));
    CHECK(cudaDeviceSynchronize());
    std::printf("%s\n", right ? "right" : "wrong");
    return right ? 0 : 1;
}
