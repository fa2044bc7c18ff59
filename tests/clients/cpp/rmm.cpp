// RMM over Forebay, in the form that this version of RMM has: as the current resource of the
// device, under RMM's own pool, with RMM's exceptions. The device is the simulated one.
#include <forebay_rmm.hpp>

#include "check.hpp"
#include "pools.hpp"

#include <rmm/device_buffer.hpp>

#if FOREBAY_RMM_HAS_BASE
#include <rmm/mr/device/per_device_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>
#include <rmm/mr/device/statistics_resource_adaptor.hpp>
#else
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#endif

#include <string>

namespace {

// What each form calls an allocation.
#if FOREBAY_RMM_HAS_BASE
template <class R>
void *take(R &resource, std::size_t bytes) {
  return resource.allocate(bytes, rmm::cuda_stream_view{});
}
template <class R>
void give(R &resource, void *block, std::size_t bytes) {
  resource.deallocate(block, bytes, rmm::cuda_stream_view{});
}
auto *passed(forebay::rmm_resource &resource) { return &resource; }
void put_back() { rmm::mr::set_current_device_resource(nullptr); }
#else
template <class R>
void *take(R &resource, std::size_t bytes) {
  return resource.allocate(cuda::stream_ref{cudaStream_t{nullptr}}, bytes, 256);
}
template <class R>
void give(R &resource, void *block, std::size_t bytes) {
  resource.deallocate(cuda::stream_ref{cudaStream_t{nullptr}}, block, bytes, 256);
}
forebay::rmm_resource passed(const forebay::rmm_resource &resource) { return resource; }
void put_back() { rmm::mr::reset_current_device_resource(); }
#endif

void as_the_current_resource(const forebay::pool &pool) {
  forebay::rmm_resource resource(pool);
  rmm::mr::set_current_device_resource(passed(resource));
  {
    rmm::device_buffer small(1000, rmm::cuda_stream_view{});
    rmm::device_buffer large(mib(5), rmm::cuda_stream_view{});
    CHECK(forebay_owns(small.data()) && forebay_owns(large.data()));
    CHECK(pool.stats().live_blocks == 2);
    CHECK(pool.stats().live_bytes == 1024 + mib(5));
  }
  CHECK(pool.stats().live_blocks == 0);
  put_back();
}

void under_rmms_pool(const forebay::pool &pool) {
  forebay::rmm_resource upstream(pool);
  {
#if FOREBAY_RMM_HAS_BASE
    rmm::mr::pool_memory_resource<forebay::rmm_resource> over(&upstream, mib(4), mib(32));
#else
    rmm::mr::pool_memory_resource over(upstream, mib(4), mib(32));
#endif
    CHECK(pool.stats().live_bytes == mib(4));
#if FOREBAY_RMM_HAS_BASE
    // Later pools record events by a runtime of their own, inside librmm.so, which does not start
    // on a simulated driver: there only the upstream's part is shown.
    void *first = take(over, mib(1));
    void *second = take(over, mib(6));
    CHECK(forebay_owns(first) && forebay_owns(second));
    CHECK(pool.stats().live_bytes > mib(4) && pool.stats().live_blocks == 2);
    give(over, first, mib(1));
    give(over, second, mib(6));
#endif
  }
  CHECK(pool.stats().live_blocks == 0);
}

void under_an_adaptor(const forebay::pool &pool) {
  forebay::rmm_resource upstream(pool);
#if FOREBAY_RMM_HAS_BASE
  rmm::mr::statistics_resource_adaptor<forebay::rmm_resource> counted(&upstream);
#else
  rmm::mr::statistics_resource_adaptor counted(upstream);
#endif
  void *block = take(counted, mib(3));
  CHECK(counted.get_bytes_counter().value == static_cast<std::int64_t>(mib(3)));
  CHECK(pool.stats().live_bytes == mib(3));
  give(counted, block, mib(3));
  CHECK(counted.get_bytes_counter().value == 0 && pool.stats().live_blocks == 0);
}

void no_memory_is_rmms_exception(const forebay::pool &pool) {
  forebay::rmm_resource resource(pool);
  bool thrown = false;
  try {
    static_cast<void>(take(resource, mib(4096)));
  } catch (const rmm::out_of_memory &error) {
    thrown = std::string(error.what()).find("4294967296 bytes requested") != std::string::npos;
  }
  CHECK(thrown);
  CHECK(take(resource, 0) == nullptr);
  give(resource, nullptr, 0);
}

void equality(const forebay::pool &pool) {
  const forebay::pool other = make_pool(mib(16));
  const forebay::rmm_resource a(pool);
  const forebay::rmm_resource b(pool);
  const forebay::rmm_resource elsewhere(other);
#if FOREBAY_RMM_HAS_BASE
  CHECK(a.is_equal(b) && !a.is_equal(elsewhere));
#else
  CHECK(a == b && a != elsewhere);
#endif
}

}  // namespace

int main() {
  const forebay::pool pool = make_pool(mib(64));
  as_the_current_resource(pool);
  under_rmms_pool(pool);
  under_an_adaptor(pool);
  no_memory_is_rmms_exception(pool);
  equality(pool);
  return shown("RMM takes its memory from a pool");
}
