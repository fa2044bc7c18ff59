// Forebay for C++17: owning types over forebay.h. Header only; needs no CUDA.
//
// Owns nothing of its own: each object holds one C handle or one block, gives it back in its
// destructor, and is move-only. A failing call throws (see `error`); destructors and
// `deallocate` never throw. No exception enters the C library: callbacks given to it are
// wrapped. Cost: the C call, plus a test of its status.
//
// Memory may belong to a device that the CPU cannot reach. Only the host backend's memory and
// `pinned_resource`'s may be read and written by ordinary code.
//
// Threads: a `pool` may be used by many threads at once; every other object by one at a time.
#ifndef FOREBAY_HPP
#define FOREBAY_HPP

#include <forebay.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace forebay {

/// The alignment that every block has, in bytes.
inline constexpr std::size_t default_alignment = 256;
/// The greatest alignment that can be asked for, in bytes.
inline constexpr std::size_t max_alignment = std::size_t{2} << 20;

// ---------------------------------------------------------------- errors

/// What every exception of Forebay's is, beside its standard type: a status and its sentence.
///
/// Thrown are `failure` (a `std::runtime_error`) and `out_of_memory` (a `std::bad_alloc`). This
/// is not a `std::exception` itself: with two such bases `catch (std::exception &)` would miss
/// the second one.
class error {
 public:
  virtual ~error() = default;
  /// The status that the C function answered; never FOREBAY_OK.
  forebay_status status() const noexcept { return status_; }
  /// The status's name and the sentence behind it.
  const char *message() const noexcept { return text_.what(); }

 protected:
  error(forebay_status status, const std::string &text) : status_(status), text_(text) {}
  error(const error &) = default;
  error &operator=(const error &) = default;

 private:
  forebay_status status_;
  std::runtime_error text_;  // a string that can be copied without throwing
};

/// Any failure but a lack of memory.
class failure : public std::runtime_error, public error {
 public:
  /// `text` becomes `what()` and `message()`.
  failure(forebay_status status, const std::string &text)
      : std::runtime_error(text), error(status, text) {}
};

/// The request does not fit; `what()` is the library's out-of-memory report.
class out_of_memory : public std::bad_alloc, public error {
 public:
  /// `text` becomes `what()` and `message()`.
  explicit out_of_memory(const std::string &text)
      : error(FOREBAY_ERROR_OUT_OF_MEMORY, text) {}
  const char *what() const noexcept override { return message(); }
};

/// Throws what `status` stands for, with this thread's last error message.
[[noreturn]] inline void raise(forebay_status status) {
  std::string text = forebay_status_name(status);
  const char *last = forebay_last_error();
  if (last != nullptr && *last != '\0') text.append(": ").append(last);
  if (status == FOREBAY_ERROR_OUT_OF_MEMORY) throw out_of_memory(text);
  throw failure(status, text);
}

/// Throws unless `status` is FOREBAY_OK.
inline void check(forebay_status status) {
  if (status != FOREBAY_OK) raise(status);
}

// ---------------------------------------------------------------- streams

/// A stream named, not owned: a `forebay_stream_t` (a `cudaStream_t` fits), or anything whose
/// `get()` or `value()` answers one (`cuda::stream_ref`, `rmm::cuda_stream_view`).
class stream_ref {
 public:
  /// The default stream.
  constexpr stream_ref() noexcept = default;
  constexpr stream_ref(forebay_stream_t stream) noexcept : stream_(stream) {}
  /// From an object with `get()`.
  template <class S, class = std::enable_if_t<std::is_class_v<S>>,
            class = decltype(static_cast<forebay_stream_t>(std::declval<const S &>().get()))>
  constexpr stream_ref(const S &stream) : stream_(stream.get()) {}
  /// From an object with `value()`.
  template <class S, class = std::enable_if_t<std::is_class_v<S>>,
            class = decltype(static_cast<forebay_stream_t>(std::declval<const S &>().value())),
            class = void>
  constexpr stream_ref(const S &stream) : stream_(stream.value()) {}

