// Owning types of KV caches, paged and with contiguous addresses: sequences end with their objects,
// once, also after moves; shortage is a value; copies are made before who needs them.
#include "check.hpp"
#include "pools.hpp"

#include <forebay_kv.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

static_assert(!std::is_copy_constructible_v<forebay::kv_cache>);
static_assert(!std::is_copy_constructible_v<forebay::kv_sequence>);
static_assert(std::is_nothrow_move_constructible_v<forebay::kv_cache>);
static_assert(std::is_nothrow_move_assignable_v<forebay::kv_cache>);
static_assert(std::is_nothrow_move_constructible_v<forebay::kv_sequence>);
static_assert(std::is_nothrow_move_assignable_v<forebay::kv_sequence>);
static_assert(!std::is_copy_constructible_v<forebay::kv_contiguous>);
static_assert(!std::is_copy_constructible_v<forebay::kv_contiguous_sequence>);
static_assert(std::is_nothrow_move_constructible_v<forebay::kv_contiguous>);
static_assert(std::is_nothrow_move_assignable_v<forebay::kv_contiguous>);
static_assert(std::is_nothrow_move_constructible_v<forebay::kv_contiguous_sequence>);
static_assert(std::is_nothrow_move_assignable_v<forebay::kv_contiguous_sequence>);

/// Whether a call throws the error with this status.
template <class Call>
void refused(forebay_status status, Call &&call) {
  try {
    call();
  } catch (const forebay::error &error) {
    CHECK(error.status() == status);
    return;
  }
  CHECK(!"it throws");
}

std::vector<forebay_kv_group> one_group(std::uint32_t blocks) {
  std::vector<forebay_kv_group> groups(1);
  groups[0].layers = 2;
  groups[0].heads = 1;
  groups[0].key_size = groups[0].value_size = 4;
  groups[0].block_tokens = 4;
  groups[0].element = FOREBAY_KV_F32;
  groups[0].blocks = blocks;
  return groups;
}

void sequences_end_with_their_objects() {
  const forebay::kv_cache cache(one_group(9));
  CHECK(cache.counts().free == 8 && cache.layout().block_bytes == 256);
  {
    forebay::kv_sequence first(cache);
    CHECK(!first.append(nullptr, 9) && first.size() == 9 && cache.counts().used == 3);
    forebay::kv_sequence moved(std::move(first));
    CHECK(!first && moved && moved.size() == 9);
    forebay::kv_sequence second(cache);
    CHECK(!second.append(nullptr, 4) && cache.counts().used == 4);
    second = std::move(moved);
    CHECK(!moved && cache.counts().used == 3);
    second.end(7);
    CHECK(!second && cache.counts().quarantined == 3);
    cache.pass(7);
    CHECK(cache.counts().free == 8);
    refused(FOREBAY_ERROR_STALE_SEQUENCE, [&] { second.size(); });
  }
  CHECK(cache.stats().sequences == 0);
  cache.audit();
}

void shortage_is_a_value() {
  const forebay::kv_cache cache(one_group(4));
  const forebay::kv_sequence sequence(cache);
  const auto lacking = sequence.append(nullptr, 13);
  CHECK(lacking && lacking->need == 4 && lacking->free == 3 && sequence.size() == 0);
  std::size_t done = 9;
  const std::vector<forebay_kv_append_item> items = {{sequence.get(), nullptr, 12, 0},
                                                     {sequence.get(), nullptr, 1, 0}};
  const auto again = cache.append(items, done);
  CHECK(again && again->need == 1 && done == 1 && sequence.size() == 12);
}

