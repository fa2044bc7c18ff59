/* Scenarios of ipc.c: limits, threads, children, modes, users. Included there. */
#ifndef FOREBAY_TEST_IPC_LIMITS_H
#define FOREBAY_TEST_IPC_LIMITS_H

/* ---- limits ------------------------------------------------------------------------------ */

/* More than the descriptors that a process usually may have. */
#define PAGES 1100ull

static void few_descriptors(rlim_t limit) {
  struct rlimit few = {limit, limit};
  OK(setrlimit(RLIMIT_NOFILE, &few));
}

static void few_out(void) {
  CUdeviceptr p = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p, PAGES * 2 * MIB));
  for (uint64_t i = 0; i < PAGES; i += 31) {
    OK(cuMemsetD32_v2(p + i * 2 * MIB, 9000u + (unsigned)i, 1));
  }
  OK(cuCtxSynchronize());
  few_descriptors((rlim_t)descriptors() + 20);
  OK(cuIpcGetMemHandle(&handle, p));
  put(&handle, sizeof handle);
  hear('c');
  OK(cuMemFree_v2(p));
}

static void few_in(void) {
  CUipcMemHandle handle;
  CUdeviceptr q = 0;
  begin();
  OK(cuMemAlloc_v2(&q, 1000));
  take(&handle, sizeof handle);
  int before = descriptors();
  few_descriptors((rlim_t)before + 12);
  CUdeviceptr p = opened(&handle);
  IS(descriptors() <= before + 2, 1);
  for (uint64_t i = 0; i < PAGES; i += 31) {
    IS(word(p + i * 2 * MIB), 9000u + i);
  }
  OK(cuIpcCloseMemHandle(p));
  settle(before);
  say('c');
}

/* ---- threads, children ------------------------------------------------------------------- */

static CUipcMemHandle shared[16];
static CUcontext shared_context;

static void *opens_and_closes(void *seed) {
  unsigned state = (unsigned)(uintptr_t)seed;
  OK(cuCtxSetCurrent(shared_context));
  for (int i = 0; i < 300; i++) {
    state = state * 1664525u + 1013904223u;
    unsigned which = state >> 28;
    CUdeviceptr p = opened(&shared[which]);
    IS(word(p + 4 * (state >> 8 & 255)), 100 + which);
    OK(cuIpcCloseMemHandle(p));
  }
  return NULL;
}

static void threads_out(void) {
  CUdeviceptr p = 0;
  begin();
  for (unsigned i = 0; i < 16; i++) {
    OK(cuMemAlloc_v2(&p, 1024 + 4096 * (size_t)i));
    fill(p, 100 + i, 256);
    OK(cuIpcGetMemHandle(&shared[i], p));
  }
  put(shared, sizeof shared);
  hear('d');
}

static void threads_in(void) {
  pthread_t threads[6];
  shared_context = begin();
  take(shared, sizeof shared);
  for (uintptr_t i = 0; i < 6; i++) {
    OK(pthread_create(&threads[i], NULL, opens_and_closes, (void *)(i * 77 + 1)));
  }
  for (int i = 0; i < 6; i++) {
    OK(pthread_join(threads[i], NULL));
  }
  say('d');
}

/* Children of either process neither answer, nor keep anything, nor take anything away. */
static void children_out(void) {
  CUdeviceptr p = 0;
  int status = 0;
  large_out(&p);
  pid_t child = fork();
  if (child == 0) {
    CUipcMemHandle handle;
    IS(cuIpcGetMemHandle(&handle, p) != SUCCESS, 1);
    exit(0);
  }
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
  say('f');
  hear('c');
  OK(cuMemFree_v2(p));
  IS(can_have(LARGE), 1);
}

static void children_in(void) {
  CUipcMemHandle handle;
  int status = 0;
  begin();
  take(&handle, sizeof handle);
  CUdeviceptr p = opened(&handle), q = 0;
  say('o');
  hear('f');
  pid_t child = fork();
  if (child == 0) {
    IS(cuIpcOpenMemHandle_v2(&q, handle, 1) != SUCCESS, 1);
    IS(cuIpcCloseMemHandle(p) != SUCCESS, 1);
    exit(0);
  }
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
  IS(word(p), 5);
  OK(cuIpcCloseMemHandle(p));
  /* Another listener was not needed: the socket is there still. */
  p = opened(&handle);
  OK(cuIpcCloseMemHandle(p));
  say('c');
}

/* ---- modes ------------------------------------------------------------------------------- */

/* No block's page has another block. */
static void isolated_out(void) {
  CUdeviceptr p[3] = {0}, base = 0;
  size_t bytes = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p[0], 100));
  OK(cuMemAlloc_v2(&p[1], 3 * MIB));
  OK(cuMemAllocAsync(&p[2], 70000, NULL));
  size_t asked[3] = {100, 3 * MIB, 70000};
  for (int i = 0; i < 3; i++) {
    IS(p[i] % (2 * MIB), 0);
    OK(cuMemGetAddressRange_v2(&base, &bytes, p[i] + asked[i] - 1));
    IS(base, p[i]);
    IS(bytes, asked[i]);
    fill(p[i], 60u + (unsigned)i, asked[i] / 4);
    OK(cuIpcGetMemHandle(&handle, p[i]));
    put(&handle, sizeof handle);
  }
  hear('c');
  for (int i = 0; i < 3; i++) {
    OK(cuMemFree_v2(p[i]));
  }
  IS(served("cuMemAlloc_v2") == 2 && served("cuMemAllocAsync") == 1, 1);
}

