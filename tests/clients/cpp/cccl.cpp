// CCCL's own wrappers over a Forebay pool: a reference, an owner, a property. The device is the
// simulated one.
#include <forebay_cccl.hpp>

#include "check.hpp"
#include "pools.hpp"

#include <utility>

namespace {

#if defined(CCCL_MAJOR_VERSION) && CCCL_MAJOR_VERSION >= 3
using reference = cuda::mr::resource_ref<cuda::mr::device_accessible>;
static_assert(!cuda::mr::resource_with<forebay::stream_resource, cuda::mr::host_accessible>);

void *take(reference &memory, cuda::stream_ref stream, std::size_t bytes) {
  return memory.allocate(stream, bytes, 256);
}
void give(reference &memory, cuda::stream_ref stream, void *block, std::size_t bytes) {
  memory.deallocate(stream, block, bytes, 256);
}
#else
using reference = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
static_assert(!cuda::mr::resource_with<forebay::stream_resource, cuda::mr::host_accessible>);

void *take(reference &memory, cuda::stream_ref stream, std::size_t bytes) {
  return memory.allocate_async(bytes, 256, stream);
}
void give(reference &memory, cuda::stream_ref stream, void *block, std::size_t bytes) {
  memory.deallocate_async(block, bytes, 256, stream);
}
#endif

}  // namespace

int main() {
  const forebay::pool pool = make_pool(mib(64));
  const forebay::stream made(pool);
  const cuda::stream_ref stream{static_cast<cudaStream_t>(made.get())};
  forebay::stream_resource resource(pool);
  reference memory(resource);
  void *first = take(memory, stream, 1000);
  void *second = take(memory, stream, mib(3));
  CHECK(forebay_owns(first) && forebay_owns(second) && first != second);
  CHECK(pool.stats().live_bytes == 1024 + mib(3));
  give(memory, stream, first, 1000);
  give(memory, stream, second, mib(3));
  // A stream has its memory back at once.
  CHECK(take(memory, stream, 1000) == first);
  give(memory, stream, first, 1000);
  CHECK_THROWS(std::bad_alloc, take(memory, stream, mib(100)));
  CHECK(pool.stats().live_blocks == 0);
#if defined(CCCL_MAJOR_VERSION) && CCCL_MAJOR_VERSION >= 3
  {
    cuda::mr::any_resource<cuda::mr::device_accessible> owner(resource);
    cuda::mr::any_resource<cuda::mr::device_accessible> copy = owner;
    CHECK(copy == owner);
    void *block = copy.allocate(stream, mib(1), 256);
    CHECK(pool.stats().live_bytes == mib(1));
    owner.deallocate(stream, block, mib(1), 256);
  }
  CHECK(pool.stats().live_blocks == 0);
#endif
  return shown("CCCL's wrappers take their memory from a pool");
}
