// Steps by plans as owning types: what is recorded, planned and bound goes back once; a step that
// is left by an exception ends; wrong use throws.
#include "check.hpp"
#include "pools.hpp"

#include <forebay_plan.hpp>

#include <cstring>
#include <type_traits>
#include <utility>

namespace {

static_assert(!std::is_copy_constructible_v<forebay::recording>);
static_assert(!std::is_copy_constructible_v<forebay::plan>);
static_assert(!std::is_copy_constructible_v<forebay::binding>);
static_assert(!std::is_copy_constructible_v<forebay::PlannedStep>);
static_assert(std::is_nothrow_move_constructible_v<forebay::PlannedStep>);

void one_lane(const forebay::pool &pool) {
  const forebay::recording recorded(pool);
  void *const a = pool.allocate(5000);
  void *const b = pool.allocate(3000);
  pool.deallocate(a);
  void *const c = pool.allocate(4000);
  pool.deallocate(b);
  pool.deallocate(c);
  CHECK_THROWS(forebay::failure, recorded.buffers());
  recorded.end();
  const auto buffers = recorded.buffers();
  CHECK(buffers.size() == 3 && buffers[0].size == 5000 && buffers[2].lane == 0);
  CHECK(buffers[0].death < buffers[2].birth && buffers[2].death == 5);
  const forebay::plan plan(recorded);
  CHECK(plan.info().height == plan.info().bound);
  forebay::binding bound(plan, pool);
  CHECK_THROWS(forebay::failure, forebay::binding(plan, pool));
  CHECK(bound.stats().plan_block_bytes == plan.info().height);
  for (int i = 0; i < 10; ++i) {
    forebay::PlannedStep first(bound, recorded.streams());
    CHECK_THROWS(forebay::failure, forebay::PlannedStep(bound));
    forebay::PlannedStep step(std::move(first));
    void *const x = step.allocate(5000);
    void *const y = step.allocate(3000);
    std::memset(x, 1, 5000);
    std::memset(y, 2, 3000);
    CHECK_THROWS(forebay::failure, step.end());
    step.deallocate(x);
    void *const z = step.allocate_within(100, 0);
    CHECK(z != nullptr && step.allocate(0) == nullptr);
    step.deallocate(z);
    CHECK_THROWS(forebay::failure, step.deallocate(x));
    void *const last = step.allocate(4000);
    CHECK(static_cast<unsigned char *>(y)[2999] == 2);
    // Half of the steps end by their destructor, with two buffers live.
    if (i % 2 == 0) {
      step.deallocate(y);
      step.deallocate(last);
      step.end();
    }
  }
  CHECK(bound.stats().steps == 10 && bound.stats().served == 30 && bound.stats().fallbacks == 0);
  // Streams in braces, of either type.
  const forebay_stream_t plain = nullptr;
  CHECK_THROWS(forebay::failure, forebay::PlannedStep(bound, {plain, plain}));
  CHECK_THROWS(forebay::failure, forebay::PlannedStep(bound, {plain}, 7));
  CHECK_THROWS(forebay::failure, forebay::PlannedStep(bound, {forebay::stream_ref{}}, 7));
  {
    // A binding with a step open does not end, and says so; afterwards it does.
    const forebay::PlannedStep open(bound, {plain});
    CHECK_THROWS(forebay::failure, bound.end());
    CHECK(bound.get() != nullptr && bound.stats().plan_block_bytes == plan.info().height);
  }
  bound.end();
  CHECK(bound.get() == nullptr);
  const forebay::binding again(plan, pool);
  CHECK(again.stats().plan_block_bytes == plan.info().height);
}

void two_lanes(const forebay::pool &pool) {
  const forebay::stream one(pool);
  const forebay::stream two(pool);
  const forebay::recording recorded(pool);
  void *const a = pool.allocate(8192, one);
  pool.deallocate(a, one);
  recorded.fence(one, two);
  void *const b = pool.allocate(8192, two);
  pool.deallocate(b, two);
  recorded.end();
  CHECK((recorded.streams() == std::vector<forebay_stream_t>{one.get(), two.get()}));
  const forebay::plan plan(recorded);
  CHECK(plan.info().height == 8192);
  const forebay::binding bound(plan, pool);
  for (int i = 0; i < 50; ++i) {
    forebay::PlannedStep step(bound, recorded.streams());
    void *const x = step.allocate(8192, one);
    one.fill(x, 1, 8192);
    step.deallocate(x, one);
    void *const y = step.allocate(8192, two);
    CHECK(x == y);
    two.fill(y, 2, 8192);
    step.deallocate(y, two);
    step.end();
    if (i % 10 == 9) {
      two.synchronize();
      CHECK(static_cast<unsigned char *>(y)[0] == 2 && static_cast<unsigned char *>(y)[8191] == 2);
    }
  }
  CHECK(bound.stats().fences == 50 && bound.stats().served == 100);
}

void learnt(const forebay::pool &pool) {
  const forebay::binding bound(pool);
  CHECK_THROWS(forebay::failure, forebay::PlannedStep(bound, forebay::stream_ref{}, 5));
  bound.learn(5);
  for (int i = 0; i < 3; ++i) {
    forebay::PlannedStep step(bound, forebay::stream_ref{}, 5);
    void *const a = step.allocate(100000);
    step.deallocate(a);
    step.end();
  }
  const forebay_binding_stats stats = bound.stats();
  CHECK(stats.plans == 1 && stats.replanned == 1 && stats.served == 2 && stats.fallbacks == 1);
}

}  // namespace

int main() {
  const forebay::pool pool = make_pool(mib(64));
  one_lane(pool);
  two_lanes(pool);
  learnt(pool);
  CHECK(pool.stats().live_blocks == 0);
  return shown("steps by plans end once, also by exceptions");
}
