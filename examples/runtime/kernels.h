/* The kernels of the example: what each element is, and how a kernel is launched.
 *
 * All arithmetic is on 32 bits without a sign, modulo 2^32, so every machine gets the same words.
 * The functions of elements are those of the kernels, of their bodies for the CPU and of the
 * reference that the program checks itself by. */
#ifndef FOREBAY_EXAMPLE_KERNELS_H
#define FOREBAY_EXAMPLE_KERNELS_H

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define EXAMPLE_BOTH __host__ __device__ inline
#else
#define EXAMPLE_BOTH inline
#endif

/* One output of a dense layer: the row times the weights of the output, folded. */
EXAMPLE_BOTH uint32_t dense_element(const uint32_t *row, const uint32_t *weights, uint32_t width)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < width; i++) {
        sum += row[i] * weights[i];
    }
    return sum ^ (sum >> 7);
}

/* One word of the state after `length` rows of history: their sum, each times its age. */
EXAMPLE_BOTH uint32_t attend_element(const uint32_t *history, uint32_t length, uint32_t stride,
                                     uint32_t at)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < length; i++) {
        sum += history[(size_t)i * stride + at] * (length - i);
    }
    return sum;
}

/* Whether kernels can run: compiled by nvcc, or the runtime takes bodies for the CPU. */
bool kernels_ready();

/* out[b][o] for all rows of a batch. */
cudaError_t launch_dense(cudaStream_t stream, const uint32_t *in, const uint32_t *weights,
                         uint32_t *out, uint32_t width, uint32_t batch);

/* Appends `words` words to the history, and counts one more row. */
cudaError_t launch_append(cudaStream_t stream, uint32_t *history, uint32_t *length,
                          const uint32_t *row, uint32_t words);

/* The state after all rows of the history. */
cudaError_t launch_attend(cudaStream_t stream, const uint32_t *history, const uint32_t *length,
                          uint32_t *out, uint32_t words);

#endif
