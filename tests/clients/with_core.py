"""cuda.core: buffers on the default stream and on streams of their own; nothing of Forebay in it.

Prints the bytes that the pool served of what was allocated, and `well` when every value is right.
"""

import ctypes

from cuda.core import Device, LegacyPinnedMemoryResource

from witness import served

BYTES = 1 << 20

device = Device(0)
device.set_current()
pinned = LegacyPinnedMemoryResource()
total = 0


def host(buffer):
    return (ctypes.c_uint8 * buffer.size).from_address(int(buffer.handle))


def there_and_back(stream, value):
    """Values to the device, through a second buffer, and back; freed in the stream's order."""
    global total
    source, target = pinned.allocate(BYTES), pinned.allocate(BYTES)
    first, second = (device.allocate(BYTES, stream=stream) for _ in range(2))
    total += served(int(first.handle), BYTES) + served(int(second.handle), BYTES)
    ctypes.memset(int(source.handle), value, BYTES)
    first.copy_from(source, stream=stream)
    second.copy_from(first, stream=stream)
    second.copy_to(target, stream=stream)
    first.close(stream)
    second.close(stream)
    stream.sync()
    assert bytes(host(target)) == bytes([value]) * BYTES, value
    for buffer in (source, target):
        buffer.close()


there_and_back(device.default_stream, 1)
streams = [device.create_stream() for _ in range(2)]
for turn in range(10):
    there_and_back(streams[turn % 2], 2 + turn)
for stream in streams:
    stream.close()
print("served", total)
print("well")
