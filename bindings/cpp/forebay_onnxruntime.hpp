// A pool as an allocator of ONNX Runtime's C API (`OrtAllocator`). Header only; C++17.
//
// Include `onnxruntime_c_api.h` first, wherever it lies. The allocator can be registered with an
// environment, whose sessions then use it for the memory that it is named for when they are told
// `session.use_env_allocators`, and tensors can be made in its memory:
//
//     forebay::ort_allocator allocator(api, {}, stream, "Cuda", 0);
//     api.RegisterAllocator(env, &allocator);                // once; it must outlive `env`
//
// All is allocated and freed on one stream: the one on which the sessions run. ONNX Runtime frees
// what a run used when the run has been queued, so the order of that stream is what keeps the
// memory. Registered allocators are used as they are, without an arena of ONNX Runtime's.
//
// A lack of memory is thrown, as ONNX Runtime's own allocators do: it does not look at a null
// pointer, and answers an exception with a status that has its sentence. So what calls the
// allocator must be C++ that was built with exceptions, as ONNX Runtime's packages are. A free
// never throws. Threads: any number at once. Cost: the C call.
#ifndef FOREBAY_ONNXRUNTIME_HPP
#define FOREBAY_ONNXRUNTIME_HPP

#include <forebay.hpp>

namespace forebay {

/// A pool as an `OrtAllocator`. Not to be moved: ONNX Runtime keeps its address.
class ort_allocator : public OrtAllocator {
 public:
  /// Over `from`, everything on `on`. `name` and `device` are what ONNX Runtime calls the memory:
  /// "Cuda" and the device's number; "Cpu" on the host backend. `api` and the pool must outlive it.
  /// Throws `failure` where ONNX Runtime knows no such memory.
  ort_allocator(const OrtApi &api, const pool &from, stream_ref on, const char *name, int device)
      : OrtAllocator{}, api_(&api), pool_(from.get()), stream_(on) {
    version = ORT_API_VERSION;
    OrtAllocator::Alloc = [](OrtAllocator *self, std::size_t bytes) -> void * {
      return static_cast<ort_allocator *>(self)->take(bytes);
    };
    OrtAllocator::Free = [](OrtAllocator *self, void *block) {
      static_cast<ort_allocator *>(self)->give(block);
    };
    OrtAllocator::Info = [](const OrtAllocator *self) -> const OrtMemoryInfo * {
      return static_cast<const ort_allocator *>(self)->info_;
    };
    // For weights, which live as long as their session: an ordinary block of the pool.
    OrtAllocator::Reserve = OrtAllocator::Alloc;
    OrtStatus *status =
        api.CreateMemoryInfo(name, OrtDeviceAllocator, device, OrtMemTypeDefault, &info_);
    if (status == nullptr) return;
    const std::string why = api.GetErrorMessage(status);
    api.ReleaseStatus(status);
    throw failure(FOREBAY_ERROR_INVALID_ARGUMENT, why);
  }
  ort_allocator(const ort_allocator &) = delete;
  ort_allocator &operator=(const ort_allocator &) = delete;
  ~ort_allocator() { api_->ReleaseMemoryInfo(info_); }

  /// What ONNX Runtime calls the memory.
  const OrtMemoryInfo *info() const noexcept { return info_; }

 private:
  void *take(std::size_t bytes) {
    void *block = nullptr;
    check(forebay_alloc(pool_, &block, bytes, stream_.get()));
    return block;
  }
  void give(void *block) noexcept {
    static_cast<void>(forebay_dealloc(pool_, block, stream_.get()));
  }

  const OrtApi *api_;
  forebay_pool_t pool_;
  stream_ref stream_;
  OrtMemoryInfo *info_ = nullptr;
};

}  // namespace forebay

#endif
