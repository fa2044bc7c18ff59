"""Forebay: a GPU memory pool.

The package carries the C library and reaches it through ctypes; it needs neither CUDA nor a
compiler at run time. Memory is the CUDA device's unless ``FOREBAY_BACKEND=host`` is set before
first use.
"""

from ._errors import Error, OutOfMemoryError
from ._library import LIB, lib_path, preload_path
from ._pool import (
    Block,
    Leak,
    Pool,
    Stats,
    SuspendReport,
    default_pool,
    malloc,
    mem_info,
    owns,
    tag,
    tag_number,
)

__version__: str = LIB.forebay_version().decode()

__all__ = [
    "Block",
    "Error",
    "Leak",
    "OutOfMemoryError",
    "Pool",
    "Stats",
    "SuspendReport",
    "default_pool",
    "lib_path",
    "malloc",
    "mem_info",
    "owns",
    "preload_path",
    "tag",
    "tag_number",
]
