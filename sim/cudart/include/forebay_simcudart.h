/* What the simulated CUDA runtime has beside CUDA: bodies for kernels, and counts.
 *
 * NVIDIA's runtime has none of these functions: a program that is to run on both looks them up with
 * dlsym(RTLD_DEFAULT, ...), or declares them weak. */
#ifndef FOREBAY_SIMCUDART_H
#define FOREBAY_SIMCUDART_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a body is told of its launch. */
typedef struct forebay_simcudart_launch {
    unsigned int grid[3];
    unsigned int block[3];
    size_t shared;
    cudaStream_t stream;
} forebay_simcudart_launch;

/* A kernel's body for the CPU: called once a launch, in stream order, with the places of copies of
 * the kernel's arguments. It runs on a thread of the driver and must not call CUDA. */
typedef void (*forebay_simcudart_body)(void **arguments, const forebay_simcudart_launch *launch);

/* Gives the kernel of this name a body; null takes it away. `sizes` are the bytes of each of its
 * `count` arguments. 0, or 1 if a name or a size cannot be. Any thread. */
int forebay_simcudart_kernel(const char *name, forebay_simcudart_body body, const size_t *sizes,
                             size_t count);

/* How often the kernel of this name was launched or captured. */
unsigned long long forebay_simcudart_launches(const char *name);

/* 1: this is the simulated runtime. */
int forebay_simcudart_is_simulated(void);

#ifdef __cplusplus
}
#endif

#endif
