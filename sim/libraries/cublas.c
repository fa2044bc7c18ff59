/* libcublas.so.13 and libcublasLt.so.13 of the simulated machine: handles, workspaces, and matrix
 * products that compute nothing.
 *
 * A product checks that every byte of its matrices and of its workspace lies in memory that the
 * driver knows; where one does not, the call says so on standard error and answers
 * CUBLAS_STATUS_INVALID_VALUE. Handles and descriptions are checked by a mark. Every other
 * function of the two libraries is a stub that answers an error. Layouts and numbers are those of
 * cuBLAS 13's public headers. Tests only: never installed. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int Status;
enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7 };

#define EXPORT __attribute__((visibility("default")))

/* A handle, of either library. */
struct handle {
    unsigned mark;
    void *stream;
    void *workspace;
    size_t workspace_bytes;
    int math;
    int pointers;
};
enum { HANDLE = 0xb1a5, LAYOUT = 0x1a40, OTHER = 0x0de5 };

/* A matrix: of so many rows and columns, in columns that are `ld` elements apart. */
struct layout {
    unsigned mark;
    int type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride;
};

static size_t bytes_of(int type)
{
    switch (type) {
    case 0: case 10: return 4;          /* CUDA_R_32F, CUDA_R_32I */
    case 1: case 4: return 8;           /* CUDA_R_64F, CUDA_C_32F */
    case 5: return 16;                  /* CUDA_C_64F */
    case 2: case 14: return 2;          /* CUDA_R_16F, CUDA_R_16BF */
    default: return 1;
    }
}

/* Whether the driver knows every byte of a range; says where not. */
static Status live(const char *call, const char *what, const void *at, size_t bytes)
{
    static int (*range)(uint64_t *, size_t *, uint64_t);
    if (!range) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        void *found = driver ? dlsym(driver, "cuMemGetAddressRange_v2") : NULL;
        *(void **)&range = found;
    }
    uint64_t next = (uint64_t)at;
    uint64_t end = next + bytes;
    while (next < end) {
        uint64_t base = 0;
        size_t length = 0;
        if (!range || range(&base, &length, next) != 0 || length == 0) {
            fprintf(stderr, "simulated cuBLAS: %s: %s at %p, %zu bytes: %#lx is no live memory\n",
                    call, what, at, bytes, (unsigned long)next);
            return INVALID_VALUE;
        }
        next = base + length;
    }
    return SUCCESS;
}

static size_t extent(uint64_t rows, uint64_t cols, int64_t ld, size_t unit)
{
    return rows == 0 || cols == 0 ? 0 : ((cols - 1) * (uint64_t)ld + rows) * unit;
}

static size_t whole(const struct layout *l)
{
    size_t one = extent(l->rows, l->cols, l->ld, bytes_of(l->type));
    size_t more = l->batch > 1 ? (size_t)(l->batch - 1) * (size_t)l->stride : 0;
    return one == 0 ? 0 : one + more * bytes_of(l->type);
}

static Status known(const struct handle *h)
{
    return h && h->mark == HANDLE ? SUCCESS : NOT_INITIALIZED;
}

/* ---- libcublas ---- */

EXPORT Status cublasCreate_v2(struct handle **to)
{
    struct handle *made = calloc(1, sizeof *made);
    if (!made) {
        return ALLOC_FAILED;
    }
    made->mark = HANDLE;
    *to = made;
    return SUCCESS;
}

EXPORT Status cublasDestroy_v2(struct handle *h)
{
    Status status = known(h);
    if (status == SUCCESS) {
        h->mark = 0;
        free(h);
    }
    return status;
}

EXPORT Status cublasSetStream_v2(struct handle *h, void *stream)
{
    if (known(h) != SUCCESS) {
        return NOT_INITIALIZED;
    }
    h->stream = stream;
    return SUCCESS;
}

EXPORT Status cublasGetStream_v2(struct handle *h, void **stream)
{
    if (known(h) != SUCCESS) {
        return NOT_INITIALIZED;
    }
    *stream = h->stream;
    return SUCCESS;
}

EXPORT Status cublasSetWorkspace_v2(struct handle *h, void *workspace, size_t bytes)
{
    if (known(h) != SUCCESS) {
        return NOT_INITIALIZED;
    }
    h->workspace = workspace;
    h->workspace_bytes = bytes;
    return live("cublasSetWorkspace", "the workspace", workspace, bytes);
}

