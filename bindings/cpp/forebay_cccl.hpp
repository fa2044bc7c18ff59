// Forebay's pools as memory resources of CCCL (`cuda::mr`). Header only; C++17 and later.
//
// Makes `forebay::stream_resource` a resource with `cuda::mr::device_accessible`: whatever takes
// one (`cuda::mr::resource_ref`, `any_resource`, containers, RMM) takes it. CCCL 2 has the concepts
// behind LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE; from CCCL 3 on they are always there.
//
// Streams: an allocation is for work on its stream, a free is in the order of its stream. Before a
// stream is destroyed call `forebay_stream_retire`, or its handle may come back as another's.
// Threads: any number at once. Cost: the C call, plus a test of its status.
#ifndef FOREBAY_CCCL_HPP
#define FOREBAY_CCCL_HPP

#include <forebay.hpp>

#include <cuda/memory_resource>
#include <cuda/stream_ref>

namespace forebay {

/// The memory is the device's. (On the host backend it is the CPU's too, which is not said here:
/// a program must not lean on it.)
constexpr void get_property(const stream_resource &, cuda::mr::device_accessible) noexcept {}

}  // namespace forebay

#if defined(CCCL_MAJOR_VERSION) && CCCL_MAJOR_VERSION >= 3
static_assert(
    cuda::mr::resource_with<forebay::stream_resource, cuda::mr::device_accessible>,
    "a stream-ordered resource of the device");
#elif defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
static_assert(
    cuda::mr::async_resource_with<forebay::stream_resource, cuda::mr::device_accessible>,
    "a stream-ordered resource of the device");
#endif

#endif
