// ONNX Runtime's CPU wheel over Forebay's pools, through its C API.
//
// `host`: an allocator over the host backend is registered for the CPU's memory, and a session
// takes what it computes with from the pool. `cuda`: one over the simulated device is registered
// for a device's memory, and tensors are made there. Kernels for a device are not in this wheel, so
// no session computes there: that is not shown.
#include <onnxruntime_c_api.h>

#include <forebay_onnxruntime.hpp>

#include "check.hpp"
#include "onnx_model.hpp"
#include "pools.hpp"

#include <dlfcn.h>

#include <cstring>
#include <vector>

namespace {

const OrtApi *api = nullptr;

void must(OrtStatus *status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "ONNX Runtime: %s\n", api->GetErrorMessage(status));
  std::exit(1);
}

const OrtApi *load() {
  void *library = dlopen(ONNXRUNTIME_LIBRARY, RTLD_NOW);
  CHECK(library != nullptr);
  auto *base = reinterpret_cast<const OrtApiBase *(*)()>(dlsym(library, "OrtGetApiBase"));
  CHECK(base != nullptr && base()->GetApi(ORT_API_VERSION) != nullptr);
  return base()->GetApi(ORT_API_VERSION);
}

OrtEnv *environment() {
  OrtEnv *made = nullptr;
  must(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "forebay", &made));
  return made;
}

constexpr std::size_t count = 100'000;
constexpr std::size_t bytes = count * sizeof(float);

// A run's result and the value in between are blocks of the pool, and come back to it.
void a_session_takes_the_pools_memory() {
  const forebay::pool pool = make_pool(mib(64));
  const forebay::stream stream(pool);
  forebay::ort_allocator allocator(*api, pool, stream, "Cpu", 0);
  OrtEnv *env = environment();
  must(api->RegisterAllocator(env, &allocator));
  OrtSessionOptions *options = nullptr;
  must(api->CreateSessionOptions(&options));
  must(api->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  const std::string model = onnx_model::twice_negative(count);
  OrtSession *session = nullptr;
  must(api->CreateSessionFromArray(env, model.data(), model.size(), options, &session));

  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i) * 0.5f;
  OrtValue *input = nullptr;
  const std::int64_t shape = count;
  must(api->CreateTensorWithDataAsOrtValue(allocator.info(), numbers.data(), bytes, &shape, 1,
                                           ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input));
  const char *from[] = {"x"};
  const char *to[] = {"y"};
  const OrtValue *inputs[] = {input};
  const std::uint64_t before = pool.stats().allocs;
  for (int run = 0; run < 3; ++run) {
    OrtValue *output = nullptr;
    must(api->Run(session, nullptr, from, inputs, 1, to, 1, &output));
    void *data = nullptr;
    must(api->GetTensorMutableData(output, &data));
    CHECK(forebay_owns(data));
    CHECK(pool.stats().live_bytes >= bytes);
    const float *values = static_cast<const float *>(data);
    for (std::size_t i = 0; i < count; ++i) CHECK(values[i] == -static_cast<float>(i));
    api->ReleaseValue(output);
  }
  // Each run has the result at least.
  CHECK(pool.stats().allocs >= before + 3);
  api->ReleaseValue(input);
  api->ReleaseSession(session);
  api->ReleaseSessionOptions(options);
  must(api->UnregisterAllocator(env, allocator.info()));
  api->ReleaseEnv(env);
  CHECK(pool.stats().live_blocks == 0);
}

// Tensors in memory that is named for a device are blocks of the device's pool.
void tensors_are_made_in_a_devices_memory() {
  const forebay::pool pool = make_pool(mib(64));
  const forebay::stream stream(pool);
  forebay::ort_allocator allocator(*api, pool, stream, "Cuda", 0);
  OrtEnv *env = environment();
  must(api->RegisterAllocator(env, &allocator));
  const std::int64_t shape = count;
  OrtValue *tensor = nullptr;
  must(api->CreateTensorAsOrtValue(&allocator, &shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                                   &tensor));
  void *data = nullptr;
  must(api->GetTensorMutableData(tensor, &data));
  CHECK(forebay_owns(data) && pool.stats().live_bytes >= bytes);
  const OrtMemoryInfo *place = nullptr;
  const char *name = nullptr;
  must(api->GetTensorMemoryInfo(tensor, &place));
  must(api->MemoryInfoGetName(place, &name));
  CHECK(std::strcmp(name, "Cuda") == 0);
  // More than there is: an error, and nothing is lost.
  const std::int64_t much = std::int64_t{1} << 30;
  OrtValue *none = nullptr;
  OrtStatus *status = api->CreateTensorAsOrtValue(
      &allocator, &much, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &none);
  CHECK(status != nullptr && none == nullptr);
  CHECK(std::strstr(api->GetErrorMessage(status), "4294967296 bytes requested") != nullptr);
  api->ReleaseStatus(status);
  CHECK(pool.stats().live_blocks == 1);
  api->ReleaseValue(tensor);
  CHECK(pool.stats().live_blocks == 0);
  must(api->UnregisterAllocator(env, allocator.info()));
  api->ReleaseEnv(env);
}

void a_name_that_is_none_is_told() {
  const forebay::pool pool = make_pool(mib(16));
  CHECK_THROWS(forebay::failure, forebay::ort_allocator(*api, pool, {}, "Abacus", 0));
}

}  // namespace

int main(int argc, char **argv) {
  CHECK(argc == 2);
  api = load();
  if (std::strcmp(argv[1], "host") == 0) {
    a_session_takes_the_pools_memory();
  } else {
    tensors_are_made_in_a_devices_memory();
    a_name_that_is_none_is_told();
  }
  return shown("ONNX Runtime takes memory from a pool");
}