void forks_copy_what_they_write() {
  const forebay::kv_cache cache(one_group(9));
  const std::int32_t tokens[] = {1, 2, 3, 4, 5, 6};
  const forebay::kv_sequence parent(cache);
  CHECK(!parent.append(tokens, 6));
  parent.commit(6);
  const forebay::kv_sequence child = parent.fork(6);
  CHECK(child.size() == 6 && cache.counts().used == 2);
  CHECK(!child.append(tokens, 1));
  std::vector<forebay_kv_copy> made;
  CHECK(cache.make_copies(0, [&](const forebay_kv_copy &job) { made.push_back(job); }) == 1);
  CHECK(made.size() == 1 && made[0].tokens == 2 && cache.counts().used == 3);
  CHECK(cache.make_copies(0, [&](const forebay_kv_copy &job) { made.push_back(job); }) == 0);
  std::int32_t row[4] = {-1, -1, -1, -1};
  const forebay_kv_delta delta = child.row(0, row, 4, true);
  CHECK(delta.from == 0 && delta.to == 4 && row[1] == static_cast<std::int32_t>(made[0].to));
  CHECK(row[2] == 0 && row[3] == 0);
  const forebay::kv_sequence third(cache);
  CHECK(third.find_prefix(tokens, 5).tokens == 4);
}

/// 8,192 bytes of keys a token, as many of values: 256 tokens a page.
std::vector<forebay_kv_group> long_group() {
  auto groups = one_group(0);
  groups[0].heads = 256;
  return groups;
}

void contiguous_sequences_end_with_their_objects() {
  const auto groups = long_group();
  const auto options = forebay::kv_contiguous::defaults(groups, 2, 1024);
  const forebay::pool pool = make_pool(64u << 20);
  forebay::kv_contiguous cache(options, pool.get());
  CHECK(cache.tokens_per_page() == 256);
  {
    forebay::kv_contiguous_sequence first(cache);
    CHECK(first.ensure(300) && first.usage().tokens == 300);
    const auto view = first.view();
    CHECK(view.keys.token_stride == 8192 && view.keys.layer_stride == 4096);
    CHECK(view.keys.head_stride == 16 && view.values.address != nullptr);
    static_cast<char *>(view.keys.address)[300 * 8192 - 1] = 7;
    forebay::kv_contiguous_sequence moved(std::move(first));
    CHECK(!first && moved && moved.view().keys.address == view.keys.address);
    forebay::kv_contiguous_sequence second(cache);
    CHECK(cache.stats().open == 2 && cache.stats().open_pages == 4);
    second = std::move(moved);
    CHECK(!moved && cache.stats().open == 1 && cache.stats().leaving == 1);
    second.truncate(200);
    static_cast<void>(cache.poll());
    CHECK(cache.stats().open_pages == 2 && second.usage().mapped == 4u << 20);
    const forebay_kv_fence fence = cache.fence_at(3);
    const forebay_kv_seq handle = second.get();
    second.end(fence + 1);
    CHECK(second.get() == handle && second.usage().tokens == 200);
    second.end(fence);
    CHECK(!second && cache.poll() < fence && cache.stats().leaving == 1);
    cache.reach(3);
    CHECK(cache.poll() == fence && cache.stats().leaving == 0 && cache.release_kept() == 0);
    refused(FOREBAY_ERROR_STALE_SEQUENCE, [&] { second.usage(); });
  }
  const forebay::kv_contiguous_sequence last(cache);
  std::size_t done = 0;
  CHECK(cache.ensure({{last.get(), 9, 0}}, done) && done == 1 && last.usage().tokens == 9);
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { last.ensure(1025); });
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { last.view(1); });
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { cache.fence({}); });
  forebay::kv_contiguous taken(std::move(cache));
  CHECK(!cache && taken && taken.stats().open == 1);
  taken.reset();
  CHECK(!taken);
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { last.usage(); });
}

void memory_that_lacks_is_a_value() {
  const forebay::pool pool = make_pool(8u << 20);
  const auto groups = long_group();
  const forebay::kv_contiguous cache(forebay::kv_contiguous::defaults(groups, 2, 1024), pool.get());
  const forebay::kv_contiguous_sequence one(cache);
  const forebay::kv_contiguous_sequence two(cache);
  CHECK(one.ensure(256) && !two.ensure(257) && two.usage().mapped == 0);
  std::size_t done = 9;
  CHECK(!cache.ensure({{two.get(), 256, 0}, {one.get(), 257, 0}}, done) && done == 1);
  CHECK(one.usage().tokens == 256 && two.usage().tokens == 256);
}