static void isolated_in(void) {
  CUipcMemHandle handle;
  begin();
  for (unsigned i = 0; i < 3; i++) {
    take(&handle, sizeof handle);
    CUdeviceptr p = opened(&handle);
    IS(p % (2 * MIB), 0);
    IS(word(p), 60 + i);
    OK(cuIpcCloseMemHandle(p));
  }
  say('c');
}

/* The driver's own handles, of memory that is the driver's: passed on. */
static void drivers_out(void) {
  CUdeviceptr p = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p, 1000));
  IS(served("cuMemAlloc_v2") <= 0, 1);
  fill(p, 90, 250);
  OK(cuIpcGetMemHandle(&handle, p));
  put(&handle, sizeof handle);
  hear('c');
  OK(cuMemFree_v2(p));
  IS(served("cuIpcGetMemHandle") <= 0, 1);
}

static void drivers_in(void) {
  CUipcMemHandle handle;
  begin();
  take(&handle, sizeof handle);
  CUdeviceptr p = opened(&handle);
  IS(word(p), 90);
  OK(cuIpcCloseMemHandle(p));
  IS(served("cuIpcOpenMemHandle_v2") <= 0, 1);
  IS(served("cuIpcCloseMemHandle") <= 0, 1);
  say('c');
}

/* A handle of a pool's, where no pool serves. */
static void unserved_in(void) {
  CUipcMemHandle handle;
  CUdeviceptr p = 0;
  setenv("FOREBAY_IPC", "driver", 1);
  begin();
  take(&handle, sizeof handle);
  IS(cuIpcOpenMemHandle_v2(&p, handle, 1), NOT_SUPPORTED);
  say('o');
}

static void unserved_out(void) {
  CUdeviceptr p = 0;
  large_out(&p);
}

/* The exporter cannot listen. */
static void refused(void) {
  CUdeviceptr p = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p, 1000));
  IS(cuIpcGetMemHandle(&handle, p), NOT_SUPPORTED);
  IS(cuIpcGetMemHandle(&handle, p), NOT_SUPPORTED);
  OK(cuMemFree_v2(p));
}

/* ---- devices ----------------------------------------------------------------------------- */

static CUcontext of_device(CUdevice device) {
  CUcontext context = NULL;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

/* Memory of device 0, opened with device 1 current, as NCCL opens a peer's buffer: device 1 reads
 * and writes it, device 0 too, and it outlives the exporter. */
#define PEERS_WORDS (5 * MIB / 4)

static void peers_out(void) {
  CUdeviceptr p = 0;
  CUipcMemHandle handle;
  begin();
  OK(cuMemAlloc_v2(&p, 5 * MIB));
  fill(p, 51, PEERS_WORDS);
  OK(cuIpcGetMemHandle(&handle, p));
  put(&handle, sizeof handle);
  hear('w');
  IS(word(p), 52);
  IS(word(p + 5 * MIB - 4), 53);
  fill(p, 54, PEERS_WORDS);
  say('w');
  pause();
}

/* The last close while a stream of the memory's own device captures: that goes on. */
static void closed_beside_a_capture(const CUipcMemHandle *handle, CUcontext current) {
  CUstream stream;
  CUgraph graph = NULL;
  CUdeviceptr p = opened(handle);
  of_device(0);
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuCtxSetCurrent(current));
  OK(cuIpcCloseMemHandle(p));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamDestroy_v2(stream));
}

