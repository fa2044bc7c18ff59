/*
 * Opens one allocator by name: loads the library, finds its functions, makes its streams.
 *
 * Doors: `pool` (forebay_alloc on one stream, default pool as NULL), `handle` (the same with the
 * pool's handle), `malloc` (forebay_malloc), `empty`, and the peers `glibc`, `mimalloc`, `tlsf`.
 * Promises: after door_open every pointer that the door's shape needs is set; a missing symbol
 * ends the process with its name. Must not: time anything.
 */
#include "bench.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* POSIX lets a data pointer hold a function; ISO C has no such cast, hence the copy. */
#define FIND(target, library, name)                               \
    do {                                                          \
        void *found_ = dlsym((library), (name));                  \
        if (found_ == NULL)                                       \
            die("no symbol %s: %s", (name), dlerror());           \
        _Static_assert(sizeof(target) == sizeof found_, "flat");  \
        memcpy(&(target), &found_, sizeof found_);                \
    } while (0)

_Noreturn void door_failed(const struct door *door, const char *call, size_t bytes, int status)
{
    const char *reason = door->last_error != NULL ? door->last_error() : NULL;
    die("%s of %zu bytes answered %d: %s", call, bytes, status, reason != NULL ? reason : "-");
}

/* Set before the library is loaded: it reads its settings once. BENCH_BACKEND is for a machine
 * with a CUDA driver, real or simulated. */
static void set_environment(const struct row *row)
{
    const char *backend = getenv("BENCH_BACKEND");
    setenv("FOREBAY_BACKEND", backend != NULL ? backend : "host", 1);
    setenv("FOREBAY_LIMIT", "256GiB", 1);
    if (row->event_model) {
        setenv("FOREBAY_HOST_EVENT_NS", "700", 1);
        setenv("FOREBAY_HOST_CONTEXT_EVENTS", "0", 1);
    }
}

static void open_forebay(struct door *door, void *library, int streams)
{
    __typeof__(forebay_stream_create) *stream_create = NULL;
    FIND(door->last_error, library, "forebay_last_error");
    FIND(door->empty, library, "forebay_abi_version");
    FIND(door->pool_alloc, library, "forebay_alloc");
    FIND(door->pool_dealloc, library, "forebay_dealloc");
    FIND(door->sync_malloc, library, "forebay_malloc");
    FIND(door->sync_free, library, "forebay_free");
    FIND(door->stats, library, "forebay_pool_stats");
    FIND(door->tag_create, library, "forebay_tag_create");
    FIND(door->tag_set, library, "forebay_tag_set");
    FIND(stream_create, library, "forebay_stream_create");
    for (int i = 0; i < streams; i++) {
        int status = stream_create(door->pool, &door->streams[i]);
        if (status != 0)
            door_failed(door, "forebay_stream_create", 0, status);
    }
}

static void open_pool(struct door *door, void *library, bool by_handle, int streams)
{
    door->shape = SHAPE_POOL;
    if (by_handle) {
        __typeof__(forebay_pool_default) *pool_default = NULL;
        FIND(pool_default, library, "forebay_pool_default");
        int status = pool_default(0, &door->pool);
        if (status != 0)
            door_failed(door, "forebay_pool_default", 0, status);
    }
    open_forebay(door, library, streams > 0 ? streams : 1);
}

void door_open(struct door *door, const char *library, const char *name, const struct row *row)
{
    *door = (struct door){0};
    set_environment(row);
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded == NULL)
        die("%s", dlerror());
    if (strcmp(name, "pool") == 0 || strcmp(name, "handle") == 0) {
        open_pool(door, loaded, strcmp(name, "handle") == 0, row->streams);
    } else if (strcmp(name, "malloc") == 0) {
        door->shape = SHAPE_MALLOC;
        open_forebay(door, loaded, row->event_model ? row->streams : 0);
    } else if (strcmp(name, "empty") == 0) {
        door->shape = SHAPE_EMPTY;
        FIND(door->empty, loaded, "forebay_abi_version");
    } else if (strcmp(name, "glibc") == 0) {
        door->shape = SHAPE_PLAIN;
        door->plain_alloc = malloc;
        door->plain_free = free;
    } else if (strcmp(name, "mimalloc") == 0) {
        door->shape = SHAPE_PLAIN;
        FIND(door->plain_alloc, loaded, "peer_mi_alloc");
        FIND(door->plain_free, loaded, "peer_mi_free");
    } else if (strcmp(name, "tlsf") == 0) {
        door->shape = SHAPE_PLAIN;
        FIND(door->plain_alloc, loaded, "peer_tlsf_alloc");
        FIND(door->plain_free, loaded, "peer_tlsf_free");
    } else {
        die("no door is called %s", name);
    }
}