EXPORT Status cublasSetMathMode(struct handle *h, int mode)
{
    if (known(h) != SUCCESS) {
        return NOT_INITIALIZED;
    }
    h->math = mode;
    return SUCCESS;
}

EXPORT Status cublasGetMathMode(struct handle *h, int *mode)
{
    if (known(h) != SUCCESS) {
        return NOT_INITIALIZED;
    }
    *mode = h->math;
    return SUCCESS;
}

EXPORT Status cublasSetPointerMode_v2(struct handle *h, int mode)
{
    if (known(h) != SUCCESS) {
        return NOT_INITIALIZED;
    }
    h->pointers = mode;
    return SUCCESS;
}

EXPORT Status cublasGetPointerMode_v2(struct handle *h, int *mode)
{
    if (known(h) != SUCCESS) {
        return NOT_INITIALIZED;
    }
    *mode = h->pointers;
    return SUCCESS;
}

/* One operand of a product: what `op` transposes is stored the other way round. */
struct operand {
    const char *what;
    const void *at;
    int op;
    int64_t rows, cols, ld, stride;
    int type;
};

static Status operands(const char *call, struct handle *h, int batch, const struct operand *all)
{
    Status status = known(h);
    for (int i = 0; i < 3 && status == SUCCESS; i++) {
        const struct operand *o = &all[i];
        struct layout l = {LAYOUT, o->type, (uint64_t)(o->op ? o->cols : o->rows),
                           (uint64_t)(o->op ? o->rows : o->cols), o->ld, batch, o->stride};
        status = live(call, o->what, o->at, whole(&l));
    }
    if (status == SUCCESS) {
        status = live(call, "the workspace", h->workspace, h->workspace_bytes);
    }
    return status;
}

#define PRODUCT(call, ta, tb, tc, sa, sb, sc, batch)                                              \
    const struct operand all[3] = {{"A", a, op_a, m, k, lda, sa, ta},                             \
                                   {"B", b, op_b, k, n, ldb, sb, tb},                             \
                                   {"C", c, 0, m, n, ldc, sc, tc}};                               \
    (void)alpha;                                                                                  \
    (void)beta;                                                                                   \
    return operands(call, h, batch, all)

