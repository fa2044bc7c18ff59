/* Leak iteration: every live block is visited once with its address, bytes and tag, blocks in
 * caches are not, and a clean pool has none. */
#include "accounts.h"
#include "check.h"

enum { BLOCKS = 100 };

typedef struct seen {
  uintptr_t addresses[2 * BLOCKS];
  uint64_t bytes[2 * BLOCKS];
  uint32_t tags[2 * BLOCKS];
  unsigned count;
} seen;

static void visit(void *ctx, const forebay_leak *leak) {
  seen *all = ctx;
  if (all->count < 2 * BLOCKS) {
    all->addresses[all->count] = (uintptr_t)leak->address;
    all->bytes[all->count] = leak->bytes;
    all->tags[all->count] = leak->tag;
  }
  all->count++;
}

/* The one visit of an address. */
static unsigned find(const seen *all, const void *block) {
  unsigned at = 0;
  unsigned times = 0;
  for (unsigned i = 0; i < all->count && i < 2 * BLOCKS; i++) {
    if (all->addresses[i] != (uintptr_t)block) continue;
    at = i;
    times++;
  }
  CHECK(times == 1);
  return at;
}

int main(void) {
  forebay_pool_t pool = new_pool(MIB(256));
  seen all = {.count = 0};
  CHECK_OK(forebay_pool_leaks(pool, visit, &all));
  CHECK(all.count == 0);

  uint32_t tag = 0;
  CHECK_OK(forebay_tag_create("kept", &tag));
  void *blocks[BLOCKS];
  size_t sizes[BLOCKS];
  for (unsigned i = 0; i < BLOCKS; i++) {
    sizes[i] = i % 10 == 0 ? MIB(1) + i : 100 * (size_t)i;
    CHECK_OK(forebay_tag_set(i % 2 == 0 ? tag : 1, NULL));
    CHECK_OK(forebay_alloc(pool, &blocks[i], sizes[i], NULL));
  }
  CHECK_OK(forebay_tag_set(1, NULL));
  CHECK_OK(forebay_pool_leaks(pool, visit, &all));
  CHECK(all.count == BLOCKS);
  for (unsigned i = 0; i < BLOCKS; i++) {
    const unsigned at = find(&all, blocks[i]);
    CHECK(all.bytes[at] >= sizes[i]);
    CHECK(all.tags[at] == (i % 2 == 0 ? tag : 1));
  }

  for (unsigned i = 0; i < BLOCKS; i++) {
    if (i != 42) CHECK_OK(forebay_dealloc(pool, blocks[i], NULL));
  }
  all.count = 0;
  CHECK_OK(forebay_pool_leaks(pool, visit, &all));
  CHECK(all.count == 1);
  CHECK(all.addresses[0] == (uintptr_t)blocks[42]);
  CHECK_OK(forebay_dealloc(pool, blocks[42], NULL));
  all.count = 0;
  CHECK_OK(forebay_pool_leaks(pool, visit, &all));
  CHECK(all.count == 0);
  CHECK_OK(forebay_pool_destroy(pool));
  return shown("each live block is visited once, with its bytes and tag");
}
