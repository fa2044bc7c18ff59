// ONNX Runtime's BFCArena, in its CPU wheel and through its C API.
//
// The arena takes its regions from the system by `aligned_alloc` (other versions by
// `posix_memalign`). This program has functions of these names, which the library finds first: what
// is as large as a region comes from the simulated device, one plain allocation each, and goes back
// there by `free`. All smaller requests, the library's own among them, stay the system's.
#include <onnxruntime_c_api.h>

#include "bench.hpp"
#include "onnx_model.hpp"

#include <cerrno>

extern "C" void __libc_free(void *block);
extern "C" void *__libc_memalign(std::size_t alignment, std::size_t bytes);

namespace {

bench::device *device = nullptr;
/// Whether regions come from the device: not while the device itself asks for memory.
bool redirected = false;
/// The arena's first region, and what it takes at least later, is 1 MiB.
constexpr std::size_t region_bytes = bench::mib;
constexpr std::size_t regions_max = 4096;
void *regions[regions_max];
std::size_t region_count = 0;
/// Addresses below and above all regions, for a test that costs other frees nothing.
void *lowest = nullptr;
void *highest = nullptr;

void *new_region(std::size_t bytes) {
  if (region_count == regions_max) return nullptr;
  redirected = false;
  void *region = device->allocate(bytes);
  redirected = true;
  if (region == nullptr) return nullptr;
  regions[region_count++] = region;
  if (lowest == nullptr || region < lowest) lowest = region;
  if (region > highest) highest = region;
  return region;
}

/// Whether it was a region.
bool end_region(void *block) {
  for (std::size_t i = 0; i < region_count; i++) {
    if (regions[i] != block) continue;
    regions[i] = regions[--region_count];
    device->deallocate(block);
    return true;
  }
  return false;
}

}  // namespace

extern "C" void *aligned_alloc(std::size_t alignment, std::size_t bytes) {
  const bool region = redirected && bytes >= region_bytes;
  return region ? new_region(bytes) : __libc_memalign(alignment, bytes);
}

extern "C" int posix_memalign(void **to, std::size_t alignment, std::size_t bytes) {
  void *block = aligned_alloc(alignment, bytes);
  if (block == nullptr) return ENOMEM;
  *to = block;
  return 0;
}

extern "C" void free(void *block) {
  if (block >= lowest && block <= highest && block != nullptr && end_region(block)) return;
  __libc_free(block);
}

namespace {

const OrtApi *api = nullptr;

void must(OrtStatus *status) {
  if (status != nullptr) bench::die(api->GetErrorMessage(status));
}

struct arena {
  OrtAllocator *allocator = nullptr;

  void *take(std::size_t bytes) { return allocator->Alloc(allocator, bytes); }
  void give(void *block, std::size_t) { allocator->Free(allocator, block); }
};

/// The arena of a session, with all defaults.
arena open() {
  void *library = dlopen(ONNXRUNTIME_LIBRARY, RTLD_NOW);
  if (library == nullptr) bench::die(dlerror());
  auto *base = reinterpret_cast<const OrtApiBase *(*)()>(dlsym(library, "OrtGetApiBase"));
  if (base == nullptr) bench::die("no OrtGetApiBase");
  api = base()->GetApi(ORT_API_VERSION);
  if (api == nullptr) bench::die("the library is too old");
  OrtEnv *env = nullptr;
  OrtSessionOptions *options = nullptr;
  OrtSession *session = nullptr;
  OrtMemoryInfo *memory = nullptr;
  arena made;
  must(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "bench", &env));
  must(api->CreateSessionOptions(&options));
  const std::string model = onnx_model::twice_negative(4);
  must(api->CreateSessionFromArray(env, model.data(), model.size(), options, &session));
  must(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  must(api->CreateAllocator(session, memory, &made.allocator));
  return made;
}

}  // namespace

int main(int count, char **words) {
  const bench::request request(count, words);
  bench::device simulated;
  device = &simulated;
  redirected = true;
  arena allocator = open();
  return bench::run(allocator, request.asked, request.what, device);
}
