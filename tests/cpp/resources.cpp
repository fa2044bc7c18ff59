// Memory resources: std::pmr containers over a pool and over pinned memory, alignments up to
// 2 MiB, and the stream-ordered shape that CUDA and RMM code calls. Containers touch their
// elements, so this runs on the host backend.
#include "check.hpp"
#include "pools.hpp"

#include <map>
#include <memory_resource>
#include <string>
#include <vector>

namespace {

void containers(const forebay::pool &pool) {
  forebay::memory_resource resource(pool);
  {
    std::pmr::vector<int> numbers(&resource);
    for (int i = 0; i < 100000; ++i) numbers.push_back(i);
    std::pmr::map<int, std::pmr::string> names(&resource);
    for (int i = 0; i < 1000; ++i) names.emplace(i, std::string(100, 'a'));
    for (int i = 0; i < 100000; ++i) CHECK(numbers[static_cast<std::size_t>(i)] == i);
    for (const auto &[key, name] : names) CHECK(name.size() == 100 && name[99] == 'a');
    CHECK(pool.stats().live_blocks > 1000);
  }
  CHECK(pool.stats().live_blocks == 0);
}

void alignments(const forebay::pool &pool) {
  forebay::memory_resource resource(pool);
  for (std::size_t alignment = 1; alignment <= forebay::max_alignment; alignment *= 2) {
    void *block = resource.allocate(1000, alignment);
    CHECK(block != nullptr && reinterpret_cast<std::uintptr_t>(block) % alignment == 0);
    resource.deallocate(block, 1000, alignment);
  }
  CHECK_THROWS(forebay::failure, resource.allocate(1000, 2 * forebay::max_alignment));
  CHECK_THROWS(std::bad_alloc, resource.allocate(mib(100)));
  void *empty = resource.allocate(0, 1);
  CHECK(empty != nullptr);
  resource.deallocate(empty, 0, 1);
  CHECK(pool.stats().live_blocks == 0);
}

void equality(const forebay::pool &pool) {
  const forebay::stream stream(pool);
  const forebay::pool other = make_pool(mib(16));
  const forebay::memory_resource a(pool);
  const forebay::memory_resource b(pool);
  const forebay::memory_resource on_stream(pool, stream);
  const forebay::memory_resource elsewhere(other);
  const forebay::pinned_resource pinned;
  CHECK(a == b && a != on_stream && a != elsewhere && a != pinned);
  CHECK(pinned == forebay::pinned_resource() && pinned != *std::pmr::new_delete_resource());
  CHECK(forebay::stream_resource(pool) == forebay::stream_resource(pool));
  CHECK(forebay::stream_resource(pool) != forebay::stream_resource(other));
}

void pinned() {
  forebay::pinned_resource resource;
  std::pmr::vector<double> numbers(&resource);
  for (int i = 0; i < 50000; ++i) numbers.push_back(i * 0.5);
  for (int i = 0; i < 50000; ++i) CHECK(numbers[static_cast<std::size_t>(i)] == i * 0.5);
  CHECK_THROWS(forebay::failure, resource.allocate(100, 4096));
}

// Stands for cuda::stream_ref and rmm::cuda_stream_view, which name their handle so.
struct with_get {
  void *handle;
  void *get() const noexcept { return handle; }
};
struct with_value {
  void *handle;
  void *value() const noexcept { return handle; }
};

// Code written for either shape of resource.
template <class Resource, class Stream>
void *new_names(Resource resource, Stream stream) {
  void *block = resource.allocate(stream, 1000, 256);
  resource.deallocate(stream, block, 1000, 256);
  block = resource.allocate_sync(1000);
  resource.deallocate_sync(block, 1000);
  return resource.allocate(stream, 1000);
}
template <class Resource, class Stream>
void old_names(Resource resource, Stream stream, void *block) {
  resource.deallocate_async(block, 1000, stream);
  block = resource.allocate_async(1000, 512, stream);
  CHECK(reinterpret_cast<std::uintptr_t>(block) % 512 == 0);
  resource.deallocate_async(block, 1000, 512, stream);
  block = resource.allocate(1000, 64);
  resource.deallocate(block, 1000, 64);
}

void stream_ordered(const forebay::pool &pool) {
  const forebay::stream stream(pool);
  const forebay::stream_resource resource(pool);
  old_names(resource, with_value{stream.get()}, new_names(resource, with_get{stream.get()}));
  static_assert(noexcept(forebay::stream_resource(pool).deallocate(nullptr, 0)));
  forebay::stream_resource mutable_resource(pool);
  CHECK_THROWS(std::bad_alloc, mutable_resource.allocate(stream, mib(100)));
  CHECK_THROWS(forebay::failure, mutable_resource.allocate(stream, 100, 3));
  CHECK_THROWS(forebay::failure, mutable_resource.allocate(stream, 100, 0));
  CHECK(mutable_resource.allocate(stream, 0) == nullptr);
  mutable_resource.deallocate(stream, nullptr, 0);
  CHECK(pool.stats().live_blocks == 0);
}

}  // namespace

int main() {
  const forebay::pool pool = make_pool(mib(64));
  containers(pool);
  alignments(pool);
  equality(pool);
  pinned();
  stream_ordered(pool);
  return shown("pmr containers and stream-ordered code allocate from a pool");
}
