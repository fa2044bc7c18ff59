/* Legacy IPC of the pool's memory between two processes. The program forks before its first CUDA
 * call; the parent exports, the child imports. Each scenario is named by the first argument. */
#include "ipc.h"

/* ---- one handle -------------------------------------------------------------------------- */

static void one_out(void) {
  CUdeviceptr p = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p, 5000));
  fill(p, 41, 1250);
  OK(cuIpcGetMemHandle(&handle, p));
  put(&handle, sizeof handle);
  hear('w');
  IS(word(p), 43);
  IS(word(p + 4), 41);
  OK(cuMemFree_v2(p));
  IS(served("cuIpcGetMemHandle"), 1);
}

static void one_in(void) {
  CUipcMemHandle handle;
  begin();
  take(&handle, sizeof handle);
  CUdeviceptr p = opened(&handle);
  IS(word(p), 41);
  IS(word(p + 4996), 41);
  fill(p, 43, 1);
  say('w');
  OK(cuIpcCloseMemHandle(p));
  IS(cuIpcCloseMemHandle(p), INVALID_VALUE);
  IS(served("cuIpcOpenMemHandle_v2"), 1);
  IS(served("cuIpcCloseMemHandle"), 1);
}

/* ---- many handles ------------------------------------------------------------------------ */

#define MANY 1000

static void many_out(void) {
  static CUdeviceptr all[MANY];
  begin();
  for (int i = 0; i < MANY; i++) {
    size_t bytes = i % 50 == 0 ? 3 * MIB + 512 : 256 + 20 * (size_t)i;
    Offer offer = {
        .offset = (uint64_t)(i % 8) * 4, .words = bytes / 4, .value = 7000u + (unsigned)i};
    OK(cuMemAlloc_v2(&all[i], bytes));
    fill(all[i], offer.value, offer.words);
    /* A handle of an address inside a block is the block's. */
    OK(cuIpcGetMemHandle(&offer.handle, all[i] + offer.offset));
    put(&offer, sizeof offer);
  }
  int before = descriptors();
  hear('h');
  /* A connection, whatever was opened. */
  IS(descriptors() <= before + 1, 1);
  hear('c');
  for (int i = 0; i < MANY; i++) {
    OK(cuMemFree_v2(all[i]));
  }
}

static void many_in(void) {
  static CUdeviceptr all[MANY];
  static Offer offers[MANY];
  begin();
  take(offers, sizeof offers);
  /* The pool is made with the first. */
  all[0] = opened(&offers[0].handle);
  OK(cuIpcCloseMemHandle(all[0]));
  int before = descriptors();
  for (int i = 0; i < MANY; i++) {
    all[i] = opened(&offers[i].handle);
  }
  /* A connection, and what the simulated driver has open of another process: none for a handle. */
  IS(descriptors() <= before + 2, 1);
  for (int i = 0; i < MANY; i++) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    IS(word(all[i] + offers[i].offset), offers[i].value);
    IS(word(all[i] + (offers[i].words - 1) * 4), offers[i].value);
    OK(cuMemGetAddressRange_v2(&base, &bytes, all[i] + offers[i].offset));
    IS(base, all[i]);
    IS(bytes / 4, offers[i].words);
    IS(opened(&offers[i].handle), all[i]);
    OK(cuIpcCloseMemHandle(all[i]));
    IS(word(all[i]), offers[i].value);
  }
  say('h');
  for (int i = 0; i < MANY; i++) {
    OK(cuIpcCloseMemHandle(all[i]));
    IS(cuIpcCloseMemHandle(all[i]), INVALID_VALUE);
  }
  settle(before);
  say('c');
}

/* ---- rules ------------------------------------------------------------------------------- */

static void rules_out(void) {
  CUdeviceptr p = 0, q = 0;
  CUipcMemHandle handle, again;
  unsigned char legacy = 9;
  uint64_t retained = 0;
  begin();
  OK(cuMemAlloc_v2(&p, 100000));
  IS(cuIpcGetMemHandle(NULL, p), INVALID_VALUE);
  OK(cuIpcGetMemHandle(&handle, p));
  OK(cuIpcGetMemHandle(&again, p + 99999));
  IS(memcmp(&handle, &again, sizeof handle), 0);
  OK(cuPointerGetAttribute(&legacy, 10, p));
  IS(legacy, 1);
  IS(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)p), INVALID_VALUE);
  /* As the driver says of a handle of one's own. */
  IS(cuIpcOpenMemHandle_v2(&q, handle, 1), INVALID_CONTEXT);
  put(&handle, sizeof handle);
  hear('d');
  OK(cuMemFree_v2(p));
  IS(cuMemFree_v2(p), INVALID_VALUE);
  IS(cuIpcGetMemHandle(&again, p), INVALID_VALUE);
  /* What comes to lie at the same place is another block. */
  for (int i = 0; i < 4096 && q != p; i++) {
    OK(cuMemAlloc_v2(&q, 100000));
  }
  IS(q, p);
  OK(cuIpcGetMemHandle(&again, q));
  IS(memcmp(&handle, &again, sizeof handle) != 0, 1);
  say('f');
  hear('d');
}

