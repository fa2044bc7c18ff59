// Forebay through its shared library, on one stream of the default pool.
#include <forebay.h>

#include "bench.hpp"

namespace {

struct pool {
  forebay_stream_t stream = nullptr;

  void *take(std::size_t bytes) const {
    void *block = nullptr;
    const forebay_status status = forebay_alloc(nullptr, &block, bytes, stream);
    if (status == FOREBAY_OK || status == FOREBAY_ERROR_OUT_OF_MEMORY) return block;
    bench::die(forebay_last_error());
  }
  void give(void *block, std::size_t) const {
    if (forebay_dealloc(nullptr, block, stream) != FOREBAY_OK) bench::die(forebay_last_error());
  }
};

}  // namespace

int main(int count, char **words) {
  const bench::request request(count, words);
  bench::device device;
  pool allocator;
  if (forebay_stream_create(nullptr, &allocator.stream) != FOREBAY_OK)
    bench::die(forebay_last_error());
  return bench::run(allocator, request.asked, request.what, &device);
}
