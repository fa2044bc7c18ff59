// Exceptions: each failure is caught as Forebay's own error, as std::exception, and as the
// standard type that callers expect, with its status and its sentence.
#include "check.hpp"
#include "pools.hpp"

#include <string>

namespace {

void out_of_memory(const forebay::pool &pool) {
  CHECK_THROWS(forebay::out_of_memory, pool.allocate(mib(100)));
  CHECK_THROWS(forebay::error, pool.allocate(mib(100)));
  CHECK_THROWS(std::bad_alloc, pool.allocate(mib(100)));
  CHECK_THROWS(std::exception, pool.allocate(mib(100)));
  try {
    static_cast<void>(pool.allocate(mib(100)));
    CHECK(false);
  } catch (const std::exception &e) {
    CHECK(std::string(e.what()).find("FOREBAY_ERROR_OUT_OF_MEMORY: ") == 0);
    const auto *own = dynamic_cast<const forebay::error *>(&e);
    CHECK(own != nullptr && own->status() == FOREBAY_ERROR_OUT_OF_MEMORY);
    CHECK(std::string(own->message()) == e.what());
  }
}

void wrong_use(const forebay::pool &pool) {
  int foreign = 0;
  CHECK_THROWS(forebay::failure, pool.deallocate(&foreign));
  CHECK_THROWS(forebay::error, pool.deallocate(&foreign));
  CHECK_THROWS(std::runtime_error, pool.deallocate(&foreign));
  CHECK_THROWS(std::exception, pool.deallocate(&foreign));
  try {
    pool.deallocate(&foreign);
  } catch (const forebay::error &e) {
    const auto copy = dynamic_cast<const forebay::failure &>(e);
    CHECK(copy.status() == FOREBAY_ERROR_NOT_OWNED);
    CHECK(std::string(copy.what()) == e.message());
  }
  void *block = pool.allocate(100);
  pool.deallocate(block);
  CHECK_THROWS(forebay::failure, pool.deallocate(block));
  CHECK_THROWS(forebay::failure, pool.allocate_aligned(100, 3));
  CHECK_THROWS(forebay::failure, pool.allocate_aligned(100, mib(4)));
  CHECK(pool.allocate(0) == nullptr);
  pool.deallocate(nullptr);
}

// Callbacks that throw: the library never sees it.
void throwing_callbacks(forebay::pool &pool) {
  int calls = 0;
  pool.on_out_of_memory([&](std::size_t) -> bool {
    ++calls;
    throw 1;
  });
  CHECK_THROWS(forebay::out_of_memory, pool.allocate(mib(100)));
  CHECK(calls == 1);
  pool.on_out_of_memory(nullptr);
  pool.on_unmap([&](void *, std::size_t) {
    ++calls;
    throw 2;
  });
  forebay::buffer(mib(8), {}, pool);
  CHECK(pool.trim() > 0);
  CHECK(calls >= 2);
  pool.on_unmap(nullptr);

  const forebay::buffer live(100, {}, pool);
  CHECK_THROWS(std::logic_error,
               pool.leaks([](const forebay_leak &) { throw std::logic_error("seen"); }));
}

}  // namespace

int main() {
  forebay::pool pool = make_pool(mib(64));
  out_of_memory(pool);
  wrong_use(pool);
  throwing_callbacks(pool);
  CHECK(pool.stats().live_blocks == 0);
  return shown("failures are exceptions of the expected types, and none enters the library");
}
