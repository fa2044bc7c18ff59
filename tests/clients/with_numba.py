"""numba-cuda: device arrays, views, streams and pinned arrays; nothing of Forebay in it.

Prints the bytes that the pool served of what was allocated, and `well` when every value is right.
"""

import numpy
from numba import cuda

from witness import served

total = 0


def known(array):
    """Takes the array's memory into the sum."""
    global total
    total += served(array.device_ctypes_pointer.value, array.nbytes)
    return array


def there_and_back():
    values = numpy.arange(1 << 18, dtype=numpy.float32)
    array = known(cuda.to_device(values))
    assert (array.copy_to_host() == values).all()
    assert (array[1000:2000].copy_to_host() == values[1000:2000]).all()
    other = known(cuda.device_array_like(array))
    other.copy_to_device(array)
    array.copy_to_device(numpy.zeros_like(values))
    assert (other.copy_to_host() == values).all() and not array.copy_to_host().any()


def shapes():
    for shape in [(1,), (17, 300), (5, 7, 11), (1 << 20,)]:
        values = numpy.random.default_rng(1).integers(0, 1 << 30, shape, dtype=numpy.int64)
        assert (known(cuda.to_device(values)).copy_to_host() == values).all()


def on_streams():
    streams = [cuda.stream() for _ in range(3)]
    kept = []
    for turn in range(12):
        stream = streams[turn % 3]
        values = cuda.pinned_array(1 << 16, dtype=numpy.uint32)
        values[:] = turn
        array = known(cuda.to_device(values, stream=stream))
        back = cuda.pinned_array(1 << 16, dtype=numpy.uint32)
        array.copy_to_host(back, stream=stream)
        kept.append((turn, array, back, values))
    for stream in streams:
        stream.synchronize()
    assert all((back == turn).all() for turn, _, back, _ in kept)


there_and_back()
shapes()
on_streams()
cuda.synchronize()
# What numba has put off is freed now: it closes without a current context.
context = cuda.current_context()
context.memory_manager.deallocations.clear()
context.deallocations.clear()
cuda.close()
print("served", total)
print("well")