static void rules_in(void) {
  CUdeviceptr p = 0, q = 0;
  CUipcMemHandle handle, bad;
  unsigned char legacy = 9;
  OK(cuInit(0));
  take(&handle, sizeof handle);
  IS(cuIpcOpenMemHandle_v2(&p, handle, 1), INVALID_CONTEXT);
  begin();
  IS(cuIpcOpenMemHandle_v2(&p, handle, 0), INVALID_VALUE);
  IS(cuIpcOpenMemHandle_v2(NULL, handle, 1), INVALID_VALUE);
  p = opened(&handle);
  OK(cuIpcOpenMemHandle(&q, handle, 1));
  IS(q, p);
  OK(cuPointerGetAttribute(&legacy, 10, p));
  IS(legacy, 0);
  IS(cuMemFree_v2(p), INVALID_VALUE);
  IS(cuMemFree_v2(p & ~(CUdeviceptr)(2 * MIB - 1)), INVALID_VALUE);
  IS(cuMemFreeAsync(p & ~(CUdeviceptr)(2 * MIB - 1), NULL), INVALID_VALUE);
  IS(cuIpcGetMemHandle(&bad, p), INVALID_VALUE);
  IS(cuIpcCloseMemHandle(p + 256), INVALID_VALUE);
  OK(cuIpcCloseMemHandle(p));
  OK(cuIpcCloseMemHandle(q));
  /* Another key, another form, no handle at all. */
  bad = handle;
  bad.reserved[24] ^= 1;
  IS(cuIpcOpenMemHandle_v2(&p, bad, 1), MAP_FAILED_);
  bad = handle;
  bad.reserved[12] = 1;
  IS(cuIpcOpenMemHandle_v2(&p, bad, 1), 400);
  bad = handle;
  bad.reserved[0] = 'X';
  IS(cuIpcOpenMemHandle_v2(&p, bad, 1), 400);
  bad = handle;
  bad.reserved[34] ^= 0x40;
  IS(cuIpcOpenMemHandle_v2(&p, bad, 1), MAP_FAILED_);
  bad = handle;
  bad.reserved[40] ^= 1;
  IS(cuIpcOpenMemHandle_v2(&p, bad, 1), 101);
  say('d');
  hear('f');
  IS(cuIpcOpenMemHandle_v2(&p, handle, 1), MAP_FAILED_);
  say('d');
}

/* ---- ends -------------------------------------------------------------------------------- */

/* The exporter is the child here, so that it can be killed: the roles' ends change. */
static void killed_exporter_out(void) {
  CUdeviceptr p = 0, q = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p, 5 * MIB));
  OK(cuMemAlloc_v2(&q, 1000));
  fill(p, 77, 5 * MIB / 4);
  fill(q, 78, 250);
  OK(cuIpcGetMemHandle(&handle, p));
  put(&handle, sizeof handle);
  OK(cuIpcGetMemHandle(&handle, q));
  put(&handle, sizeof handle);
  pause();
}

static void killed_exporter_in(void) {
  CUipcMemHandle handle, second;
  CUdeviceptr q = 0;
  begin();
  take(&handle, sizeof handle);
  take(&second, sizeof second);
  CUdeviceptr p = opened(&handle);
  int status = 0;
  OK(kill(other, SIGKILL));
  IS(waitpid(other, &status, 0), other);
  IS(word(p), 77);
  IS(word(p + 5 * MIB - 4), 77);
  fill(p, 80, 5 * MIB / 4);
  IS(word(p + 4 * MIB), 80);
  IS(cuIpcOpenMemHandle_v2(&q, second, 1), MAP_FAILED_);
  /* What is open is open. */
  IS(opened(&handle), p);
  OK(cuIpcCloseMemHandle(p));
  OK(cuIpcCloseMemHandle(p));
  IS(cuIpcOpenMemHandle_v2(&q, handle, 1), MAP_FAILED_);
  other = 0;
}

#define LARGE (150 * MIB)

static int can_have(size_t bytes) {
  CUdeviceptr p = 0;
  CUresult result = cuMemAlloc_v2(&p, bytes);
  if (result == SUCCESS) {
    OK(cuMemFree_v2(p));
    return 1;
  }
  IS(result, OUT_OF_MEMORY);
  return 0;
}