static void peers_in(void) {
  static uint32_t words[PEERS_WORDS];
  CUipcMemHandle handle;
  CUdeviceptr own = 0, base = 0, q = 0;
  CUstream stream;
  size_t bytes = 0;
  int status = 0;
  CUcontext second = of_device(1);
  take(&handle, sizeof handle);
  closed_beside_a_capture(&handle, second);
  CUdeviceptr p = opened(&handle);
  OK(cuIpcOpenMemHandle(&q, handle, 1));
  IS(q, p);
  OK(cuMemGetAddressRange_v2(&base, &bytes, p + 99));
  IS(base, p);
  IS(bytes, 5 * MIB);
  CUcontext of = NULL;
  OK(cuPointerGetAttribute(&of, 1, p));
  IS(of == second, 1);
  OK(cuStreamCreate(&stream, 1));
  OK(cuMemAlloc_v2(&own, 5 * MIB));
  OK(cuMemcpyDtoDAsync_v2(own, p, 5 * MIB, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemcpyDtoH_v2(words, own, sizeof words));
  for (size_t i = 0; i < PEERS_WORDS; i++) {
    IS(words[i], 51);
  }
  /* A fill needs access: device 1's, then device 0's. */
  OK(cuMemsetD32Async(p, 52, 1, stream));
  OK(cuStreamSynchronize(stream));
  CUcontext first = of_device(0);
  fill(p + 5 * MIB - 4, 53, 1);
  say('w');
  hear('w');
  OK(kill(other, SIGKILL));
  IS(waitpid(other, &status, 0), other);
  other = 0;
  IS(word(p), 54);
  OK(cuCtxSetCurrent(second));
  IS(word(p + 4 * MIB), 54);
  OK(cuMemsetD32Async(p, 55, PEERS_WORDS, stream));
  OK(cuMemcpyDtoDAsync_v2(own, p, 5 * MIB, stream));
  OK(cuIpcCloseMemHandle(p));
  /* The last close waits for what either device does with it. Nothing orders device 0's stream
   * behind the copy: it leaves the words alone that are looked at. */
  for (unsigned i = 0; i < 20; i++) {
    OK(cuMemsetD32Async(p, i, PEERS_WORDS, stream));
    OK(cuCtxSetCurrent(first));
    OK(cuMemsetD32Async(p + 4, i, PEERS_WORDS - 2, NULL));
    OK(cuCtxSetCurrent(second));
  }
  OK(cuIpcCloseMemHandle(p));
  IS(cuIpcCloseMemHandle(p), INVALID_VALUE);
  OK(cuCtxSynchronize());
  OK(cuMemcpyDtoH_v2(words, own, sizeof words));
  IS(words[0] == 55 && words[PEERS_WORDS - 1] == 55, 1);
  OK(cuMemFree_v2(own));
  OK(cuCtxSetCurrent(first));
  OK(cuCtxSynchronize());
}

/* No device reaches another: CUDA would answer what enabling peer access does. */
static void unreachable_in(void) {
  CUipcMemHandle handle;
  CUdeviceptr p = 0;
  of_device(1);
  take(&handle, sizeof handle);
  IS(cuIpcOpenMemHandle_v2(&p, handle, 1), 217);
  IS(cuIpcOpenMemHandle(&p, handle, 1), 217);
  begin();
  p = opened(&handle);
  IS(word(p), 41);
  fill(p, 43, 1);
  say('w');
  OK(cuIpcCloseMemHandle(p));
}

/* ---- users ------------------------------------------------------------------------------- */

#define NOBODY 65534

/* The exporter is another user's: its socket is out of reach, and it answers nobody but its own. */
static void users_out(void) {
  CUdeviceptr p = 0;
  CUipcMemHandle handle;
  OK(setgid(NOBODY));
  OK(setuid(NOBODY));
  OK(unsetenv("XDG_RUNTIME_DIR"));
  begin();
  OK(cuMemAlloc_v2(&p, 1000));
  OK(cuIpcGetMemHandle(&handle, p));
  put(&handle, sizeof handle);
  hear('d');
}

static void socket_path(char *to, size_t bytes, const char *folder, const CUipcMemHandle *handle) {
  uint32_t process = 0;
  uint64_t nonce = 0;
  memcpy(&process, handle->reserved + 8, 4);
  memcpy(&nonce, handle->reserved + 16, 8);
  snprintf(to, bytes, "%s/%u-%016llx.sock", folder, process, (unsigned long long)nonce);
}

static void users_in(void) {
  CUipcMemHandle handle;
  CUdeviceptr p = 0;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  char folder[64], path[108];
  begin();
  take(&handle, sizeof handle);
  IS(cuIpcOpenMemHandle_v2(&p, handle, 1), MAP_FAILED_);
  /* The administrator reaches the socket, and is refused: the connection ends without a word. */
  snprintf(folder, sizeof folder, "/tmp/forebay-%d", NOBODY);
  socket_path(address.sun_path, sizeof address.sun_path, folder, &handle);
  int line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  OK(connect(line, (struct sockaddr *)&address, sizeof address));
  uint64_t message[8] = {1, 1};
  memcpy(&message[2], handle.reserved + 24, 8);
  IS(send(line, message, sizeof message, MSG_NOSIGNAL) <= (ssize_t)sizeof message, 1);
  ssize_t answer = recv(line, message, sizeof message, 0);
  IS(answer == 0 || (answer < 0 && errno == ECONNRESET), 1);
  close(line);
  /* A listener of another user's in a folder of one's own is not believed. */
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  snprintf(folder, sizeof folder, "%.50s/forebay", runtime);
  mkdir(folder, 0700);
  socket_path(path, sizeof path, folder, &handle);
  memcpy(address.sun_path, path, sizeof path);
  line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  OK(bind(line, (struct sockaddr *)&address, sizeof address));
  OK(seteuid(NOBODY));
  OK(listen(line, 4));
  OK(seteuid(0));
  IS(cuIpcOpenMemHandle_v2(&p, handle, 1), MAP_FAILED_);
  int came = accept(line, NULL, NULL);
  IS(came >= 0, 1);
  IS(recv(came, message, sizeof message, 0), 0);
  unlink(path);
  say('d');
}

#endif
