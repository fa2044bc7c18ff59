// Suspensions: memory is away for a scope, comes back with its contents, and a resume that fails
// throws and leaves it away.
#include "check.hpp"
#include "pools.hpp"

#include <forebay_suspend.hpp>

#include <cstring>

int main() {
  const forebay::pool pool = make_pool(mib(64));
  const std::uint32_t tag = forebay::make_tag("kv");
  forebay::make_suspendable(pool, tag);
  void *block = nullptr;
  {
    const forebay::tag_scope under(tag);
    block = pool.allocate(mib(10));
  }
  std::memset(block, 0x5a, mib(10));
  {
    const forebay::suspension asleep(pool, {tag});
    CHECK(forebay::is_suspended(pool, tag));
    CHECK(asleep.report().device_bytes == mib(10) && asleep.report().host_bytes == mib(10));
    CHECK(pool.stats().suspended_bytes == mib(10));
  }
  CHECK(!forebay::is_suspended(pool, tag));
  CHECK(static_cast<unsigned char *>(block)[mib(10) - 1] == 0x5a);
  {
    forebay::suspension asleep(pool, {tag}, forebay::contents::discard);
    CHECK(asleep.report().host_bytes == 0);
    void *hoard = pool.allocate(mib(60));
    CHECK_THROWS(forebay::out_of_memory, asleep.resume());
    CHECK(forebay::is_suspended(pool, tag));
    forebay::suspension moved(std::move(asleep));
    pool.deallocate(hoard);
    moved.resume();
    CHECK(!forebay::is_suspended(pool, tag));
  }
  CHECK_THROWS(forebay::error, forebay::suspension(pool, {1}));
  pool.deallocate(block);
  return shown("a suspension's memory is away for its scope");
}
