// Owning types: pools, buffers, unique pointers, streams, buffer sets and tag scopes give back
// what they hold, once, also after moves.
#include "check.hpp"
#include "pools.hpp"

#include <forebay_share.hpp>

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

static_assert(!std::is_copy_constructible_v<forebay::pool>);
static_assert(!std::is_copy_constructible_v<forebay::buffer>);
static_assert(!std::is_copy_constructible_v<forebay::stream>);
static_assert(!std::is_copy_constructible_v<forebay::buffers>);
static_assert(std::is_nothrow_move_constructible_v<forebay::pool>);
static_assert(std::is_nothrow_move_constructible_v<forebay::buffer>);
static_assert(std::is_nothrow_move_assignable_v<forebay::buffer>);
static_assert(std::is_nothrow_move_constructible_v<forebay::stream>);
static_assert(std::is_nothrow_move_constructible_v<forebay::buffers>);
static_assert(!std::is_copy_constructible_v<forebay::exported>);
static_assert(std::is_nothrow_move_constructible_v<forebay::exported>);

void buffers_of_one(const forebay::pool &pool) {
  forebay::buffer a(1000, {}, pool);
  CHECK(a && a.data() != nullptr && a.size() == 1000 && a.stream() == forebay::stream_ref{});
  std::memset(a.data(), 1, a.size());
  void *const first = a.data();
  forebay::buffer b(std::move(a));
  CHECK(!a && a.size() == 0 && b.data() == first && b.size() == 1000);
  forebay::buffer c(mib(3), {}, pool);
  CHECK(pool.stats().live_blocks == 2);
  c = std::move(b);
  CHECK(c.data() == first && c.size() == 1000 && pool.stats().live_blocks == 1);
  void *raw = c.release();
  CHECK(raw == first && !c && pool.stats().live_blocks == 1);
  pool.deallocate(raw);
  c.reset();
  CHECK(pool.stats().live_blocks == 0);

  std::vector<forebay::buffer> many;
  for (std::size_t i = 1; i <= 100; ++i) many.emplace_back(i * 100, forebay::stream_ref{}, pool);
  CHECK(pool.stats().live_blocks == 100);
  many.erase(many.begin() + 10, many.begin() + 60);
  CHECK(pool.stats().live_blocks == 50);
  many.clear();
  CHECK(pool.stats().live_bytes == 0);
  CHECK(forebay::buffer(0, {}, pool).data() == nullptr);
}

void unique_pointers(const forebay::pool &pool) {
  auto floats = forebay::make_unique<float>(1000, {}, pool);
  floats[999] = 4.5F;
  forebay::unique_ptr<float[]> moved = std::move(floats);
  CHECK(!floats && moved[999] == 4.5F);
  CHECK(pool.stats().requested_bytes <= pool.stats().live_bytes);
  moved.reset();
  CHECK(pool.stats().live_blocks == 0);
  CHECK_THROWS(std::bad_array_new_length,
               forebay::make_unique<double>(static_cast<std::size_t>(-1) / 4, {}, pool));
}

void pools() {
  forebay::pool a = make_pool(mib(32));
  const forebay_pool_t handle = a.get();
  int calls = 0;
  a.on_out_of_memory([&](std::size_t) { return ++calls < 0; });
  forebay::pool b(std::move(a));
  CHECK(!a.owned() && a.get() == nullptr && b.owned() && b.get() == handle);
  CHECK_THROWS(std::bad_alloc, b.allocate(mib(33)));
  CHECK(calls == 1);
  b.set_limits(mib(40), 0);
  forebay::buffer(mib(33), {}, b);
  const forebay::pool named = forebay::pool::view(b.get());
  CHECK(!named.owned() && named.stats().limit_bytes == mib(40));
  CHECK(named.report_json().front() == '{' && named.report_json().back() == '}');
  b = make_pool(mib(16));
  CHECK_THROWS(forebay::failure, named.stats());
  CHECK(b.stats().limit_bytes == mib(16));
  CHECK(!forebay::pool().owned() && forebay::pool().get() == nullptr);
  CHECK(!forebay::pool::of_device(0).owned());
  b.reset();
  CHECK(!b.owned());
}

