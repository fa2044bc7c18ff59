/* libnvidia-ml.so.1 of the simulated machine: what PyTorch asks it for, and no more.
 *
 * Devices and their places on the bus are those that the simulated driver says (its `devices`
 * setting); there is no NVLink, no fabric and no other process. Without this library PyTorch's
 * expandable segments crash: their look at the fabric calls through a null pointer, and an error
 * instead of "no fabric" is thrown. Tests only: never installed. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

#define EXPORT __attribute__((visibility("default")))

static void *driver_function(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
}

static unsigned devices(void)
{
    int (*init)(unsigned) = (int (*)(unsigned))driver_function("cuInit");
    int (*count)(int *) = (int (*)(int *))driver_function("cuDeviceGetCount");
    int found = 0;
    if (!init || !count || init(0) != 0 || count(&found) != 0) {
        return 0;
    }
    return (unsigned)found;
}

/* A device's handle is its number, counted from 1. */
static void *handle_of(unsigned device) { return (void *)(unsigned long)(device + 1); }

EXPORT int nvmlInit(void) { return devices() ? SUCCESS : DRIVER_NOT_LOADED; }
EXPORT int nvmlInit_v2(void) { return nvmlInit(); }
EXPORT int nvmlShutdown(void) { return SUCCESS; }

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = devices();
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned device, void **handle)
{
    if (device >= devices()) {
        return INVALID_ARGUMENT;
    }
    *handle = handle_of(device);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle)
{
    int (*find)(int *, const char *) =
        (int (*)(int *, const char *))driver_function("cuDeviceGetByPCIBusId");
    unsigned domain = 0, bus = 0, slot = 0;
    char short_id[32];
    int device = 0;
    /* NVML takes domains of eight digits too, which is how PyTorch writes them. */
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        return INVALID_ARGUMENT;
    }
    snprintf(short_id, sizeof short_id, "%04x:%02x:%02x.0", domain, bus, slot);
    if (!find || find(&device, short_id) != 0) {
        return NOT_FOUND;
    }
    *handle = handle_of((unsigned)device);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(void *handle, char *to, unsigned length)
{
    unsigned long device = (unsigned long)handle - 1;
    int needed = snprintf(to, length, "GPU-f0eba900-0000-0000-0000-%012lx", device);
    return needed >= 0 && (unsigned)needed < length ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    int (*ask)(int *) = (int (*)(int *))driver_function("cuDriverGetVersion");
    return ask && ask(version) == 0 ? SUCCESS : DRIVER_NOT_LOADED;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }

EXPORT int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *processes)
{
    (void)handle;
    (void)processes;
    *count = 0;
    return SUCCESS;
}

/* nvmlGpuFabricInfo_v2_t: a version, then 16 bytes of cluster, a status, a clique, a state byte
 * and a health mask, 32 bytes in all. All 0: this device knows no fabric. */
EXPORT int nvmlDeviceGetGpuFabricInfoV(void *handle, void *information)
{
    (void)handle;
    memset((char *)information + 4, 0, 28);
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
    return code == SUCCESS ? "success" : "the simulated NVML refuses";
}