#define GEMM(name, type)                                                                          \
    EXPORT Status name(struct handle *h, int op_a, int op_b, int m, int n, int k,                 \
                       const void *alpha, const void *a, int lda, const void *b, int ldb,         \
                       const void *beta, void *c, int ldc)                                        \
    {                                                                                             \
        PRODUCT(#name, type, type, type, 0, 0, 0, 1);                                             \
    }
GEMM(cublasSgemm_v2, 0)
GEMM(cublasDgemm_v2, 1)

#define STRIDED(name, type)                                                                       \
    EXPORT Status name(struct handle *h, int op_a, int op_b, int m, int n, int k,                 \
                       const void *alpha, const void *a, int lda, long long stride_a,             \
                       const void *b, int ldb, long long stride_b, const void *beta, void *c,     \
                       int ldc, long long stride_c, int batch)                                    \
    {                                                                                             \
        PRODUCT(#name, type, type, type, stride_a, stride_b, stride_c, batch);                    \
    }
STRIDED(cublasSgemmStridedBatched, 0)
STRIDED(cublasDgemmStridedBatched, 1)

EXPORT Status cublasGemmEx(struct handle *h, int op_a, int op_b, int m, int n, int k,
                           const void *alpha, const void *a, int type_a, int lda, const void *b,
                           int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                           int compute, int algorithm)
{
    (void)compute;
    (void)algorithm;
    PRODUCT("cublasGemmEx", type_a, type_b, type_c, 0, 0, 0, 1);
}

EXPORT Status cublasGemmStridedBatchedEx(struct handle *h, int op_a, int op_b, int m, int n, int k,
                                         const void *alpha, const void *a, int type_a, int lda,
                                         long long stride_a, const void *b, int type_b, int ldb,
                                         long long stride_b, const void *beta, void *c, int type_c,
                                         int ldc, long long stride_c, int batch, int compute,
                                         int algorithm)
{
    (void)compute;
    (void)algorithm;
    PRODUCT("cublasGemmStridedBatchedEx", type_a, type_b, type_c, stride_a, stride_b, stride_c,
            batch);
}

/* ---- libcublasLt ---- */

EXPORT Status cublasLtCreate(struct handle **to) { return cublasCreate_v2(to); }
EXPORT Status cublasLtDestroy(struct handle *h) { return cublasDestroy_v2(h); }

static Status describe(unsigned **to)
{
    unsigned *made = calloc(1, sizeof *made);
    if (!made) {
        return ALLOC_FAILED;
    }
    *made = OTHER;
    *to = made;
    return SUCCESS;
}

static Status end(unsigned *described)
{
    if (!described || *described != OTHER) {
        return INVALID_VALUE;
    }
    *described = 0;
    free(described);
    return SUCCESS;
}

EXPORT Status cublasLtMatmulDescCreate(unsigned **to, int compute, int scale)
{
    (void)compute;
    (void)scale;
    return describe(to);
}

EXPORT Status cublasLtMatmulDescSetAttribute(unsigned *d, int attribute, const void *value,
                                             size_t bytes)
{
    (void)attribute;
    (void)bytes;
    return d && *d == OTHER && value ? SUCCESS : INVALID_VALUE;
}

EXPORT Status cublasLtMatmulDescDestroy(unsigned *d) { return end(d); }
EXPORT Status cublasLtMatmulPreferenceCreate(unsigned **to) { return describe(to); }

EXPORT Status cublasLtMatmulPreferenceSetAttribute(unsigned *d, int attribute, const void *value,
                                                   size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(d, attribute, value, bytes);
}

EXPORT Status cublasLtMatmulPreferenceDestroy(unsigned *d) { return end(d); }

EXPORT Status cublasLtMatrixLayoutCreate(struct layout **to, int type, uint64_t rows,
                                         uint64_t cols, int64_t ld)
{
    struct layout *made = calloc(1, sizeof *made);
    if (!made) {
        return ALLOC_FAILED;
    }
    *made = (struct layout){LAYOUT, type, rows, cols, ld, 1, 0};
    *to = made;
    return SUCCESS;
}

EXPORT Status cublasLtMatrixLayoutSetAttribute(struct layout *l, int attribute, const void *value,
                                               size_t bytes)
{
    if (!l || l->mark != LAYOUT || !value) {
        return INVALID_VALUE;
    }
    if (attribute == 5 && bytes == sizeof l->batch) { /* CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT */
        l->batch = *(const int32_t *)value;
    }
    if (attribute == 6 && bytes == sizeof l->stride) { /* ..._STRIDED_BATCH_OFFSET */
        l->stride = *(const int64_t *)value;
    }
    return SUCCESS;
}

EXPORT Status cublasLtMatrixLayoutDestroy(struct layout *l)
{
    if (!l || l->mark != LAYOUT) {
        return INVALID_VALUE;
    }
    l->mark = 0;
    free(l);
    return SUCCESS;
}

/* cublasLtMatmulHeuristicResult_t. */
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

EXPORT Status cublasLtMatmulAlgoGetHeuristic(struct handle *h, unsigned *d, struct layout *a,
                                             struct layout *b, struct layout *c,
                                             struct layout *to, unsigned *preference, int wanted,
                                             struct heuristic *results, int *found)
{
    (void)preference;
    if (known(h) != SUCCESS || !d || !a || !b || !c || !to || wanted < 1) {
        return INVALID_VALUE;
    }
    *results = (struct heuristic){.workspace_bytes = 0, .state = SUCCESS, .waves = 1.0f};
    *found = 1;
    return SUCCESS;
}

EXPORT Status cublasLtMatmul(struct handle *h, unsigned *d, const void *alpha, const void *a,
                             struct layout *la, const void *b, struct layout *lb,
                             const void *beta, const void *c, struct layout *lc, void *to,
                             struct layout *lto, const void *algorithm, void *workspace,
                             size_t workspace_bytes, void *stream)
{
    const char *call = "cublasLtMatmul";
    (void)alpha;
    (void)beta;
    (void)algorithm;
    (void)stream;
    if (known(h) != SUCCESS || !d || *d != OTHER || !la || !lb || !lto) {
        return INVALID_VALUE;
    }
    Status status = live(call, "A", a, whole(la));
    status = status ? status : live(call, "B", b, whole(lb));
    status = status || !c || !lc ? status : live(call, "C", c, whole(lc));
    status = status ? status : live(call, "D", to, whole(lto));
    return status ? status : live(call, "the workspace", workspace, workspace_bytes);
}
