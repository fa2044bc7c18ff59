/* A library whose names begin as CUDA's do, whose constructor looks names up, and which looks up
 * what it is told: for names.c. */
#include <dlfcn.h>
#include <stddef.h>

int cudnnCreate(void) { return 1; }
int cublasCreate_v2(void) { return 2; }
int curl_easy_init(void) { return 3; }
int cuteName(void) { return 4; }
int cuMemAllocation(void) { return 5; }
int cudaGraphicsOther(void) { return 6; }
int cu(void) { return 7; }
int c(void) { return 8; }

int constructed;

__attribute__((constructor)) static void construct(void) {
  constructed = dlsym(RTLD_NEXT, "malloc") != NULL && dlsym(RTLD_DEFAULT, "cuMemNothing") == NULL;
}

void *look(void *handle, const char *name) {
  /* Not a jump, by which this function's caller would be the one who looks. */
  void *volatile found = dlsym(handle, name);
  return found;
}
