// Steps by plans, for C++17: record a step once, plan it, run it again and again. Beside
// forebay.hpp, whose rules hold: move-only types, a failing call throws, destructors do not.
#ifndef FOREBAY_PLAN_HPP
#define FOREBAY_PLAN_HPP

#include <forebay.hpp>

#include <initializer_list>
#include <vector>

namespace forebay {

namespace detail {
/// Ends a handle by its C function, for std::unique_ptr.
template <class T, forebay_status (*End)(T *)>
struct ending {
  void operator()(T *handle) const noexcept { static_cast<void>(End(handle)); }
};
template <class T, forebay_status (*End)(T *)>
using handle = std::unique_ptr<T, ending<T, End>>;
}  // namespace detail

/// What is allocated from a pool and freed to it by stream-ordered calls, from the constructor up
/// to `end`. Any thread may use it.
class recording {
 public:
  /// Begins to record all streams of `from`.
  explicit recording(const pool &from = {})
      : recording(from, reinterpret_cast<forebay_stream_t>(
                            static_cast<std::uintptr_t>(FOREBAY_ALL_STREAMS))) {}
  /// Begins to record one stream.
  recording(const pool &from, stream_ref only) {
    forebay_recording_t made = nullptr;
    check(forebay_record_begin(from.get(), only.get(), &made));
    handle_.reset(made);
  }

  /// The handle.
  forebay_recording_t get() const noexcept { return handle_.get(); }
  /// Makes later work of `to` wait for the work of `from`, and records it.
  void fence(stream_ref from, stream_ref to) const {
    check(forebay_record_fence(get(), from.get(), to.get()));
  }
  /// Ends it: buffers, streams and plans can be asked for from now on.
  void end() const { check(forebay_record_end(get())); }
  /// Its buffers in the order of their births.
  std::vector<forebay_recorded_buffer> buffers() const {
    std::size_t count = 0;
    check(forebay_recording_buffers(get(), nullptr, 0, &count));
    std::vector<forebay_recorded_buffer> all(count);
    check(forebay_recording_buffers(get(), all.data(), count, nullptr));
    return all;
  }
  /// The stream of each lane: what a step by the plan is begun with.
  std::vector<forebay_stream_t> streams() const {
    std::size_t count = 0;
    check(forebay_recording_streams(get(), nullptr, 0, &count));
    std::vector<forebay_stream_t> all(count);
    check(forebay_recording_streams(get(), all.data(), count, nullptr));
    return all;
  }

 private:
  detail::handle<forebay_recording, forebay_recording_destroy> handle_;
};

/// A plan: an offset for each buffer of a step.
class plan {
 public:
  /// The plan of a recording that has ended; `options` may be null.
  explicit plan(const recording &step, const forebay_plan_options *options = nullptr) {
    forebay_plan_t made = nullptr;
    check(forebay_plan_create_from_recording(step.get(), options, &made));
    handle_.reset(made);
  }

  /// The handle.
  forebay_plan_t get() const noexcept { return handle_.get(); }
  /// Its figures.
  forebay_plan_info info() const {
    forebay_plan_info info{};
    info.struct_size = sizeof info;
    check(forebay_plan_get_info(get(), &info));
    return info;
  }

 private:
  detail::handle<forebay_plan, forebay_plan_destroy> handle_;
};

/// A block of a pool and the plans that share it. The pool must outlive it. The destructor cannot
/// say that ending is refused (a step is open, or a graph captured from one is not released): the
/// block stays then. `end` says it, and may be called again.
class binding {
 public:
  /// Binds one plan, under signature 0: a block of exactly its height.
  explicit binding(const plan &bound, const pool &to = {}) {
    forebay_binding_t made = nullptr;
    check(forebay_plan_bind(bound.get(), to.get(), &made));
    handle_.reset(made);
  }
  /// Without plans; `options` may be null.
  explicit binding(const pool &to, const forebay_binding_options *options = nullptr) {
    forebay_binding_t made = nullptr;
    check(forebay_binding_create(to.get(), options, &made));
    handle_.reset(made);
  }

  /// The handle.
  forebay_binding_t get() const noexcept { return handle_.get(); }
  /// Adds a plan under a signature.
  void add(std::uint64_t signature, const plan &added) const {
    check(forebay_binding_add(get(), signature, added.get()));
  }
  /// Has the next step of this signature recorded and planned.
  void learn(std::uint64_t signature) const { check(forebay_binding_learn(get(), signature)); }
  /// Ends it: the plan block goes back. Throws, and changes nothing, while a step is open or a
  /// graph that was captured from one is not released.
  void end() {
    check(forebay_plan_unbind(get()));
    static_cast<void>(handle_.release());
  }
  /// What it has done so far.
  forebay_binding_stats stats() const {
    forebay_binding_stats stats{};
    stats.struct_size = sizeof stats;
    check(forebay_binding_get_stats(get(), &stats));
    return stats;
  }

 private:
  detail::handle<forebay_binding, forebay_plan_unbind> handle_;
};

/// An open step of a binding, used by the thread that made it. The destructor ends it in any case:
/// what is live of it in the plan block is given up. The binding must outlive it.
class planned_step {
 public:
  /// Begins a step on one stream for each lane of the plan.
  planned_step(const binding &of, const std::vector<forebay_stream_t> &streams,
               std::uint64_t signature = 0) {
    forebay_step_t made = nullptr;
    check(forebay_plan_step(of.get(), signature, streams.data(), streams.size(), &made));
    handle_.reset(made);
  }
  /// The same for streams in braces: `planned_step(b, {stream})`.
  planned_step(const binding &of, std::initializer_list<forebay_stream_t> streams,
               std::uint64_t signature = 0)
      : planned_step(of, std::vector<forebay_stream_t>(streams), signature) {}
  /// Begins a step of one lane.
  explicit planned_step(const binding &of, stream_ref on = {}, std::uint64_t signature = 0)
      : planned_step(of, std::vector<forebay_stream_t>{on.get()}, signature) {}

  /// The handle.
  forebay_step_t get() const noexcept { return handle_.get(); }
  /// The step's next buffer, for use on `on`; nullptr when `bytes` is 0.
  void *allocate(std::size_t bytes, stream_ref on = {}) const {
    void *buffer = nullptr;
    check(forebay_step_alloc(get(), &buffer, bytes, on.get()));
    return buffer;
  }
  /// A buffer that is not planned and is freed before `births` more planned ones are allocated.
  void *allocate_within(std::size_t bytes, std::uint64_t births, stream_ref on = {}) const {
    void *buffer = nullptr;
    check(forebay_step_alloc_within(get(), &buffer, bytes, births, on.get()));
    return buffer;
  }
  /// Gives a buffer back, in a stream's order. Throws on wrong use.
  void deallocate(void *buffer, stream_ref on = {}) const {
    check(forebay_step_free(get(), buffer, on.get()));
  }
  /// Says that work on another lane uses the buffer.
  void record_use(void *buffer, stream_ref on) const {
    check(forebay_step_record_use(get(), buffer, on.get()));
  }
  /// Makes later work of `to` wait for the work of `from`.
  void fence(stream_ref from, stream_ref to) const {
    check(forebay_step_fence(get(), from.get(), to.get()));
  }
  /// Ends the step. Throws, and leaves it open, while buffers of it are live.
  void end() {
    check(forebay_step_end(get()));
    static_cast<void>(handle_.release());
  }

 private:
  detail::handle<forebay_step, forebay_step_abandon> handle_;
};

/// The same under another name.
using PlannedStep = planned_step;

}  // namespace forebay
#endif