  /// The handle.
  constexpr forebay_stream_t get() const noexcept { return stream_; }

  friend constexpr bool operator==(stream_ref a, stream_ref b) noexcept {
    return a.stream_ == b.stream_;
  }
  friend constexpr bool operator!=(stream_ref a, stream_ref b) noexcept { return !(a == b); }

 private:
  forebay_stream_t stream_ = nullptr;
};

// ---------------------------------------------------------------- pools

/// Options for a new pool, filled with the defaults (environment variables included).
struct pool_options : forebay_pool_options {
  /// Throws when the configuration is wrong and FOREBAY_STRICT=1.
  pool_options() : forebay_pool_options{} { check(forebay_pool_options_init(this)); }
};

/// A pool of device memory: owned (made from options) or only named (`view`, `of_device`).
///
/// An owning pool must outlive every block, buffer and resource taken from it; blocks still
/// live when it goes are reported as leaks and their addresses become stale. It cannot go while a
/// graph capture is open on it: `reset` says so; a destructor leaves it to forebay_shutdown().
class pool {
 public:
  /// A function called when a request finds no memory, with its bytes; true: try again.
  using oom_function = std::function<bool(std::size_t bytes)>;
  /// A function called before pages of [address, address + bytes) are unmapped.
  using unmap_function = std::function<void(void *address, std::size_t bytes)>;

  /// The default device's default pool, not owned.
  pool() noexcept = default;
  /// Makes a pool of its own.
  explicit pool(const forebay_pool_options &options) : owned_(true) {
    check(forebay_pool_create(&handle_, &options));
  }
  /// The pool behind a handle that someone else owns; NULL is the default pool.
  static pool view(forebay_pool_t handle) noexcept {
    pool named;
    named.handle_ = handle;
    return named;
  }
  /// The default pool of a device, not owned.
  static pool of_device(std::int32_t device) {
    pool named;
    check(forebay_pool_default(device, &named.handle_));
    return named;
  }

  pool(pool &&other) noexcept { swap(other); }
  pool &operator=(pool &&other) noexcept {
    pool taken(std::move(other));
    swap(taken);
    return *this;
  }
  pool(const pool &) = delete;
  pool &operator=(const pool &) = delete;
  ~pool() { static_cast<void>(reset()); }

  /// The C handle; NULL names the default pool.
  forebay_pool_t get() const noexcept { return handle_; }
  /// Whether this object destroys the pool.
  bool owned() const noexcept { return owned_; }
  /// Destroys an owned pool. Afterwards this names the default pool. False: it cannot go now (a
  /// capture is open, or the driver refused) and is still owned, without its callbacks.
  bool reset() noexcept {
    drop_callbacks();
    const forebay_status status = owned_ ? forebay_pool_destroy(handle_) : FOREBAY_OK;
    const bool refused = status == FOREBAY_ERROR_DRIVER || status == FOREBAY_ERROR_UNSUPPORTED;
    if (refused || status == FOREBAY_ERROR_BUSY) return false;
    owned_ = false;
    handle_ = nullptr;
    return true;
  }
  void swap(pool &other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(owned_, other.owned_);
    std::swap(oom_, other.oom_);
    std::swap(unmap_, other.unmap_);
  }

  /// `bytes` for use on `stream`; nullptr when `bytes` is 0.
  void *allocate(std::size_t bytes, stream_ref stream = {}) const {
    void *block = nullptr;
    check(forebay_alloc(handle_, &block, bytes, stream.get()));
    return block;
  }
  /// The same, aligned: a power of two up to `max_alignment`.
  void *allocate_aligned(std::size_t bytes, std::size_t alignment, stream_ref stream = {}) const {
    void *block = nullptr;
    check(forebay_alloc_aligned(handle_, &block, bytes, alignment, stream.get()));
    return block;
  }
  /// Gives a block back, free as of the work queued on `stream` so far. Throws on wrong use
  /// (twice freed, not ours, inside a block); nullptr is fine.
  void deallocate(void *block, stream_ref stream = {}) const {
    check(forebay_dealloc(handle_, block, stream.get()));
  }
  /// Says that work on another stream uses the block, so that its reuse waits for that too.
  void record_use(void *block, stream_ref stream) const {
    check(forebay_record_use(handle_, block, stream.get()));
  }

