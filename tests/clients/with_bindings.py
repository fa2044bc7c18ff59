"""cuda.bindings.driver: memory of every kind, copies, streams, a graph; nothing of Forebay in it.

Prints the bytes that the pool served of what was allocated, and `well` when every value is right.
"""

import numpy
from cuda.bindings import driver

from witness import served

WORDS = 1 << 18
BYTES = 4 * WORDS


def call(function, *arguments):
    """What the function answers besides its code; a code that is not 0 is an error."""
    code, *answers = function(*arguments)
    assert code == driver.CUresult.CUDA_SUCCESS, (function.__name__, code)
    return answers[0] if len(answers) == 1 else tuple(answers)


def put(address, values):
    call(driver.cuMemcpyHtoD, address, values.ctypes.data, values.nbytes)


def get(address, words=WORDS):
    values = numpy.zeros(words, dtype=numpy.uint32)
    call(driver.cuMemcpyDtoH, values.ctypes.data, address, values.nbytes)
    return values


def plain():
    values = numpy.arange(WORDS, dtype=numpy.uint32) * 2654435761
    first, second = call(driver.cuMemAlloc, BYTES), call(driver.cuMemAlloc, BYTES)
    total = served(first, BYTES) + served(second, BYTES)
    put(first, values)
    call(driver.cuMemsetD32, second, 7, WORDS)
    call(driver.cuMemcpyDtoD, int(second) + BYTES // 2, first, BYTES // 2)
    back = get(second)
    assert (back[: WORDS // 2] == 7).all() and (back[WORDS // 2 :] == values[: WORDS // 2]).all()
    base, length = call(driver.cuMemGetAddressRange, int(first) + 5000)
    assert (int(base), length) == (int(first), BYTES)
    free, whole = call(driver.cuMemGetInfo)
    assert 0 < free < whole == 256 << 20, (free, whole)
    call(driver.cuMemFree, first)
    call(driver.cuMemFree, second)
    return total


def pitched():
    address, pitch = call(driver.cuMemAllocPitch, 300, 17, 4)
    assert pitch >= 300
    total = served(address, 17 * pitch)
    call(driver.cuMemsetD2D8, address, pitch, 0x11, 300, 17)
    assert (get(int(address) + 16 * pitch, 75) == 0x11111111).all()
    call(driver.cuMemFree, address)
    return total


def managed():
    address = call(driver.cuMemAllocManaged, BYTES, 1)
    assert served(address, BYTES) == 0
    call(driver.cuMemsetD32, address, 9, WORDS)
    assert (get(address) == 9).all()
    call(driver.cuMemFree, address)


def ordered():
    """Allocated and freed in turn on a stream: what is freed is written no more."""
    stream = call(driver.cuStreamCreate, 1)
    total, kept = 0, []
    for turn in range(20):
        address = call(driver.cuMemAllocAsync, BYTES, stream)
        total += served(address, BYTES)
        call(driver.cuMemsetD32Async, address, turn, WORDS, stream)
        back = numpy.zeros(WORDS, dtype=numpy.uint32)
        call(driver.cuMemcpyDtoHAsync, back.ctypes.data, address, BYTES, stream)
        call(driver.cuMemFreeAsync, address, stream)
        kept.append(back)
    call(driver.cuStreamSynchronize, stream)
    assert all((back == turn).all() for turn, back in enumerate(kept))
    total += from_pool(call(driver.cuDeviceGetDefaultMemPool, 0), stream)
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    own = call(driver.cuMemPoolCreate, properties)
    assert from_pool(own, stream) == 0
    call(driver.cuMemPoolDestroy, own)
    call(driver.cuStreamDestroy, stream)
    return total


def from_pool(pool, stream):
    address = call(driver.cuMemAllocFromPoolAsync, BYTES, pool, stream)
    total = served(address, BYTES)
    call(driver.cuMemFreeAsync, address, stream)
    call(driver.cuStreamSynchronize, stream)
    return total


def captured():
    stream, address = call(driver.cuStreamCreate, 1), call(driver.cuMemAlloc, BYTES)
    total = served(address, BYTES)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call(driver.cuStreamBeginCapture, stream, mode)
    call(driver.cuMemsetD32Async, address, 0xAB, WORDS, stream)
    graph = call(driver.cuStreamEndCapture, stream)
    program = call(driver.cuGraphInstantiate, graph, 0)
    for _ in range(3):
        call(driver.cuMemsetD32, address, 0, WORDS)
        call(driver.cuCtxSynchronize)
        call(driver.cuGraphLaunch, program, stream)
        call(driver.cuStreamSynchronize, stream)
        assert (get(address) == 0xAB).all()
    call(driver.cuGraphExecDestroy, program)
    call(driver.cuGraphDestroy, graph)
    call(driver.cuMemFree, address)
    call(driver.cuStreamDestroy, stream)
    return total


call(driver.cuInit, 0)
device = call(driver.cuDeviceGet, 0)
call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
total = plain() + pitched() + ordered() + captured()
managed()
call(driver.cuCtxSynchronize)
call(driver.cuDevicePrimaryCtxRelease, device)
print("served", total)
print("well")
