/* The ends of threads and processes. The first argument says which. */
#include "cu.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static CUdeviceptr global;
static CUcontext context;

/* ZLUDA#666: a thread's own destructors free after other thread-locals are gone. */
static pthread_key_t key;
static void at_thread_end(void *value) {
  CUdeviceptr p = (CUdeviceptr)(uintptr_t)value, q = 0;
  OK(cuMemFree_v2(p));
  OK(cuMemAlloc_v2(&q, 5000));
  OK(cuMemFree_v2(q));
}

static void *worker(void *unused) {
  CUdeviceptr p = 0;
  OK(cuCtxSetCurrent(context));
  OK(cuMemAlloc_v2(&p, 5000));
  IS(pthread_setspecific(key, (void *)(uintptr_t)p), 0);
  return unused;
}

static void threads(void) {
  IS(pthread_key_create(&key, at_thread_end), 0);
  for (int i = 0; i < 200; i++) {
    pthread_t thread;
    IS(pthread_create(&thread, NULL, worker, NULL), 0);
    IS(pthread_join(thread, NULL), 0);
  }
  IS(served("cuMemAlloc_v2"), 401);
}

/* HAMi-core#172: a thread without a context is told so, and no device is guessed. */
static void *without_context(void *unused) {
  CUdeviceptr p = 0;
  IS(cuMemAlloc_v2(&p, 5000), INVALID_CONTEXT);
  return unused;
}

static void is_well(pid_t child) {
  int status = 0;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
}

/* CUDA does not survive a fork: the child is told 3, and its end says nothing. */
static void in_child(void) {
  CUdeviceptr p = 0;
  IS(cuMemAlloc_v2(&p, 5000), NOT_INITIALIZED);
  IS(cuMemAlloc_v2(&p, 5 << 20), NOT_INITIALIZED);
  IS(cuMemFree_v2(global), NOT_INITIALIZED);
}

static void forks(void) {
  pid_t child = fork();
  if (child == 0) {
    in_child();
    exit(0);
  }
  is_well(child);
  /* HAMi-core#292: a raw clone runs no fork handlers, and its parent's exit handlers. */
  child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    in_child();
    exit(0);
  }
  is_well(child);
  OK(cuMemFree_v2(global));
}

/* cccl#7063: frees after main, when the driver may be gone, are silent. */
static void late(void) {
  CUresult result = cuMemFree_v2(global);
  if (result != SUCCESS) {
    _exit(9);
  }
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (strcmp(what, "exit") == 0) {
    /* Registered before the driver starts: it runs after the driver's own end. */
    IS(atexit(late), 0);
  }
  context = begin();
  OK(cuMemAlloc_v2(&global, 4096));
  if (strcmp(what, "threads") == 0) {
    threads();
  } else if (strcmp(what, "context") == 0) {
    pthread_t thread;
    IS(pthread_create(&thread, NULL, without_context, NULL), 0);
    IS(pthread_join(thread, NULL), 0);
  } else if (strcmp(what, "fork") == 0) {
    forks();
  }
  puts("well");
  return 0;
}