  /// Returns unused pages to the device until at most `keep_bytes` stay mapped; answers the
  /// bytes released.
  std::size_t trim(std::size_t keep_bytes = 0) const {
    std::size_t released = 0;
    check(forebay_pool_trim(handle_, keep_bytes, &released));
    return released;
  }
  /// Changes the limits, in bytes; 0 leaves one as it is.
  void set_limits(std::uint64_t hard, std::uint64_t soft) const {
    check(forebay_pool_set_limits(handle_, hard, soft));
  }
  /// The accounts, exact while no other thread works on the pool.
  forebay_stats stats() const {
    forebay_stats stats{};
    stats.struct_size = static_cast<decltype(stats.struct_size)>(sizeof stats);
    check(forebay_pool_stats(handle_, &stats));
    return stats;
  }
  /// The whole report as JSON.
  std::string report_json() const {
    std::size_t needed = 0;
    check(forebay_pool_report_json(handle_, nullptr, 0, &needed));
    // Other threads may lengthen the report between two calls: ask until it fits.
    for (;;) {
      std::string text(needed, '\0');
      const std::size_t capacity = text.size();
      check(forebay_pool_report_json(handle_, text.data(), capacity, &needed));
      if (needed > capacity) continue;
      text.resize(std::char_traits<char>::length(text.c_str()));
      return text;
    }
  }
  /// Live bytes that carry a tag.
  std::uint64_t tag_bytes(std::uint32_t tag) const {
    std::uint64_t live = 0;
    check(forebay_tag_bytes(handle_, tag, &live));
    return live;
  }
  /// Calls `visit(const forebay_leak &)` for each live block. What it throws is passed on once
  /// the walk is over; blocks after that are not visited.
  template <class Visit>
  void leaks(Visit &&visit) const {
    struct context {
      std::remove_reference_t<Visit> *visit;
      std::exception_ptr thrown;
    } ctx{&visit, nullptr};
    auto call = [](void *raw, const forebay_leak *leak) noexcept {
      auto &in = *static_cast<context *>(raw);
      if (in.thrown) return;
      try {
        (*in.visit)(*leak);
      } catch (...) {
        in.thrown = std::current_exception();
      }
    };
    check(forebay_pool_leaks(handle_, call, &ctx));
    if (ctx.thrown) std::rethrow_exception(ctx.thrown);
  }

  /// Sets what is called when memory runs out; empty: nothing. It may free blocks of this pool.
  /// One that throws counts as one that answers false. Lives as long as this object.
  void on_out_of_memory(oom_function function) {
    auto next = function ? std::make_unique<oom_function>(std::move(function)) : nullptr;
    auto call = [](void *ctx, std::size_t bytes) noexcept -> bool {
      try {
        return (*static_cast<oom_function *>(ctx))(bytes);
      } catch (...) {
        return false;
      }
    };
    check(next ? forebay_set_oom_callback(handle_, call, next.get())
               : forebay_set_oom_callback(handle_, nullptr, nullptr));
    oom_ = std::move(next);
  }
  /// Sets what is called before pages are unmapped; empty: nothing. What it throws is dropped.
  /// Lives as long as this object.
  void on_unmap(unmap_function function) {
    auto next = function ? std::make_unique<unmap_function>(std::move(function)) : nullptr;
    auto call = [](void *ctx, void *address, std::size_t bytes) noexcept {
      try {
        (*static_cast<unmap_function *>(ctx))(address, bytes);
      } catch (...) {  // the pages go all the same
      }
    };
    check(next ? forebay_set_on_unmap(handle_, call, next.get())
               : forebay_set_on_unmap(handle_, nullptr, nullptr));
    unmap_ = std::move(next);
  }

