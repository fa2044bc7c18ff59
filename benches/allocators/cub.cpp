// CUB's CachingDeviceAllocator over `cudaMalloc` of the simulated runtime.
//
// Bins double from 256 bytes to 128 MiB and nothing is given back before memory runs out: with the
// defaults (bins that grow eightfold to 2 MiB, 6 MB cached) most frees of these loads would reach
// the driver.
#include "quiet.hpp"

#include <cub/util_allocator.cuh>

namespace {

struct caching {
  cub::CachingDeviceAllocator allocator{
      2, 8, 27, cub::CachingDeviceAllocator::INVALID_SIZE, false};

  void *take(std::size_t bytes) {
    void *block = nullptr;
    return allocator.DeviceAllocate(0, &block, bytes, nullptr) == cudaSuccess ? block : nullptr;
  }
  void give(void *block, std::size_t) {
    if (allocator.DeviceFree(0, block) != cudaSuccess) bench::die("a free failed");
  }
};

}  // namespace

int main(int count, char **words) {
  const bench::request request(count, words);
  bench::device device;
  caching allocator;
  bench::hush(request.asked);
  return bench::run(allocator, request.asked, request.what, &device);
}