/* Until the server has noticed, at most 20 s. */
static void will_have(size_t bytes) {
  for (int i = 0; i < 2000; i++) {
    if (can_have(bytes)) {
      return;
    }
    struct timespec wait = {0, 10000000};
    nanosleep(&wait, NULL);
  }
  IS(can_have(bytes), 1);
}

static void large_out(CUdeviceptr *p) {
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(p, LARGE));
  fill(*p, 5, LARGE / 4);
  OK(cuIpcGetMemHandle(&handle, *p));
  put(&handle, sizeof handle);
  hear('o');
}

static void killed_importer_out(void) {
  CUdeviceptr p = 0;
  int status = 0;
  large_out(&p);
  OK(cuMemFree_v2(p));
  IS(can_have(LARGE), 0);
  OK(kill(other, SIGKILL));
  IS(waitpid(other, &status, 0), other);
  will_have(LARGE);
  other = 0;
}

static void killed_importer_in(void) {
  CUipcMemHandle handle;
  begin();
  take(&handle, sizeof handle);
  CUdeviceptr p = opened(&handle);
  CUdeviceptr again = opened(&handle);
  IS(again, p);
  /* A child that lives on keeps nothing. */
  if (fork() == 0) {
    close(1);
    close(2);
    sleep(25);
    _exit(0);
  }
  say('o');
  pause();
}

static void freed_while_held_out(void) {
  CUdeviceptr p = 0, q = 0;
  large_out(&p);
  OK(cuMemFreeAsync(p, NULL));
  IS(cuMemFree_v2(p), INVALID_VALUE);
  /* It is nobody's while the other holds it. */
  IS(can_have(LARGE), 0);
  OK(cuMemAlloc_v2(&q, 50 * MIB));
  fill(q, 6, 50 * MIB / 4);
  say('f');
  hear('c');
  /* The other has closed it: at once. */
  IS(can_have(LARGE), 1);
  say('e');
}

static void freed_while_held_in(void) {
  CUipcMemHandle handle;
  begin();
  take(&handle, sizeof handle);
  CUdeviceptr p = opened(&handle);
  say('o');
  hear('f');
  IS(word(p), 5);
  IS(word(p + LARGE - 4), 5);
  IS(opened(&handle), p);
  OK(cuIpcCloseMemHandle(p));
  IS(word(p + LARGE / 2), 5);
  OK(cuIpcCloseMemHandle(p));
  IS(cuIpcOpenMemHandle_v2(&p, handle, 1), MAP_FAILED_);
  say('c');
  hear('e');
}

static void reset_out(void) {
  CUdeviceptr p = 0;
  large_out(&p);
  OK(cuMemFree_v2(p));
  say('f');
  hear('r');
  IS(can_have(LARGE), 1);
  OK(cuDevicePrimaryCtxReset_v2(0));
  say('e');
}

static void reset_in(void) {
  CUipcMemHandle handle;
  begin();
  take(&handle, sizeof handle);
  CUdeviceptr p = opened(&handle);
  say('o');
  hear('f');
  /* What is mapped ends with the context, and the other learns of it. */
  OK(cuDevicePrimaryCtxReset_v2(0));
  IS(cuIpcCloseMemHandle(p) != SUCCESS, 1);
  say('r');
  hear('e');
}

#include "ipc_limits.h"

static void leaves_its_socket(void) {
  CUdeviceptr p = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p, 1000));
  OK(cuIpcGetMemHandle(&handle, p));
  puts("well");
  fflush(stdout);
  raise(SIGKILL);
}

int main(int count, char **arguments) {
  IS(count, 2);
  const char *what = arguments[1];
  const struct {
    const char *name;
    void (*out)(void), (*in)(void);
  } scenarios[] = {
      {"one", one_out, one_in},
      {"many", many_out, many_in},
      {"rules", rules_out, rules_in},
      {"killed-exporter", killed_exporter_in, killed_exporter_out},
      {"killed-importer", killed_importer_out, killed_importer_in},
      {"freed-while-held", freed_while_held_out, freed_while_held_in},
      {"reset", reset_out, reset_in},
      {"few", few_out, few_in},
      {"threads", threads_out, threads_in},
      {"children", children_out, children_in},
      {"isolated", isolated_out, isolated_in},
      {"drivers", drivers_out, drivers_in},
      {"unserved", unserved_out, unserved_in},
      {"peers", peers_in, peers_out},
      {"unreachable", one_out, unreachable_in},
      {"users", users_out, users_in},
  };
  int known = 0;
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (strcmp(what, scenarios[i].name) == 0) {
      two(scenarios[i].out, scenarios[i].in);
      known = 1;
    }
  }
  if (strcmp(what, "refused") == 0) {
    refused();
  } else if (strcmp(what, "leaves-its-socket") == 0) {
    leaves_its_socket();
  } else {
    IS(known, 1);
  }
  puts("well");
  return 0;
}