 private:
  void drop_callbacks() noexcept {
    if (oom_) static_cast<void>(forebay_set_oom_callback(handle_, nullptr, nullptr));
    if (unmap_) static_cast<void>(forebay_set_on_unmap(handle_, nullptr, nullptr));
    oom_.reset();
    unmap_.reset();
  }

  forebay_pool_t handle_ = nullptr;
  bool owned_ = false;
  // Behind pointers: the C side keeps their addresses while the pool object moves.
  std::unique_ptr<oom_function> oom_;
  std::unique_ptr<unmap_function> unmap_;
};

/// A stream of the host backend, or of the pool's device in a program without a runtime of its
/// own. Its destructor retires it from the pool, then destroys it.
class stream {
 public:
  /// A new stream of the pool's device. The pool must outlive it.
  explicit stream(const pool &from = {}) : handle_(nullptr, destroy{from.get()}) {
    forebay_stream_t made = nullptr;
    check(forebay_stream_create(from.get(), &made));
    handle_.reset(made);
  }

  /// The handle.
  forebay_stream_t get() const noexcept { return handle_.get(); }
  /// Waits for all work queued so far.
  void synchronize() const { check(forebay_stream_synchronize(of(), get())); }
  /// Queues a copy of `bytes` between device addresses.
  void copy(void *to, const void *from, std::size_t bytes) const {
    check(forebay_stream_copy(of(), to, from, bytes, get()));
  }
  /// Queues a fill of `bytes` with one value.
  void fill(void *to, std::uint8_t value, std::size_t bytes) const {
    check(forebay_stream_fill(of(), to, value, bytes, get()));
  }

 private:
  struct destroy {
    forebay_pool_t pool;
    void operator()(forebay_stream_t stream) const noexcept {
      static_cast<void>(forebay_stream_destroy(pool, stream));
    }
  };
  forebay_pool_t of() const noexcept { return handle_.get_deleter().pool; }
  std::unique_ptr<void, destroy> handle_;
};

// ---------------------------------------------------------------- blocks

/// Frees a block for `std::unique_ptr`. Runs no destructors.
struct deleter {
  /// The pool; NULL is the default pool.
  forebay_pool_t pool = nullptr;
  /// The stream on which the block is freed.
  stream_ref stream = {};
  void operator()(void *block) const noexcept {
    static_cast<void>(forebay_dealloc(pool, block, stream.get()));
  }
};

/// A `std::unique_ptr` to device memory: `forebay::unique_ptr<float[]>`.
template <class T>
using unique_ptr = std::unique_ptr<T, deleter>;

/// One block of device memory, freed on its stream. Move-only.
class buffer {
 public:
  /// No block.
  buffer() noexcept = default;
  /// `bytes` out of `from` for use on `on`. The pool must outlive the buffer.
  explicit buffer(std::size_t bytes, stream_ref on = {}, const pool &from = {})
      : block_(from.allocate(bytes, on), deleter{from.get(), on}), size_(bytes) {}

  /// The block's address; nullptr when empty.
  void *data() const noexcept { return block_.get(); }
  /// The bytes asked for; 0 when empty.
  std::size_t size() const noexcept { return block_ ? size_ : 0; }
  /// The stream on which the block is freed.
  stream_ref stream() const noexcept { return block_.get_deleter().stream; }
  /// Frees on another stream from now on. Order the streams first, or `record_use` the old one.
  void set_stream(stream_ref on) noexcept { block_.get_deleter().stream = on; }
  /// Whether there is a block.
  explicit operator bool() const noexcept { return block_ != nullptr; }
  /// Gives up the block without freeing it.
  void *release() noexcept { return block_.release(); }
  /// Frees the block. A failure shows in `forebay_last_error()` only.
  void reset() noexcept { block_.reset(); }

