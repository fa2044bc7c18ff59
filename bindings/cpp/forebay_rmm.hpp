// Forebay's pools as RMM resources. Header only; C++17, or what RMM asks for.
//
// `forebay::rmm_resource` serves RMM in the form that its version has: up to 25.x a class derived
// from `rmm::mr::device_memory_resource`, later a copyable type that satisfies `cuda::mr::resource`
// with `device_accessible`. Either can be the current resource of a device, the upstream of any of
// RMM's adaptors and pools, and what RMM's containers are given:
//
//     forebay::rmm_resource resource;                                  // the default pool
//     rmm::mr::set_current_device_resource(&resource);                 // RMM up to 25.x
//     rmm::mr::set_current_device_resource(resource);                  // later ones
//
// A lack of memory is `rmm::out_of_memory`, any other failure `rmm::bad_alloc`, both with Forebay's
// sentence. A free never throws. What a pool is for, RMM's own pools need not do again: over this
// resource they only add their rules.
//
// Streams: as `forebay_cccl.hpp` says. Threads: any number at once. The pool must outlive it.
#ifndef FOREBAY_RMM_HPP
#define FOREBAY_RMM_HPP

#include <forebay_cccl.hpp>

#include <rmm/cuda_stream_view.hpp>
#include <rmm/error.hpp>

#if __has_include(<rmm/mr/device/device_memory_resource.hpp>)
#include <rmm/mr/device/device_memory_resource.hpp>
#define FOREBAY_RMM_HAS_BASE 1
#else
#define FOREBAY_RMM_HAS_BASE 0
#endif

namespace forebay {

namespace detail {

/// Allocates, with RMM's exceptions in the place of ours.
inline void *rmm_allocate(forebay_pool_t pool, std::size_t bytes, std::size_t alignment,
                          forebay_stream_t stream) {
  void *block = nullptr;
  const bool usual = alignment <= default_alignment && alignment != 0;
  const forebay_status status =
      usual && (alignment & (alignment - 1)) == 0
          ? forebay_alloc(pool, &block, bytes, stream)
          : forebay_alloc_aligned(pool, &block, bytes, alignment, stream);
  if (status == FOREBAY_OK) return block;
  std::string text = forebay_status_name(status);
  const char *last = forebay_last_error();
  if (last != nullptr && *last != '\0') text.append(": ").append(last);
  if (status == FOREBAY_ERROR_OUT_OF_MEMORY) throw rmm::out_of_memory(text);
  throw rmm::bad_alloc(text);
}

}  // namespace detail

#if FOREBAY_RMM_HAS_BASE

/// A pool as a resource of RMM up to 25.x.
class rmm_resource final : public rmm::mr::device_memory_resource {
 public:
  /// Over `from`, which must outlive it.
  explicit rmm_resource(const pool &from = {}) noexcept : pool_(from.get()) {}

 private:
  void *do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override {
    return detail::rmm_allocate(pool_, bytes, default_alignment, stream.value());
  }
  void do_deallocate(void *block, std::size_t, rmm::cuda_stream_view stream) noexcept override {
    static_cast<void>(forebay_dealloc(pool_, block, stream.value()));
  }
  bool do_is_equal(const rmm::mr::device_memory_resource &other) const noexcept override {
    const auto *same = dynamic_cast<const rmm_resource *>(&other);
    return same != nullptr && same->pool_ == pool_;
  }

  forebay_pool_t pool_;
};

#else

/// A pool as a resource of RMM that takes any `cuda::mr::resource`: a copyable handle, equal when
/// it names the same pool.
class rmm_resource {
 public:
  /// Over `from`, which must outlive it and its copies.
  explicit rmm_resource(const pool &from = {}) noexcept : pool_(from.get()) {}

  /// `bytes` for use on `on`, at a power-of-two alignment up to `max_alignment`.
  void *allocate(cuda::stream_ref on, std::size_t bytes,
                 std::size_t alignment = default_alignment) {
    return detail::rmm_allocate(pool_, bytes, alignment, on.get());
  }
  /// Frees, as of the work queued on `on` so far.
  void deallocate(cuda::stream_ref on, void *block, std::size_t,
                  std::size_t = default_alignment) noexcept {
    static_cast<void>(forebay_dealloc(pool_, block, on.get()));
  }
  /// `bytes` on the default stream.
  void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return detail::rmm_allocate(pool_, bytes, alignment, nullptr);
  }
  /// Frees with `cudaFree`'s meaning: whichever stream uses the block.
  void deallocate_sync(void *block, std::size_t, std::size_t = default_alignment) noexcept {
    static_cast<void>(forebay_free(block));
  }

  friend bool operator==(const rmm_resource &a, const rmm_resource &b) noexcept {
    return a.pool_ == b.pool_;
  }
  friend bool operator!=(const rmm_resource &a, const rmm_resource &b) noexcept {
    return !(a == b);
  }
  /// The memory is the device's.
  friend constexpr void get_property(const rmm_resource &, cuda::mr::device_accessible) noexcept {}

 private:
  forebay_pool_t pool_;
};

static_assert(cuda::mr::resource_with<rmm_resource, cuda::mr::device_accessible>,
              "a stream-ordered resource of the device");

#endif

}  // namespace forebay

#endif
