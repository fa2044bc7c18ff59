"""The same memory and data as runtime.c, with every function of CUDA looked up by hand.

Usage: symbols.py LIBRARY, where LIBRARY is the runtime. Opens it with dlopen and finds each
function with dlsym on that handle, as programs do that link nothing of CUDA.
"""

import ctypes
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

WORDS = 4096
BYTES = WORDS * 4
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3

libc = ctypes.CDLL(None)
dlopen, dlsym = libc.dlopen, libc.dlsym
dlopen.restype, dlopen.argtypes = c_void_p, [c_char_p, c_int]
dlsym.restype, dlsym.argtypes = c_void_p, [c_void_p, c_char_p]

RTLD_NOW = 2
handle = dlopen(sys.argv[1].encode(), RTLD_NOW)
if not handle:
    sys.exit("no " + sys.argv[1])
failed = 0


class Extent(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


class PitchedPtr(ctypes.Structure):
    _fields_ = [("ptr", c_void_p), ("pitch", c_size_t), ("xsize", c_size_t), ("ysize", c_size_t)]


P, N, I, U = c_void_p, c_size_t, c_int, c_uint
TYPES = {
    "cudaSetDevice": [I],
    "cudaDeviceSynchronize": [],
    "cudaMalloc": [P, N],
    "cudaFree": [P],
    "cudaMallocPitch": [P, P, N, N],
    "cudaMalloc3D": [P, Extent],
    "cudaMallocManaged": [P, N, U],
    "cudaMallocHost": [P, N],
    "cudaHostAlloc": [P, N, U],
    "cudaFreeHost": [P],
    "cudaHostRegister": [P, N, U],
    "cudaHostUnregister": [P],
    "cudaMallocAsync": [P, N, P],
    "cudaMallocFromPoolAsync": [P, N, P, P],
    "cudaFreeAsync": [P, P],
    "cudaDeviceGetDefaultMemPool": [P, I],
    "cudaMemcpy": [P, P, N, I],
    "cudaMemcpyAsync": [P, P, N, I, P],
    "cudaMemcpy2D": [P, N, P, N, N, N, I],
    "cudaMemset": [P, I, N],
    "cudaMemsetAsync": [P, I, N, P],
    "cudaMemset2D": [P, N, I, N, N],
    "cudaStreamCreate": [P],
    "cudaStreamCreateWithFlags": [P, U],
    "cudaStreamSynchronize": [P],
    "cudaStreamWaitEvent": [P, P, U],
    "cudaStreamDestroy": [P],
    "cudaEventCreateWithFlags": [P, U],
    "cudaEventRecord": [P, P],
    "cudaEventSynchronize": [P],
    "cudaEventDestroy": [P],
    "cudaStreamBeginCapture": [P, I],
    "cudaStreamEndCapture": [P, P],
    "cudaGraphInstantiate": [P, P, c_ulonglong],
    "cudaGraphLaunch": [P, P],
    "cudaGraphExecDestroy": [P],
    "cudaGraphDestroy": [P],
}


def call(name, *arguments):
    """Looks a function up and calls it; an error is told and counted."""
    global failed
    address = dlsym(handle, name.encode())
    if not address:
        sys.exit("no " + name)
    code = ctypes.CFUNCTYPE(c_int, *TYPES[name])(address)(*arguments)
    if code != 0:
        print(name, code, file=sys.stderr)
        failed += 1


def made(name, *arguments):
    """A handle or an address from a function that writes one."""
    place = c_void_p()
    call(name, ctypes.cast(byref(place), c_void_p), *arguments)
    return place


def pattern(to, words, seed):
    data = (c_uint * words).from_address(to if isinstance(to, int) else to.value)
    for i in range(words):
        data[i] = (i * 2654435761 + seed * 40503) & 0xFFFFFFFF


def tell(kind, at, words):
    data = (c_uint * words).from_address(at if isinstance(at, int) else at.value)
    total = sum(word * (i + 1) for i, word in enumerate(data)) & 0xFFFFFFFFFFFFFFFF
    print("%s %016x" % (kind, total), flush=True)


def buffer(bytes_):
    """Host memory, page aligned: the array, which must be kept, and its address."""
    array = (ctypes.c_char * (bytes_ + 4096))()
    return array, (ctypes.addressof(array) + 4095) & ~4095


def plain_memory():
    kept, data = buffer(BYTES)
    pattern(data, WORDS, 1)
    a, b = made("cudaMalloc", BYTES), made("cudaMalloc", BYTES)
    call("cudaMemcpy", a, data, BYTES, HOST_TO_DEVICE)
    call("cudaMemset", b, 0x5A, BYTES)
    call("cudaMemcpy", b, a.value + BYTES // 2, BYTES // 2, DEVICE_TO_DEVICE)
    call("cudaMemcpy", data, b, BYTES, DEVICE_TO_HOST)
    call("cudaFree", a)
    call("cudaFree", b)
    tell("malloc", data, WORDS)
    del kept


def rows(kind, at, pitch, width, height, written, seed, fill):
    kept, data = buffer(width * height)
    pattern(data, width * height // 4, seed)
    call("cudaMemset2D", at, pitch, fill, width, height)
    call("cudaMemcpy2D", at, pitch, data, width, width, written, HOST_TO_DEVICE)
    call("cudaMemcpy2D", data, width, at, pitch, width, height, DEVICE_TO_HOST)
    call("cudaFree", at)
    tell(kind, data, width * height // 4)
    del kept


def pitched_memory():
    pitch = c_size_t()
    a = made("cudaMallocPitch", ctypes.cast(byref(pitch), c_void_p), 300, 17)
    rows("pitch", a, pitch.value, 300, 17, 10, 2, 0x11)


def planes():
    a = PitchedPtr()
    call("cudaMalloc3D", ctypes.cast(byref(a), c_void_p), Extent(64, 8, 4))
    rows("planes", a.ptr, a.pitch, 64, 32, 24, 3, 0x22)


def managed_memory():
    a = made("cudaMallocManaged", BYTES, 1)
    pattern(a, WORDS, 4)
    call("cudaMemset", a, 0x44, BYTES // 2)
    call("cudaDeviceSynchronize")
    tell("managed", a, WORDS)
    call("cudaFree", a)


def pinned_memory():
    data, out = made("cudaMallocHost", BYTES), made("cudaHostAlloc", BYTES, 1)
    a, stream = made("cudaMalloc", BYTES), made("cudaStreamCreate")
    pattern(data, WORDS, 5)
    call("cudaMemcpyAsync", a, data, BYTES, HOST_TO_DEVICE, stream)
    call("cudaMemcpyAsync", out, a, BYTES, DEVICE_TO_HOST, stream)
    call("cudaStreamSynchronize", stream)
    tell("pinned", out, WORDS)
    call("cudaStreamDestroy", stream)
    call("cudaFree", a)
    call("cudaFreeHost", data)
    call("cudaFreeHost", out)


def registered_memory():
    kept, out = buffer(BYTES)
    pattern(out, WORDS, 6)
    call("cudaHostRegister", out, BYTES, 0)
    a = made("cudaMalloc", BYTES)
    call("cudaMemset", a, 0x66, BYTES)
    call("cudaMemcpyAsync", out, a, BYTES // 4, DEVICE_TO_HOST, None)
    call("cudaStreamSynchronize", None)
    tell("registered", out, WORDS)
    call("cudaFree", a)
    call("cudaHostUnregister", out)
    del kept


def ordered_memory(kind, named, seed):
    data, out = made("cudaMallocHost", BYTES), made("cudaMallocHost", BYTES)
    stream = made("cudaStreamCreateWithFlags", 1)
    pattern(data, WORDS, seed)
    if named:
        pool = made("cudaDeviceGetDefaultMemPool", 0)
        a = made("cudaMallocFromPoolAsync", BYTES, pool, stream)
    else:
        a = made("cudaMallocAsync", BYTES, stream)
    call("cudaMemcpyAsync", a, data, BYTES, HOST_TO_DEVICE, stream)
    call("cudaMemsetAsync", a, 0x77, BYTES // 8, stream)
    call("cudaMemcpyAsync", out, a, BYTES, DEVICE_TO_HOST, stream)
    call("cudaFreeAsync", a, stream)
    call("cudaStreamSynchronize", stream)
    tell(kind, out, WORDS)
    call("cudaStreamDestroy", stream)
    call("cudaFreeHost", data)
    call("cudaFreeHost", out)


def two_streams():
    data, out = made("cudaMallocHost", BYTES), made("cudaMallocHost", 2 * BYTES)
    a, b = made("cudaMalloc", BYTES), made("cudaMalloc", BYTES)
    first = made("cudaStreamCreateWithFlags", 1)
    second = made("cudaStreamCreateWithFlags", 1)
    written, read = made("cudaEventCreateWithFlags", 2), made("cudaEventCreateWithFlags", 2)
    pattern(data, WORDS, 9)
    call("cudaMemcpyAsync", a, data, BYTES, HOST_TO_DEVICE, first)
    call("cudaEventRecord", written, first)
    call("cudaStreamWaitEvent", second, written, 0)
    call("cudaMemcpyAsync", b, a, BYTES, DEVICE_TO_DEVICE, second)
    call("cudaEventRecord", read, second)
    call("cudaStreamWaitEvent", first, read, 0)
    call("cudaMemsetAsync", a, 0x99, BYTES, first)
    call("cudaMemcpyAsync", out, a, BYTES, DEVICE_TO_HOST, first)
    call("cudaMemcpyAsync", out.value + BYTES, b, BYTES, DEVICE_TO_HOST, second)
    call("cudaEventSynchronize", read)
    call("cudaDeviceSynchronize")
    tell("streams", out, 2 * WORDS)
    for event in (written, read):
        call("cudaEventDestroy", event)
    for stream in (first, second):
        call("cudaStreamDestroy", stream)
    for memory in (a, b):
        call("cudaFree", memory)
    for memory in (data, out):
        call("cudaFreeHost", memory)


def captured_graph():
    out, a, b = made("cudaMallocHost", BYTES), made("cudaMalloc", BYTES), made("cudaMalloc", BYTES)
    call("cudaMemset", b, 0x0A, BYTES)
    call("cudaDeviceSynchronize")
    stream = made("cudaStreamCreate")
    call("cudaStreamBeginCapture", stream, 1)
    call("cudaMemsetAsync", a, 0xAA, BYTES, stream)
    call("cudaMemcpyAsync", b, a, BYTES // 2, DEVICE_TO_DEVICE, stream)
    call("cudaMemcpyAsync", out, b, BYTES, DEVICE_TO_HOST, stream)
    graph = c_void_p()
    call("cudaStreamEndCapture", stream, ctypes.cast(byref(graph), c_void_p))
    exec_ = made("cudaGraphInstantiate", graph, 0)
    call("cudaGraphLaunch", exec_, stream)
    call("cudaGraphLaunch", exec_, stream)
    call("cudaStreamSynchronize", stream)
    tell("graph", out, WORDS)
    call("cudaGraphExecDestroy", exec_)
    call("cudaGraphDestroy", graph)
    call("cudaStreamDestroy", stream)
    call("cudaFree", a)
    call("cudaFree", b)
    call("cudaFreeHost", out)


call("cudaSetDevice", 0)
plain_memory()
pitched_memory()
planes()
managed_memory()
pinned_memory()
registered_memory()
ordered_memory("async", False, 7)
ordered_memory("pool", True, 8)
two_streams()
captured_graph()
call("cudaDeviceSynchronize")
sys.exit(1 if failed else 0)