 private:
  unique_ptr<void> block_;
  std::size_t size_ = 0;
};

/// `count` elements, not initialised: the memory may be out of the CPU's reach.
template <class T>
unique_ptr<T[]> make_unique(std::size_t count, stream_ref on = {}, const pool &from = {}) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "nothing is constructed or destroyed in device memory");
  static_assert(alignof(T) <= default_alignment, "use pool::allocate_aligned");
  if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
  void *block = from.allocate(count * sizeof(T), on);
  return unique_ptr<T[]>(static_cast<T *>(block), deleter{from.get(), on});
}

// ---------------------------------------------------------------- resources

/// A `std::pmr::memory_resource` over a pool and a stream, for alignments up to
/// `max_alignment`. Containers touch their elements from the CPU: use it where the memory is
/// the CPU's too (the host backend), or with containers that do not. The pool must outlive it.
class memory_resource final : public std::pmr::memory_resource {
 public:
  /// Over `from`, everything allocated and freed on `on`.
  explicit memory_resource(const pool &from = {}, stream_ref on = {}) noexcept
      : pool_(from.get()), stream_(on) {}
  /// The stream.
  stream_ref stream() const noexcept { return stream_; }

 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    void *block = nullptr;
    // 0 bytes must still have an address.
    const std::size_t wanted = bytes == 0 ? 1 : bytes;
    check(alignment <= default_alignment
              ? forebay_alloc(pool_, &block, wanted, stream_.get())
              : forebay_alloc_aligned(pool_, &block, wanted, alignment, stream_.get()));
    return block;
  }
  void do_deallocate(void *block, std::size_t, std::size_t) noexcept override {
    static_cast<void>(forebay_dealloc(pool_, block, stream_.get()));
  }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    const auto *same = dynamic_cast<const memory_resource *>(&other);
    return same != nullptr && same->pool_ == pool_ && same->stream_ == stream_;
  }

  forebay_pool_t pool_;
  stream_ref stream_;
};

/// A stream-ordered resource with the shape of `cuda::mr` and RMM resources, old names and new
/// ones: a copyable handle, equal when it names the same pool. The pool must outlive it.
///
/// Where a property is asked for, as CCCL and RMM do, include `forebay_cccl.hpp`, which says that
/// the memory is the device's, or `forebay_rmm.hpp`.
class stream_resource {
 public:
  /// Over `from`.
  explicit stream_resource(const pool &from = {}) noexcept : pool_(from.get()) {}

  /// `bytes` for use on `on`, at a power-of-two alignment up to `max_alignment`.
  void *allocate(stream_ref on, std::size_t bytes, std::size_t alignment = default_alignment) {
    void *block = nullptr;
    check(alignment <= default_alignment && (alignment & (alignment - 1)) == 0 && alignment != 0
              ? forebay_alloc(pool_, &block, bytes, on.get())
              : forebay_alloc_aligned(pool_, &block, bytes, alignment, on.get()));
    return block;
  }
  /// Frees, as of the work queued on `on` so far.
  void deallocate(stream_ref on, void *block, std::size_t,
                  std::size_t = default_alignment) noexcept {
    static_cast<void>(forebay_dealloc(pool_, block, on.get()));
  }
  /// `bytes` on the default stream.
  void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate(stream_ref{}, bytes, alignment);
  }
  /// Frees on the default stream.
  void deallocate_sync(void *block, std::size_t bytes,
                       std::size_t alignment = default_alignment) noexcept {
    deallocate(stream_ref{}, block, bytes, alignment);
  }

  /// The same under the older names.
  void *allocate_async(std::size_t bytes, std::size_t alignment, stream_ref on) {
    return allocate(on, bytes, alignment);
  }
  void *allocate_async(std::size_t bytes, stream_ref on) { return allocate(on, bytes); }
  void deallocate_async(void *block, std::size_t bytes, std::size_t alignment,
                        stream_ref on) noexcept {
    deallocate(on, block, bytes, alignment);
  }
  void deallocate_async(void *block, std::size_t bytes, stream_ref on) noexcept {
    deallocate(on, block, bytes);
  }
  void *allocate(std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(void *block, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    deallocate_sync(block, bytes, alignment);
  }

  friend bool operator==(const stream_resource &a, const stream_resource &b) noexcept {
    return a.pool_ == b.pool_;
  }
  friend bool operator!=(const stream_resource &a, const stream_resource &b) noexcept {
    return !(a == b);
  }
 private:
  forebay_pool_t pool_;
};

