/* 10,000 threads one after another, each using the pool: neither the process's address space
 * nor its resident memory nor the pool's mapped bytes grow. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <pthread.h>
#include <unistd.h>

enum { THREADS = 10000, WARM_UP = 1000 };

#ifdef __SANITIZE_ADDRESS__
/* The sanitizer keeps what it freed for a while, and a fake stack for each thread. */
static const size_t SLACK = MIB(256);
#else
static const size_t SLACK = MIB(8);
#endif

typedef struct memory {
  size_t address_space;
  size_t resident;
} memory;

static memory measure(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file != NULL);
  unsigned long total = 0;
  unsigned long resident = 0;
  CHECK(fscanf(file, "%lu %lu", &total, &resident) == 2);
  fclose(file);
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (memory){.address_space = total * page, .resident = resident * page};
}

static void *work(void *number) {
  uint64_t seed = (uintptr_t)number;
  void *blocks[8];
  for (int i = 0; i < 8; i++) {
    CHECK_OK(forebay_malloc_async(&blocks[i], random_size(&seed, 256, KIB(256)), NULL));
  }
  for (int i = 0; i < 8; i++) CHECK_OK(forebay_free_async(blocks[i], NULL));
  void *sync = NULL;
  CHECK_OK(forebay_malloc(&sync, 1000));
  CHECK_OK(forebay_free(sync));
  return NULL;
}

int main(void) {
  memory before = {0, 0};
  uint64_t mapped = 0;
  for (uintptr_t i = 0; i < THREADS; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, (void *)i) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    if (i + 1 == WARM_UP) {
      before = measure();
      mapped = accounts(NULL).mapped_bytes;
    }
  }
  const memory after = measure();
  CHECK(after.address_space <= before.address_space + 8 * SLACK);
  CHECK(after.resident <= before.resident + SLACK);
  CHECK(accounts(NULL).mapped_bytes <= mapped + MIB(16));
  CHECK(accounts(NULL).live_blocks == 0);
  return shown("ten thousand threads come and go without growth");
}
