"""What a program without Forebay finds out about it: whether an address is its pool's."""

import ctypes
import os


def served(address, length):
    """`length` if the address begins a block of the pool that has room for so many bytes.

    0 if the memory is the driver's. An address inside a block is an error.
    """
    try:
        pool = ctypes.CDLL("libforebay.so.0", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return 0
    base, there = ctypes.c_void_p(), ctypes.c_size_t()
    code = pool.forebay_block_range(
        ctypes.c_void_p(int(address)), ctypes.byref(base), ctypes.byref(there)
    )
    if code != 0:
        return 0
    assert base.value == int(address), (base.value, int(address))
    assert there.value >= length, (there.value, length)
    return length
