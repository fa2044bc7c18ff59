// mimalloc and a TLSF, which keep their lists inside the memory they hand out.
//
// The TLSF is given all of the simulated device's memory in one plain allocation: the CPU reaches
// that memory here, on a GPU it would not. mimalloc takes its memory from the system: it has rows
// of time alone.
#include "bench.hpp"

#include <sys/prctl.h>

extern "C" {
void *peer_mi_alloc(std::size_t bytes);
void peer_mi_free(void *block);
bool peer_tlsf_give(void *start, std::size_t bytes);
void *peer_tlsf_alloc(std::size_t bytes);
void peer_tlsf_free(void *block);
}

namespace {

struct mimalloc {
  void *take(std::size_t bytes) { return peer_mi_alloc(bytes); }
  void give(void *block, std::size_t) { peer_mi_free(block); }
};

struct tlsf {
  void *take(std::size_t bytes) { return peer_tlsf_alloc(bytes); }
  void give(void *block, std::size_t) { peer_tlsf_free(block); }
};

}  // namespace

int main(int count, char **words) {
  const bench::request request(count, words);
  // Both write a few words into each block. With huge pages that would be all of the memory of
  // 100,000 blocks, 12 GiB, and most of the time would be the kernel's.
  if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) bench::die("huge pages cannot be left out");
  if (request.allocator == "mimalloc") {
    mimalloc allocator;
    return bench::run(allocator, request.asked, request.what, nullptr);
  }
  if (request.allocator != "tlsf") bench::die("no allocator is called " + request.allocator);
  bench::device device;
  // Timed loads need no more than this of a device that is larger than any load.
  const std::size_t most = std::size_t{32} << 30;
  const std::size_t bytes = std::min(device.total(), most);
  void *arena = device.allocate(bytes);
  if (arena == nullptr || !peer_tlsf_give(arena, bytes)) bench::die("no arena for the TLSF");
  tlsf allocator;
  return bench::run(allocator, request.asked, request.what, &device);
}
