// Forebay for C++17: memory shared with other devices, and with other processes by file
// descriptors. Header only, beside forebay.hpp, whose rules hold: owning objects are move-only, a
// failing call throws, destructors never do. POSIX: it closes descriptors.
#ifndef FOREBAY_SHARE_HPP
#define FOREBAY_SHARE_HPP

#include <forebay.hpp>

#include <vector>

#include <unistd.h>

namespace forebay {

/// Gives another device access to all of a pool's memory, present and future; up to 8 devices.
inline void enable_peer(const pool &of, std::int32_t device) {
  check(forebay_pool_enable_peer(of.get(), device));
}

/// Takes it away again.
inline void disable_peer(const pool &of, std::int32_t device) {
  check(forebay_pool_disable_peer(of.get(), device));
}

/// A block's pages as descriptors for other processes. The block must consist of whole pages. Its
/// memory stays as and where it is until the export is closed, also when it is freed before.
/// Move-only.
class exported {
 public:
  /// Nothing.
  exported() noexcept = default;
  /// Exports a live block. Throws when it does not consist of whole pages.
  explicit exported(const void *block) {
    forebay_export described{};
    described.struct_size = static_cast<decltype(described.struct_size)>(sizeof described);
    check(forebay_export_fd(block, nullptr, 0, &described));
    fds_.resize(static_cast<std::size_t>(described.count), -1);
    check(forebay_export_fd(block, fds_.data(), fds_.size(), &described));
    description_ = described;
  }
  exported(exported &&other) noexcept { swap(other); }
  exported &operator=(exported &&other) noexcept {
    exported taken(std::move(other));
    swap(taken);
    return *this;
  }
  exported(const exported &) = delete;
  exported &operator=(const exported &) = delete;
  ~exported() { reset(); }

  /// What the importing process needs beside the descriptors.
  const forebay_export &description() const noexcept { return description_; }
  /// The descriptors, to be sent; they stay this object's.
  const std::vector<int> &descriptors() const noexcept { return fds_; }
  /// Whether there is an export.
  explicit operator bool() const noexcept { return description_.id != 0; }
  /// Closes the descriptors: once sent they are not needed.
  void close_descriptors() noexcept {
    for (const int fd : fds_) static_cast<void>(::close(fd));
    fds_.clear();
  }
  /// Ends the export: other processes use the memory no more.
  void reset() noexcept {
    close_descriptors();
    if (description_.id != 0) static_cast<void>(forebay_export_close(description_.id));
    description_ = forebay_export{};
  }
  void swap(exported &other) noexcept {
    std::swap(description_, other.description_);
    std::swap(fds_, other.fds_);
  }

 private:
  forebay_export description_{};
  std::vector<int> fds_;
};

/// Maps memory that another process exported into a pool, given its description and its
/// descriptors, which are not needed afterwards. Freed like any block of the pool.
inline unique_ptr<void> import_memory(const forebay_export &description,
                                      const std::vector<int> &fds, const pool &into = {},
                                      stream_ref freed_on = {}) {
  if (fds.size() != description.count) {
    throw std::invalid_argument("an import needs the descriptors that its description counts");
  }
  void *memory = nullptr;
  check(forebay_import_fd(into.get(), fds.data(), &description, &memory));
  return unique_ptr<void>(memory, deleter{into.get(), freed_on});
}

}  // namespace forebay

#endif