/// A `std::pmr::memory_resource` of pinned host memory, which CPU and device both reach.
/// Alignments up to `default_alignment`; all instances are equal.
class pinned_resource final : public std::pmr::memory_resource {
 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (alignment > default_alignment) {
      throw failure(FOREBAY_ERROR_INVALID_ARGUMENT,
                    "pinned memory is aligned to 256 bytes, not more");
    }
    void *block = nullptr;
    check(forebay_host_alloc(&block, bytes == 0 ? 1 : bytes));
    return block;
  }
  void do_deallocate(void *block, std::size_t, std::size_t) noexcept override {
    static_cast<void>(forebay_host_free(block));
  }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    return dynamic_cast<const pinned_resource *>(&other) != nullptr;
  }
};

// ---------------------------------------------------------------- fixed-size buffers

/// A fixed number of buffers of one size. Must outlive its leases; the pool must outlive it.
class buffers {
 public:
  /// Hands a buffer back, for `std::unique_ptr`.
  struct give_back {
    /// Where the buffer comes from.
    forebay_buffers_t owner = nullptr;
    /// The stream on which it is handed back.
    stream_ref stream = {};
    void operator()(void *block) const noexcept {
      static_cast<void>(forebay_buffers_release(owner, block, stream.get()));
    }
  };
  /// One buffer out on loan: `get()` is its address.
  using lease = std::unique_ptr<void, give_back>;

  /// `count` buffers of `bytes` each.
  buffers(std::size_t bytes, std::size_t count, const pool &from = {}) : bytes_(bytes) {
    forebay_buffers_t made = nullptr;
    check(forebay_buffers_create(from.get(), bytes, count, &made));
    handle_.reset(made);
  }

  /// The size of each, in bytes.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Takes a buffer for use on `on`; throws `out_of_memory` when all are out.
  lease acquire(stream_ref on = {}) const {
    void *block = nullptr;
    check(forebay_buffers_acquire(handle_.get(), on.get(), &block));
    return lease(block, give_back{handle_.get(), on});
  }
 private:
  struct destroy {
    void operator()(forebay_buffers_t handle) const noexcept {
      static_cast<void>(forebay_buffers_destroy(handle));
    }
  };
  std::unique_ptr<std::remove_pointer_t<forebay_buffers_t>, destroy> handle_;
  std::size_t bytes_ = 0;
};

// ---------------------------------------------------------------- tags

/// The number of a tag's name, made at first use.
inline std::uint32_t make_tag(const char *name) {
  std::uint32_t tag = 0;
  check(forebay_tag_create(name, &tag));
  return tag;
}

/// Stamps what this thread allocates with a tag until the end of the scope. Not to be moved
/// to another thread.
class tag_scope {
 public:
  /// Sets the tag.
  explicit tag_scope(std::uint32_t tag) { check(forebay_tag_set(tag, &previous_)); }
  tag_scope(const tag_scope &) = delete;
  tag_scope &operator=(const tag_scope &) = delete;
  /// Sets the tag that was there before.
  ~tag_scope() { static_cast<void>(forebay_tag_set(previous_, nullptr)); }
 private:
  std::uint32_t previous_ = 1;
};

}  // namespace forebay
#endif
