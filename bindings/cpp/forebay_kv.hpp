// Forebay for C++17: KV caches, paged and with contiguous addresses, and their sequences. Header
// only, beside forebay.hpp, whose rules hold: owning objects are move-only, a failing call throws,
// destructors never do.
//
// A cache may be used by many threads at once; a sequence by one at a time, and not after its cache
// has ended.
#ifndef FOREBAY_KV_HPP
#define FOREBAY_KV_HPP

#include <forebay.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace forebay {

/// Why blocks could not be had: ordinary flow control.
inline forebay_kv_shortage no_shortage() noexcept {
  forebay_kv_shortage none{};
  none.struct_size = sizeof none;
  return none;
}

/// A paged KV cache: which block holds which tokens of which sequence. Touches no device.
/// Move-only; ends the cache, after memory behind it.
class kv_cache {
 public:
  /// No cache.
  kv_cache() noexcept = default;
  /// Makes one. `options` as forebay_kv_options_init() and the caller have filled it; the groups
  /// are read here only.
  explicit kv_cache(const forebay_kv_options &options) {
    check(forebay_kv_create(&options, &handle_));
  }
  /// Makes one of groups, with defaults for the rest.
  explicit kv_cache(const std::vector<forebay_kv_group> &groups)
      : kv_cache(with(groups, defaults())) {}
  kv_cache(kv_cache &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /// Ends the own cache first; where that cannot end yet (see reset()) `other` has it afterwards.
  kv_cache &operator=(kv_cache &&other) noexcept {
    if (this == &other) return *this;
    reset();
    std::swap(handle_, other.handle_);
    return *this;
  }
  kv_cache(const kv_cache &) = delete;
  kv_cache &operator=(const kv_cache &) = delete;
  ~kv_cache() { reset(); }

  /// The defaults, without groups.
  static forebay_kv_options defaults() {
    forebay_kv_options options{};
    check(forebay_kv_options_init(&options));
    return options;
  }
  /// These groups in these options. The groups must live until the cache is made.
  static forebay_kv_options with(const std::vector<forebay_kv_group> &groups,
                                 forebay_kv_options options) noexcept {
    options.groups = groups.data();
    options.group_count = groups.size();
    return options;
  }

  /// The C handle; NULL when there is none.
  forebay_kv_t get() const noexcept { return handle_; }
  /// Whether there is a cache.
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// Ends the cache, once calls of other threads on it have ended. What was still held is logged.
  /// Memory behind it (forebay_kv_memory_create()) must end first: while that stands the cache
  /// stays and get() is not NULL, which is logged. So destroy that memory before this object ends,
  /// or the cache stays until the process ends.
  void reset() noexcept {
    if (handle_ == nullptr) return;
    if (forebay_kv_destroy(handle_, nullptr) != FOREBAY_ERROR_BUSY) handle_ = nullptr;
  }

  /// Where a group's elements lie.
  forebay_kv_layout layout(std::uint32_t group = 0) const {
    forebay_kv_layout found{};
    found.struct_size = sizeof found;
    check(forebay_kv_get_layout(handle_, group, &found));
    return found;
  }
  /// A group's blocks by state at one moment, without the cache's lock.
  forebay_kv_counts counts(std::uint32_t group = 0) const {
    if (group >= stats().groups) static_cast<void>(layout(group));  // throws, with its reason
    std::vector<forebay_kv_counts> all(group + std::size_t{1});
    static_cast<void>(stats(all.data(), all.size()));
    return all[group];
  }
  /// The cache's figures; `groups` receives the first `count` groups' unless it is NULL.
  forebay_kv_stats stats(forebay_kv_counts *groups = nullptr, std::size_t count = 0) const {
    forebay_kv_stats found{};
    found.struct_size = sizeof found;
    check(forebay_kv_get_stats(handle_, &found, groups, count));
    return found;
  }
  /// All work up to this fence has ended.
  void pass(forebay_kv_fence fence) const { check(forebay_kv_pass(handle_, fence)); }
  /// Appends to several sequences under one lock. Nothing: all were done. Else the first that was
  /// refused for want of blocks, and what lacked; `done` says how many stand.
  std::optional<forebay_kv_shortage> append(const std::vector<forebay_kv_append_item> &items,
                                            std::size_t &done) const {
    forebay_kv_shortage lacking = no_shortage();
    const forebay_status status =
        forebay_kv_append_all(handle_, items.data(), items.size(), &done, &lacking);
    if (status == FOREBAY_ERROR_NO_BLOCKS) return lacking;
    check(status);
    return std::nullopt;
  }
  /// Holds everything against everything. Throws when something is wrong.
  void audit() const { check(forebay_kv_check(handle_, nullptr, 0)); }

  /// Makes the copies that are needed: `copy(job)` queues one; `after` is the fence behind which
  /// all are done, 0 when they are done on return. Returns how many there were. They come 64 at a
  /// time; where `copy` throws, the blocks of those 64 stay held until the cache ends.
  template <class Copy>
  std::size_t make_copies(forebay_kv_fence after, Copy &&copy) const {
    std::size_t made = 0;
    forebay_kv_copy jobs[64];
    for (;;) {
      std::size_t count = 0;
      std::uint64_t batch = 0;
      check(forebay_kv_take_copies(handle_, jobs, 64, &count, &batch));
      if (batch == 0) return made;
      for (std::size_t i = 0; i < count; i++) copy(jobs[i]);
      check(forebay_kv_copied(handle_, batch, after));
      made += count;
    }
  }

 private:
  forebay_kv_t handle_ = nullptr;
};

/// A sequence of a cache. Move-only; ends it, its blocks free at once, unless `end` named a fence.
class kv_sequence {
 public:
  /// No sequence.
  kv_sequence() noexcept = default;
  /// Opens one. `salt` sets tenants apart, `priority` is 0 to 7.
  explicit kv_sequence(const kv_cache &cache, std::uint64_t salt = 0, std::uint32_t priority = 0)
      : cache_(cache.get()) {
    check(forebay_kv_open(cache_, salt, priority, &handle_));
  }
  kv_sequence(kv_sequence &&other) noexcept
      : cache_(other.cache_), handle_(std::exchange(other.handle_, 0)) {}
  /// Ends the own sequence first; where that is refused (see end()) `other` has it afterwards.
  kv_sequence &operator=(kv_sequence &&other) noexcept {
    if (this == &other) return *this;
    end(0);
    std::swap(cache_, other.cache_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  kv_sequence(const kv_sequence &) = delete;
  kv_sequence &operator=(const kv_sequence &) = delete;
  /// Ends it. Where that is refused the sequence stays open until the cache ends.
  ~kv_sequence() { end(0); }

  /// The C handle; 0 when there is none.
  forebay_kv_seq get() const noexcept { return handle_; }
  /// Whether there is a sequence.
  explicit operator bool() const noexcept { return handle_ != 0; }
  /// Ends it; its blocks are free once `after` has passed. Where that is refused (a fence that was
  /// not made here) the sequence stays open and this object has it still: get() is not 0. One whose
  /// cache has ended is gone with it.
  void end(forebay_kv_fence after) noexcept {
    if (handle_ == 0) return;
    const forebay_status status = forebay_kv_free(cache_, &handle_, 1, after);
    const bool gone = status == FOREBAY_OK || status == FOREBAY_ERROR_STALE_SEQUENCE ||
                      (status == FOREBAY_ERROR_INVALID_ARGUMENT && cache_is_gone());
    if (gone) handle_ = 0;
  }

  /// Tokens that it holds.
  std::uint32_t size() const {
    std::uint32_t tokens = 0;
    check(forebay_kv_len(cache_, handle_, &tokens));
    return tokens;
  }
  /// Gives an empty sequence the longest prefix that is there.
  forebay_kv_match find_prefix(const std::int32_t *tokens, std::size_t count) const {
    forebay_kv_match found{};
    check(forebay_kv_find_prefix(cache_, handle_, tokens, count, &found));
    return found;
  }
  /// Appends tokens (NULL: only their number is known). Nothing: done. Else nothing has changed,
  /// and this is what lacked.
  std::optional<forebay_kv_shortage> append(const std::int32_t *tokens,
                                            std::uint32_t count) const {
    forebay_kv_shortage lacking = no_shortage();
    const forebay_status status = forebay_kv_append(cache_, handle_, tokens, count, &lacking);
    if (status == FOREBAY_ERROR_NO_BLOCKS) return lacking;
    check(status);
    return std::nullopt;
  }
  /// The first `tokens` tokens are computed.
  void commit(std::uint32_t tokens, forebay_kv_fence after = 0) const {
    check(forebay_kv_commit(cache_, handle_, tokens, after));
  }
  /// Takes the last `tokens` tokens back.
  void rollback(std::uint32_t tokens, forebay_kv_fence after = 0) const {
    check(forebay_kv_rollback(cache_, handle_, tokens, after));
  }
  /// A sequence that begins with the first `tokens` tokens of this one.
  kv_sequence fork(std::uint32_t tokens) const {
    kv_sequence made;
    made.cache_ = cache_;
    check(forebay_kv_fork(cache_, handle_, tokens, &made.handle_, 1, nullptr));
    return made;
  }
  /// Writes what changed in its row; see forebay_kv_row().
  forebay_kv_delta row(std::uint32_t group, std::int32_t *row, std::size_t entries,
                       bool whole) const {
    forebay_kv_delta delta{};
    check(forebay_kv_row(cache_, group, handle_, row, entries, whole ? 1 : 0, &delta));
    return delta;
  }

 private:
  /// Whether the cache's handle names none any more; a sequence that is there is asked for nothing
  /// else that could be refused so.
  bool cache_is_gone() const noexcept {
    std::uint32_t tokens = 0;
    return forebay_kv_len(cache_, handle_, &tokens) == FOREBAY_ERROR_INVALID_ARGUMENT;
  }

  forebay_kv_t cache_ = nullptr;
  forebay_kv_seq handle_ = 0;
};

/// A KV cache with contiguous addresses: each sequence has a range of its own, for kernels that
/// know no blocks. Move-only; ends the cache, whose memory no work may use any more. The pool must
/// outlive it. May be used by many threads at once.
class kv_contiguous {
 public:
  /// No cache.
  kv_contiguous() noexcept = default;
  /// Makes one over a pool, NULL: the default pool. `options` as defaults() and the caller have
  /// filled it; the groups are read here only.
  explicit kv_contiguous(const forebay_kv_contiguous_options &options,
                         forebay_pool_t pool = nullptr) {
    check(forebay_kv_contiguous_create(pool, &options, &handle_));
  }
  kv_contiguous(kv_contiguous &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  kv_contiguous &operator=(kv_contiguous &&other) noexcept {
    kv_contiguous taken(std::move(other));
    std::swap(handle_, taken.handle_);
    return *this;
  }
  kv_contiguous(const kv_contiguous &) = delete;
  kv_contiguous &operator=(const kv_contiguous &) = delete;
  ~kv_contiguous() { reset(); }

  /// Options of these groups, which must live until the cache is made: nothing ahead, nothing kept.
  static forebay_kv_contiguous_options defaults(const std::vector<forebay_kv_group> &groups,
                                                std::uint32_t max_sequences,
                                                std::uint32_t max_tokens) noexcept {
    forebay_kv_contiguous_options options{};
    options.struct_size = sizeof options;
    options.groups = groups.data();
    options.group_count = groups.size();
    options.max_sequences = max_sequences;
    options.max_tokens = max_tokens;
    return options;
  }

  /// The C handle; NULL when there is none.
  forebay_kv_contiguous_t get() const noexcept { return handle_; }
  /// Whether there is a cache.
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// Ends the cache with all its sequences.
  void reset() noexcept {
    if (handle_ != nullptr) static_cast<void>(forebay_kv_contiguous_destroy(handle_));
    handle_ = nullptr;
  }

  /// The sequences hold so many tokens from now on, which have memory. False: the pool has none for
  /// one of them; `done` says how many before it stand, and the rest is as it was.
  bool ensure(const std::vector<forebay_kv_seq_tokens> &items, std::size_t &done) const {
    const forebay_status status =
        forebay_kv_contiguous_ensure(handle_, items.data(), items.size(), &done);
    if (status == FOREBAY_ERROR_OUT_OF_MEMORY) return false;
    check(status);
    return true;
  }
  /// A fence behind all work queued so far on these streams, 1 to 64.
  forebay_kv_fence fence(const std::vector<forebay_stream_t> &streams) const {
    forebay_kv_fence made = 0;
    check(forebay_kv_contiguous_fence(handle_, streams.data(), streams.size(), &made));
    return made;
  }
  /// A fence that passes when the caller's counter is at `value`.
  forebay_kv_fence fence_at(std::uint64_t value) const {
    forebay_kv_fence made = 0;
    check(forebay_kv_contiguous_fence_at(handle_, value, &made));
    return made;
  }
  /// The caller's counter is at `value`.
  void reach(std::uint64_t value) const { check(forebay_kv_contiguous_reach(handle_, value)); }
  /// Gives back what waited for fences that have passed, and maps ahead. Returns the highest fence
  /// that has passed.
  forebay_kv_fence poll() const {
    forebay_kv_fence passed = 0;
    check(forebay_kv_contiguous_poll(handle_, &passed));
    return passed;
  }
  /// Gives back the pages that ended sequences' ranges keep. Returns how many.
  std::uint64_t release_kept() const {
    std::uint64_t pages = 0;
    check(forebay_kv_contiguous_release_kept(handle_, &pages));
    return pages;
  }
  /// All sequences' memory.
  forebay_kv_contiguous_stats stats() const {
    forebay_kv_contiguous_stats found{};
    found.struct_size = sizeof found;
    check(forebay_kv_contiguous_get_stats(handle_, &found));
    return found;
  }
  /// Tokens of a group that a page of its first range holds.
  std::uint64_t tokens_per_page(std::uint32_t group = 0) const {
    std::uint64_t tokens = 0;
    check(forebay_kv_contiguous_tokens_per_page(handle_, group, &tokens));
    return tokens;
  }

 private:
  forebay_kv_contiguous_t handle_ = nullptr;
};

/// A sequence of a cache with contiguous addresses. Move-only; ends it, its memory free at once,
/// unless `end` named a fence.
class kv_contiguous_sequence {
 public:
  /// No sequence.
  kv_contiguous_sequence() noexcept = default;
  /// Opens one without tokens.
  explicit kv_contiguous_sequence(const kv_contiguous &cache) : cache_(cache.get()) {
    check(forebay_kv_contiguous_open(cache_, &handle_));
  }
  kv_contiguous_sequence(kv_contiguous_sequence &&other) noexcept
      : cache_(other.cache_), handle_(std::exchange(other.handle_, 0)) {}
  /// Ends the own sequence first; where that is refused (see end()) `other` has it afterwards.
  kv_contiguous_sequence &operator=(kv_contiguous_sequence &&other) noexcept {
    if (this == &other) return *this;
    end(0);
    std::swap(cache_, other.cache_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  kv_contiguous_sequence(const kv_contiguous_sequence &) = delete;
  kv_contiguous_sequence &operator=(const kv_contiguous_sequence &) = delete;
  /// Ends it. Where that is refused the sequence stays open until the cache ends.
  ~kv_contiguous_sequence() { end(0); }

  /// The C handle; 0 when there is none.
  forebay_kv_seq get() const noexcept { return handle_; }
  /// Whether there is a sequence.
  explicit operator bool() const noexcept { return handle_ != 0; }
  /// Ends it; its memory is free once `after` has passed. Where that is refused (a fence that was
  /// not made here; in a callback of the pool inside a call of the cache) the sequence stays open
  /// and this object has it still: get() is not 0. One whose cache has ended is gone with it.
  void end(forebay_kv_fence after) noexcept {
    if (handle_ == 0) return;
    const forebay_status status = forebay_kv_contiguous_free(cache_, &handle_, 1, after);
    const bool gone = status == FOREBAY_OK || status == FOREBAY_ERROR_STALE_SEQUENCE ||
                      (status == FOREBAY_ERROR_INVALID_ARGUMENT && cache_is_gone());
    if (gone) handle_ = 0;
  }

  /// It holds so many tokens from now on, which have memory. False: the pool has none for them,
  /// and nothing has changed.
  bool ensure(std::uint32_t tokens) const {
    const forebay_kv_seq_tokens item = {handle_, tokens, 0};
    const forebay_status status = forebay_kv_contiguous_ensure(cache_, &item, 1, nullptr);
    if (status == FOREBAY_ERROR_OUT_OF_MEMORY) return false;
    check(status);
    return true;
  }
  /// Takes the last tokens back until it holds `tokens`.
  void truncate(std::uint32_t tokens, forebay_kv_fence after = 0) const {
    check(forebay_kv_contiguous_truncate(cache_, handle_, tokens, after));
  }
  /// Where its elements of a group lie.
  forebay_kv_seq_view view(std::uint32_t group = 0) const {
    forebay_kv_seq_view found{};
    found.struct_size = sizeof found;
    check(forebay_kv_contiguous_view(cache_, handle_, group, &found));
    return found;
  }
  /// What its memory is used for.
  forebay_kv_usage usage() const {
    forebay_kv_usage found{};
    found.struct_size = sizeof found;
    check(forebay_kv_contiguous_get_usage(cache_, handle_, &found));
    return found;
  }

 private:
  /// Whether the cache's handle names none any more; a sequence that is there is asked for nothing
  /// else that could be refused so.
  bool cache_is_gone() const noexcept {
    forebay_kv_usage found{};
    found.struct_size = sizeof found;
    return forebay_kv_contiguous_get_usage(cache_, handle_, &found) ==
           FOREBAY_ERROR_INVALID_ARGUMENT;
  }

  forebay_kv_contiguous_t cache_ = nullptr;
  forebay_kv_seq handle_ = 0;
};

}  // namespace forebay

#endif  // FOREBAY_KV_HPP
