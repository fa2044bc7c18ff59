// RMM 25.4's resources, header only, over `cudaMalloc` of the simulated runtime.
//
// `rmm-pool`, `rmm-arena` and what lies over a pool are given their memory at the start where time
// or the smallest device is asked for, which is their best case (free blocks of two upstream blocks
// are never joined). For the memory that they use, the pool grows by itself; an arena never does.
#include "quiet.hpp"

#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/binning_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/fixed_size_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

#include <memory>

namespace {

using cuda_memory = rmm::mr::cuda_memory_resource;
using pool_memory = rmm::mr::pool_memory_resource<cuda_memory>;
using arena_memory = rmm::mr::arena_memory_resource<cuda_memory>;
using binning_memory = rmm::mr::binning_memory_resource<pool_memory>;
using fixed_memory = rmm::mr::fixed_size_memory_resource<cuda_memory>;

/// What a resource is given at the start where the device is larger than any load.
constexpr std::size_t ample = std::size_t{64} << 30;

struct resource {
  std::unique_ptr<rmm::mr::device_memory_resource> memory;
  rmm::cuda_stream_view stream{};

  void *take(std::size_t bytes) { return memory->allocate(bytes, stream); }
  void give(void *block, std::size_t bytes) { memory->deallocate(block, bytes, stream); }
};

cuda_memory upstream;

std::unique_ptr<pool_memory> pool(bool grows, std::size_t bytes) {
  if (grows) return std::make_unique<pool_memory>(&upstream, 0);
  return std::make_unique<pool_memory>(&upstream, bytes, bytes);
}

std::unique_ptr<rmm::mr::device_memory_resource> make(const std::string &name, bool grows,
                                                      std::size_t bytes) {
  if (name == "rmm-pool") return pool(grows, bytes);
  if (name == "rmm-arena") return std::make_unique<arena_memory>(&upstream, bytes);
  // Beside blocks of one size: no other is asked for.
  if (name == "rmm-fixed") return std::make_unique<fixed_memory>(&upstream, bench::hot_bytes);
  // Lives as long as the program, as what lies over it does.
  pool_memory *below = pool(grows, bytes).release();
  if (name == "rmm-binning") return std::make_unique<binning_memory>(below, 18, 22);
  if (name == "rmm-binning-small") return std::make_unique<binning_memory>(below, 8, 20);
  bench::die("no allocator is called " + name);
}

}  // namespace

int main(int count, char **words) {
  const bench::request request(count, words);
  rmm::default_logger().set_level(rapids_logger::level_enum::off);
  bench::device device;
  const bool grows = request.asked == bench::mode::use;
  resource allocator;
  try {
    allocator.memory =
        make(request.allocator, grows, std::min(device.total(), ample));
  } catch (const std::exception &error) {
    if (request.asked != bench::mode::fits) bench::die(error.what());
    std::puts("full");
    return 0;
  }
  bench::hush(request.asked);
  return bench::run(allocator, request.asked, request.what, &device);
}
