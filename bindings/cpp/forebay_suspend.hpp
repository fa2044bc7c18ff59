// Forebay for C++17: memory of tags given back to the device for a while. Header only, beside
// forebay.hpp, whose rules hold: a failing call throws, destructors never do.
#ifndef FOREBAY_SUSPEND_HPP
#define FOREBAY_SUSPEND_HPP

#include <forebay.hpp>

#include <vector>

namespace forebay {

/// What becomes of contents while their memory is away.
enum class contents : std::uint32_t {
  /// They are kept in host memory.
  offload = FOREBAY_SUSPEND_OFFLOAD,
  /// They are dropped.
  discard = FOREBAY_SUSPEND_DISCARD,
};

/// Makes a tag suspendable: what is allocated under it from now on has pages of its own.
inline void make_suspendable(const pool &of, std::uint32_t tag) {
  check(forebay_tag_suspendable(of.get(), tag));
}

/// Whether a tag is suspended now.
inline bool is_suspended(const pool &of, std::uint32_t tag) {
  bool answer = false;
  check(forebay_tag_is_suspended(of.get(), tag, &answer));
  return answer;
}

/// Tags whose memory is away while this object lives; see forebay_suspend(). resume() says why they
/// could not come back; the destructor tries once, and says nothing: they stay suspended then.
/// The pool outlives it. Move-only.
class suspension {
 public:
  /// Suspends the tags, all or none.
  suspension(const pool &of, std::vector<std::uint32_t> tags, contents level = contents::offload)
      : pool_(of.get()), tags_(std::move(tags)) {
    report_.struct_size = static_cast<decltype(report_.struct_size)>(sizeof report_);
    check(forebay_suspend(pool_, tags_.data(), tags_.size(), static_cast<std::uint32_t>(level),
                          &report_));
    away_ = true;
  }
  suspension(suspension &&other) noexcept
      : pool_(other.pool_), tags_(std::move(other.tags_)), report_(other.report_),
        away_(std::exchange(other.away_, false)) {}
  suspension &operator=(suspension &&) = delete;
  suspension(const suspension &) = delete;
  suspension &operator=(const suspension &) = delete;
  ~suspension() {
    if (away_) static_cast<void>(forebay_resume(pool_, tags_.data(), tags_.size(), nullptr));
  }

  /// What the suspend did.
  const forebay_suspend_report &report() const noexcept { return report_; }
  /// Brings the memory back, or throws and leaves it away: call it again, or let the object end.
  void resume() {
    if (!away_) return;
    check(forebay_resume(pool_, tags_.data(), tags_.size(), nullptr));
    away_ = false;
  }

 private:
  forebay_pool_t pool_ = nullptr;
  std::vector<std::uint32_t> tags_;
  forebay_suspend_report report_{};
  bool away_ = false;
};

}  // namespace forebay
#endif
