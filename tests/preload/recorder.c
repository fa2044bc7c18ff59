/* A library that is preloaded before Forebay's: what a runtime asks for by cuGetProcAddress, and
 * what it is given. One line a question, in the file that FOREBAY_TEST_RECORD names:
 *
 *     NAME VERSION FLAGS FORM OBJECT SYMBOL
 *
 * FORM is 1 or 2, of cuGetProcAddress; OBJECT and SYMBOL are where the answer lies, each `-` where
 * there is none. Questions that are answered with an error are not told. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*find_fn)(void *, const char *);
typedef int (*get_fn)(const char *, void **, int, uint64_t);
typedef int (*get2_fn)(const char *, void **, int, uint64_t, int *);

static get_fn next_get;
static get2_fn next_get2;

/* The dlsym of the library behind this one. A look-up by version finds the C library's alone; that
 * one finds the next of any version. */
static find_fn next_dlsym(void) {
  static find_fn found;
  if (found == NULL) {
    find_fn real = (find_fn)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (real == NULL) {
      real = (find_fn)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
    found = real == NULL ? NULL : (find_fn)real(RTLD_NEXT, "dlsym");
  }
  if (found == NULL) {
    abort();
  }
  return found;
}

static void *wrap(const char *name, void *found);

static void note(const char *name, void **to, int version, uint64_t flags, int form) {
  const char *record = getenv("FOREBAY_TEST_RECORD");
  if (to == NULL || *to == NULL || record == NULL) {
    return;
  }
  Dl_info info = {NULL, NULL, NULL, NULL};
  if (dladdr(*to, &info) == 0) {
    info.dli_fname = NULL;
  }
  const char *object = info.dli_fname == NULL ? "-" : info.dli_fname;
  const char *slash = strrchr(object, '/');
  /* A symbol that only begins before the answer is another function. */
  const char *symbol = info.dli_sname == NULL || info.dli_saddr != *to ? "-" : info.dli_sname;
  FILE *file = fopen(record, "a");
  if (file == NULL) {
    abort();
  }
  fprintf(file, "%s %d %llu %d %s %s\n", name, version, (unsigned long long)flags, form,
          slash == NULL ? object : slash + 1, symbol);
  fclose(file);
}

/* The name by which the form of cuGetProcAddress that was asked for is exported. */
static const char *form_of(const char *name, int version) {
  int second = strcmp(name, "cuGetProcAddress") == 0 && version >= 12000;
  return second ? "cuGetProcAddress_v2" : name;
}

static int get(const char *name, void **to, int version, uint64_t flags) {
  int code = next_get(name, to, version, flags);
  if (code == 0) {
    note(name, to, version, flags, 1);
    *to = wrap(form_of(name, version), *to);
  }
  return code;
}

static int get2(const char *name, void **to, int version, uint64_t flags, int *status) {
  int code = next_get2(name, to, version, flags, status);
  if (code == 0) {
    note(name, to, version, flags, 2);
    *to = wrap(form_of(name, version), *to);
  }
  return code;
}

/* The look-up functions are answered with ours, which ask what was found. */
static void *wrap(const char *name, void *found) {
  if (found != NULL && strcmp(name, "cuGetProcAddress") == 0) {
    next_get = (get_fn)found;
    return (void *)get;
  }
  if (found != NULL && strcmp(name, "cuGetProcAddress_v2") == 0) {
    next_get2 = (get2_fn)found;
    return (void *)get2;
  }
  return found;
}

void *dlsym(void *handle, const char *name) { return wrap(name, next_dlsym()(handle, name)); }
