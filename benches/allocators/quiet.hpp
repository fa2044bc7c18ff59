// CUDA's runtime functions that allocators call on every operation, at no cost while timed.
//
// What an event, or a question for the current device, costs in the simulation says nothing about
// a GPU's driver. So in timed loads these answer at once: the best case for whoever calls them, and
// what is left is the allocator's own time. At all other times they are the runtime's own, found
// behind this program. One thread, one device.
#ifndef FOREBAY_BENCH_QUIET_HPP
#define FOREBAY_BENCH_QUIET_HPP

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "bench.hpp"

namespace bench {

/// Whether the functions below answer at once.
inline bool quiet = false;

/// The runtime's own function.
template <class F>
F *next(F *, const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) die(std::string("the runtime has no ") + name);
  return reinterpret_cast<F *>(found);
}

}  // namespace bench

#define FOREBAY_BENCH_QUIET(name, parameters, arguments)              \
  extern "C" cudaError_t name parameters {                            \
    if (bench::quiet) return cudaSuccess;                             \
    static auto *const behind = bench::next(&name, #name);            \
    return behind arguments;                                          \
  }

FOREBAY_BENCH_QUIET(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
FOREBAY_BENCH_QUIET(cudaEventQuery, (cudaEvent_t event), (event))
FOREBAY_BENCH_QUIET(cudaEventSynchronize, (cudaEvent_t event), (event))
FOREBAY_BENCH_QUIET(cudaStreamWaitEvent,
                    (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
                    (stream, event, flags))
FOREBAY_BENCH_QUIET(cudaStreamSynchronize, (cudaStream_t stream), (stream))
FOREBAY_BENCH_QUIET(cudaDeviceSynchronize, (), ())

extern "C" cudaError_t cudaGetDevice(int *device) {
  static auto *const behind = bench::next(&cudaGetDevice, "cudaGetDevice");
  if (!bench::quiet) return behind(device);
  *device = 0;
  return cudaSuccess;
}

#endif