void streams(const forebay::pool &pool) {
  forebay::stream first(pool);
  forebay::stream second(std::move(first));
  forebay::stream third(pool);
  CHECK(first.get() == nullptr && second.get() != nullptr);
  forebay::buffer from(5000, second, pool);
  forebay::buffer to(5000, second, pool);
  second.fill(from.data(), 7, 5000);
  second.copy(to.data(), from.data(), 5000);
  second.synchronize();
  const auto *bytes = static_cast<const unsigned char *>(to.data());
  CHECK(bytes[0] == 7 && bytes[4999] == 7);
  CHECK(to.stream() == second);
  pool.record_use(to.data(), second);
  to.set_stream(third);
  CHECK(to.stream() == third && to.stream() != second);
}

void lent(const forebay::pool &pool) {
  {
    const forebay::buffers set(mib(1), 2, pool);
    auto a = set.acquire();
    auto b = set.acquire();
    CHECK(set.bytes() == mib(1) && a && b && a != b);
    std::memset(b.get(), 9, mib(1));
    CHECK_THROWS(forebay::out_of_memory, set.acquire());
    void *const back = a.get();
    a.reset();
    const auto c = set.acquire();
    CHECK(c.get() == back);
  }
  CHECK(pool.stats().live_bytes == 0);
}

void exports(const forebay::pool &pool) {
  forebay::buffer block(mib(4), {}, pool);
  std::memset(block.data(), 3, mib(4));
  forebay::exported first(block.data());
  CHECK(first && first.descriptors().size() == 2 && first.description().bytes == mib(4));
  forebay::exported second(std::move(first));
  CHECK(!first && first.descriptors().empty() && second);
  auto memory = forebay::import_memory(second.description(), second.descriptors(), pool);
  second.close_descriptors();
  CHECK(second && second.descriptors().empty());
  CHECK(memory.get() != block.data());
  CHECK(std::memcmp(memory.get(), block.data(), mib(4)) == 0);
  CHECK_THROWS(std::invalid_argument, forebay::import_memory(second.description(), {}, pool));
  memory.reset();
  block.reset();
  CHECK(pool.stats().live_blocks == 0 && pool.stats().other_bytes >= mib(4));
  second.reset();
  static_cast<void>(pool.trim());
  CHECK(!second && pool.stats().mapped_bytes == 0);
  const forebay::buffer small(100, {}, pool);
  CHECK_THROWS(forebay::failure, forebay::exported(small.data()));
  CHECK_THROWS(forebay::failure, forebay::enable_peer(pool, 1));
  CHECK_THROWS(forebay::failure, forebay::disable_peer(pool, 1));
}

// A pool that cannot go yet stays the object's.
void busy() {
  forebay::pool pool = make_pool(mib(8));
  const forebay::stream stream(pool);
  void *const block = pool.allocate(mib(1), stream);
  std::uint64_t capture = 0;
  CHECK(forebay_capture_begin(stream.get(), &capture) == FOREBAY_OK);
  forebay_pool_t const handle = pool.get();
  CHECK(!pool.reset() && pool.owned() && pool.get() == handle);
  CHECK(pool.stats().live_blocks == 1);
  CHECK(forebay_capture_end(capture) == FOREBAY_OK);
  CHECK(forebay_capture_release(capture) == FOREBAY_OK);
  pool.deallocate(block, stream);
}

void gone() {
  forebay::pool pool = make_pool(mib(8));
  CHECK(pool.reset() && !pool.owned() && pool.get() == nullptr && pool.reset());
}

void tags(const forebay::pool &pool) {
  const std::uint32_t outer = forebay::make_tag("outer");
  const std::uint32_t inner = forebay::make_tag("inner");
  const forebay::tag_scope a(outer);
  const forebay::buffer first(mib(1), {}, pool);
  {
    const forebay::tag_scope b(inner);
    const forebay::buffer second(mib(2), {}, pool);
    CHECK(pool.tag_bytes(inner) == mib(2) && pool.tag_bytes(outer) == mib(1));
  }
  const forebay::buffer third(mib(1), {}, pool);
  CHECK(pool.tag_bytes(inner) == 0 && pool.tag_bytes(outer) == mib(2));
  unsigned visited = 0;
  pool.leaks([&](const forebay_leak &leak) { visited += leak.tag == outer ? 1U : 100U; });
  CHECK(visited == 2);
}

}  // namespace

int main() {
  const forebay::pool pool = make_pool(mib(64));
  buffers_of_one(pool);
  unique_pointers(pool);
  pools();
  streams(pool);
  lent(pool);
  exports(pool);
  busy();
  gone();
  tags(pool);
  CHECK(pool.stats().live_blocks == 0);
  return shown("what an object owns goes back once, also after moves");
}
