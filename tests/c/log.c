/* The log callback: a pool destroyed with a live block says so, with its bytes; once taken
 * off, the callback is not called again. */
#include "accounts.h"
#include "check.h"
#include "pattern.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct seen {
  unsigned messages;
  unsigned leaks;
  bool names_bytes;
} seen;

static void receive(void *ctx, int32_t level, const char *message) {
  seen *all = ctx;
  (void)level;
  pthread_mutex_lock(&lock);
  all->messages++;
  if (strstr(message, "leak") != NULL) {
    all->leaks++;
    if (names_bytes(message, MIB(3))) all->names_bytes = true;
  }
  pthread_mutex_unlock(&lock);
}

static void leak(void) {
  forebay_pool_t pool = new_pool(MIB(64));
  void *block = NULL;
  CHECK_OK(forebay_alloc(pool, &block, MIB(3), NULL));
  CHECK_OK(forebay_pool_destroy(pool));
}

int main(void) {
  seen all = {.messages = 0};
  CHECK_OK(forebay_set_log_callback(receive, &all));
  leak();
  pthread_mutex_lock(&lock);
  CHECK(all.leaks >= 1 && all.names_bytes);
  const unsigned before = all.messages;
  pthread_mutex_unlock(&lock);
  CHECK_OK(forebay_set_log_callback(NULL, NULL));
  leak();
  CHECK(all.messages == before);
  return shown("a leak at a pool's end reaches the log callback, with its bytes");
}