forebay_kv_memory_t memory_behind(const forebay::kv_cache &cache, const forebay::pool &pool) {
  const std::uint32_t initial = 4;
  forebay_kv_memory_t memory = nullptr;
  forebay::check(forebay_kv_memory_create(cache.get(), pool.get(), &initial, 1, &memory));
  return memory;
}

/// A cache behind which memory stands does not end, and is not lost.
void a_cache_ends_after_its_memory() {
  const forebay::pool pool;
  forebay::kv_cache cache(one_group(4));
  forebay_kv_memory_t memory = memory_behind(cache, pool);
  const forebay_kv_t handle = cache.get();
  cache.reset();
  CHECK(cache.get() == handle && cache.counts().total == 4);
  // What cannot end goes to the other side.
  forebay::kv_cache other(one_group(9));
  cache = std::move(other);
  CHECK(cache.counts().total == 9 && other.get() == handle);
  forebay::check(forebay_kv_memory_destroy(memory));
  other = std::move(cache);
  CHECK(other.counts().total == 9 && !cache);
  CHECK(forebay_kv_destroy(handle, nullptr) == FOREBAY_ERROR_INVALID_ARGUMENT);
  forebay::kv_cache &same = other;
  other = std::move(same);
  CHECK(other.counts().total == 9);
  other.reset();
  CHECK(!other);
}

/// A sequence whose end is refused is not lost; one that is gone is not kept.
void a_refused_end_keeps_the_sequence() {
  const forebay::pool pool;
  forebay::kv_cache cache(one_group(9));
  forebay_kv_memory_t memory = memory_behind(cache, pool);
  forebay::kv_sequence one(cache);
  forebay::kv_sequence two(cache);
  const forebay_kv_seq handle = one.get();
  one.end(7);
  CHECK(one.get() == handle && one.size() == 0);
  one.end(0);
  CHECK(!one);
  // Ended by another hand.
  const forebay_kv_seq other = two.get();
  forebay::check(forebay_kv_free(cache.get(), &other, 1, 0));
  two.end(0);
  CHECK(!two);
  // Gone with its cache.
  forebay::kv_sequence last(cache);
  forebay::check(forebay_kv_memory_destroy(memory));
  cache.reset();
  last.end(0);
  CHECK(!cache && !last);

  const auto groups = long_group();
  forebay::kv_contiguous ranges(forebay::kv_contiguous::defaults(groups, 2, 1024), pool.get());
  forebay::kv_contiguous_sequence first(ranges);
  forebay::kv_contiguous_sequence second(ranges);
  const forebay_kv_seq gone = first.get();
  forebay::check(forebay_kv_contiguous_free(ranges.get(), &gone, 1, 0));
  first.end(0);
  CHECK(!first && second);
  ranges.reset();
  second.end(0);
  CHECK(!second);
}

void wrong_use_throws() {
  refused(FOREBAY_ERROR_INVALID_ARGUMENT,
          [] { forebay::kv_cache made(std::vector<forebay_kv_group>{}); });
  const forebay::kv_cache cache(one_group(4));
  const forebay::kv_sequence none;
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { none.size(); });
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { cache.layout(1); });
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { cache.counts(1); });
  refused(FOREBAY_ERROR_INVALID_ARGUMENT, [&] { forebay::kv_sequence(cache, 0, 8); });
}

}  // namespace

int main() {
  sequences_end_with_their_objects();
  shortage_is_a_value();
  forks_copy_what_they_write();
  contiguous_sequences_end_with_their_objects();
  memory_that_lacks_is_a_value();
  a_cache_ends_after_its_memory();
  a_refused_end_keeps_the_sequence();
  wrong_use_throws();
  return shown("caches and sequences are owned by their objects");
}
