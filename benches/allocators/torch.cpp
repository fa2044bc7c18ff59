// PyTorch's own CUDA allocator: `libc10_cuda.so` of its wheel, without Python.
//
// `torch` has the defaults; `torch-expandable` is told so by PYTORCH_CUDA_ALLOC_CONF, which the
// caller sets, since the library reads it as it is loaded.
#include "quiet.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/PeerToPeerAccess.h>

namespace {

struct caching {
  void *take(std::size_t bytes) { return c10::cuda::CUDACachingAllocator::raw_alloc(bytes); }
  void give(void *block, std::size_t) { c10::cuda::CUDACachingAllocator::raw_delete(block); }
};

}  // namespace

int main(int count, char **words) {
  const bench::request request(count, words);
  bench::device device;
  const int devices = c10::cuda::device_count();
  c10::cuda::CUDACachingAllocator::init(devices);
  c10::cuda::set_device(0);
  c10::cuda::detail::init_p2p_access_cache(devices);
  caching allocator;
  bench::hush(request.asked);
  return bench::run(allocator, request.asked, request.what, &device);
}
