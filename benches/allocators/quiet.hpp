// CUDA's runtime functions that allocators call on every operation, at a known cost while timed.
//
// What an event, or a question for the current device, costs in the simulation says nothing about
// a GPU's driver. So in timed loads these do nothing: questions cost nothing, and an event recorded
// or asked costs what BENCH_EVENT_NS says, or nothing, the best case for whoever calls them. At all
// other times they are the runtime's own, found behind this program. One thread, one device.
#ifndef FOREBAY_BENCH_QUIET_HPP
#define FOREBAY_BENCH_QUIET_HPP

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "bench.hpp"

namespace bench {

/// Whether the functions below do nothing.
inline bool quiet = false;
/// What an event costs then, in nanoseconds.
inline long event_ns = 0;

/// Begins timed loads, if that is what is asked for.
inline void hush(mode asked) {
  quiet = asked == mode::time;
  const char *cost = std::getenv("BENCH_EVENT_NS");
  if (cost != nullptr) event_ns = std::strtol(cost, nullptr, 10);
}

/// Lets the time of an event pass on this thread's CPU.
inline cudaError_t event_passes() {
  if (event_ns == 0) return cudaSuccess;
  const double until = wall_ns() + static_cast<double>(event_ns);
  while (wall_ns() < until) {
  }
  return cudaSuccess;
}

/// The runtime's own function.
template <class F>
F *next(F *, const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) die(std::string("the runtime has no ") + name);
  return reinterpret_cast<F *>(found);
}

}  // namespace bench

#define FOREBAY_BENCH_QUIET(meanwhile, name, parameters, arguments)    \
  extern "C" cudaError_t name parameters {                             \
    if (bench::quiet) return meanwhile;                                \
    static auto *const behind = bench::next(&name, #name);             \
    return behind arguments;                                           \
  }

FOREBAY_BENCH_QUIET(bench::event_passes(), cudaEventRecord,
                    (cudaEvent_t event, cudaStream_t stream), (event, stream))
FOREBAY_BENCH_QUIET(bench::event_passes(), cudaEventQuery, (cudaEvent_t event), (event))
FOREBAY_BENCH_QUIET(bench::event_passes(), cudaEventSynchronize, (cudaEvent_t event), (event))
FOREBAY_BENCH_QUIET(bench::event_passes(), cudaStreamWaitEvent,
                    (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
                    (stream, event, flags))
FOREBAY_BENCH_QUIET(cudaSuccess, cudaStreamSynchronize, (cudaStream_t stream), (stream))
FOREBAY_BENCH_QUIET(cudaSuccess, cudaDeviceSynchronize, (), ())
FOREBAY_BENCH_QUIET(cudaSuccess, cudaSetDevice, (int device), (device))
FOREBAY_BENCH_QUIET(cudaSuccess, cudaGetLastError, (), ())
FOREBAY_BENCH_QUIET(cudaSuccess, cudaPeekAtLastError, (), ())
FOREBAY_BENCH_QUIET((*device = 0, cudaSuccess), cudaGetDevice, (int *device), (device))
FOREBAY_BENCH_QUIET((*count = 1, cudaSuccess), cudaGetDeviceCount, (int *count), (count))

#endif
