/*
 * Questions that PyTorch asks the runtime several times for each tensor, answered at once.
 *
 * Preloaded, so that the simulated runtime's own functions are not reached: what they take says
 * nothing about NVIDIA's, and would hide the allocators that are compared. One device, no errors.
 */
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);

int cudaGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int cudaSetDevice(int device)
{
    return device == 0 ? 0 : 101;
}

int cudaGetLastError(void)
{
    return 0;
}

int cudaPeekAtLastError(void)
{
    return 0;
}
