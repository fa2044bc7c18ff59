/* Legacy IPC by the runtime's names, with a peer's device current: the parent has memory on device
 * 0, the child opens it on device 1, copies it, writes it and closes it; or, where the argument says
 * that device 1 cannot reach device 0, on device 0. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (3 << 20)

#define HOLDS(what)                                                                  \
  do {                                                                               \
    if (!(what)) {                                                                   \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);             \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

#define OK(call) HOLDS((call) == cudaSuccess)

static void is_filled(const unsigned char *bytes, int value) {
  for (size_t i = 0; i < BYTES; i++) {
    HOLDS(bytes[i] == value);
  }
}

/* What enabling peer access would answer: cudaErrorPeerAccessUnsupported. */
static void out_of_reach(int from, int to) {
  cudaIpcMemHandle_t handle;
  void *theirs = NULL;
  HOLDS(read(from, &handle, sizeof handle) == (ssize_t)sizeof handle);
  OK(cudaSetDevice(1));
  HOLDS(cudaIpcOpenMemHandle(&theirs, handle, cudaIpcMemLazyEnablePeerAccess) == 217);
  HOLDS(cudaGetLastError() == 217);
  OK(cudaSetDevice(0));
  OK(cudaIpcOpenMemHandle(&theirs, handle, cudaIpcMemLazyEnablePeerAccess));
  OK(cudaMemset(theirs, 0x32, BYTES));
  OK(cudaDeviceSynchronize());
  OK(cudaIpcCloseMemHandle(theirs));
  HOLDS(write(to, "d", 1) == 1);
}

static void importer(int from, int to) {
  static unsigned char bytes[BYTES];
  cudaIpcMemHandle_t handle;
  void *theirs = NULL, *own = NULL, *again = NULL;
  HOLDS(read(from, &handle, sizeof handle) == (ssize_t)sizeof handle);
  OK(cudaSetDevice(1));
  OK(cudaIpcOpenMemHandle(&theirs, handle, cudaIpcMemLazyEnablePeerAccess));
  OK(cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess));
  HOLDS(again == theirs);
  OK(cudaMalloc(&own, BYTES));
  OK(cudaMemcpy(own, theirs, BYTES, cudaMemcpyDeviceToDevice));
  OK(cudaMemcpy(bytes, own, BYTES, cudaMemcpyDeviceToHost));
  is_filled(bytes, 0x31);
  OK(cudaMemset(theirs, 0x32, BYTES));
  OK(cudaDeviceSynchronize());
  OK(cudaIpcCloseMemHandle(theirs));
  OK(cudaIpcCloseMemHandle(theirs));
  HOLDS(cudaIpcCloseMemHandle(theirs) == cudaErrorInvalidValue);
  HOLDS(cudaFree(theirs) == cudaErrorInvalidValue);
  OK(cudaFree(own));
  HOLDS(write(to, "d", 1) == 1);
}

int main(int count, char **arguments) {
  static unsigned char bytes[BYTES];
  cudaIpcMemHandle_t handle;
  int there[2], back[2], status = 0;
  char done = 0;
  void *p = NULL;
  HOLDS(pipe(there) == 0 && pipe(back) == 0);
  pid_t child = fork();
  if (child == 0) {
    int reach = count < 2 || strcmp(arguments[1], "unreachable") != 0;
    (reach ? importer : out_of_reach)(there[0], back[1]);
    return 0;
  }
  OK(cudaSetDevice(0));
  OK(cudaMalloc(&p, BYTES));
  OK(cudaMemset(p, 0x31, BYTES));
  OK(cudaDeviceSynchronize());
  OK(cudaIpcGetMemHandle(&handle, p));
  HOLDS(write(there[1], &handle, sizeof handle) == (ssize_t)sizeof handle);
  close(back[1]);
  HOLDS(read(back[0], &done, 1) == 1);
  OK(cudaMemcpy(bytes, p, BYTES, cudaMemcpyDeviceToHost));
  is_filled(bytes, 0x32);
  HOLDS(waitpid(child, &status, 0) == child && status == 0);
  OK(cudaFree(p));
  puts("well");
  return 0;
}
