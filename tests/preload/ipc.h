/* Two processes of one program, and what both of them use: for ipc.c. */
#ifndef FOREBAY_TEST_IPC_H
#define FOREBAY_TEST_IPC_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cu.h"

#define MIB (1 << 20)
#define MAP_FAILED_ 205

typedef struct {
  CUipcMemHandle handle;
  uint64_t offset;
  uint64_t words;
  uint32_t value;
} Offer;

static int to_other, from_other;
static pid_t other;

static void put(const void *data, size_t bytes) { IS(write(to_other, data, bytes), bytes); }

static void take(void *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t n = read(from_other, (char *)data + done, bytes - done);
    IS(n > 0, 1);
    done += (size_t)n;
  }
}

static void say(char what) { put(&what, 1); }

static void hear(char what) {
  char heard = 0;
  take(&heard, 1);
  IS(heard, what);
}

/* Runs the two parts in two processes; the parent's ends well only if the child's did. */
static void two(void (*exporter)(void), void (*importer)(void)) {
  int there[2], back[2];
  OK(pipe(there));
  OK(pipe(back));
  other = fork();
  if (other == 0) {
    other = getppid();
    to_other = back[1];
    from_other = there[0];
    close(back[0]);
    close(there[1]);
    importer();
    exit(0);
  }
  to_other = there[1];
  from_other = back[0];
  close(back[1]);
  close(there[0]);
  exporter();
  if (other != 0) {
    int status = 0;
    IS(waitpid(other, &status, 0), other);
    IS(status, 0);
  }
}

static void fill(CUdeviceptr p, uint32_t value, size_t words) {
  OK(cuMemsetD32_v2(p, value, words));
  OK(cuCtxSynchronize());
}

static uint32_t word(CUdeviceptr p) {
  uint32_t value = 0;
  OK(cuMemcpyDtoH_v2(&value, p, 4));
  return value;
}

static int descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  IS(folder != NULL, 1);
  while (readdir(folder) != NULL) {
    count++;
  }
  closedir(folder);
  return count;
}

/* Until what is closed is unmapped and the simulated driver has let go of it, at most 20 s. */
static void settle(int before) {
  struct timespec wait = {0, 10000000};
  for (int i = 0; i < 2000 && descriptors() > before; i++) {
    nanosleep(&wait, NULL);
  }
  IS(descriptors() <= before, 1);
}

static CUdeviceptr opened(const CUipcMemHandle *handle) {
  CUdeviceptr p = 0;
  OK(cuIpcOpenMemHandle_v2(&p, *handle, 1));
  return p;
}

#endif
