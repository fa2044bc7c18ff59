"""The C functions behind ``forebay.torch``, declared, and the C++ part beside them.

Owns the one handle of ``libforebay_torch.so``, which lies beside the C library. It is loaded when
an allocator is replaced, since that alone needs it.
"""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path
from typing import Any, Optional

from .._library import LIB, lib_path


class CPoolId(c.Structure):
    """``forebay_torch_pool_id``."""

    _fields_ = [("first", c.c_uint64), ("second", c.c_uint64)]


class CStat(c.Structure):
    """``forebay_torch_stat``."""

    NAMES = ("current", "peak", "allocated", "freed")
    _fields_ = [(name, c.c_uint64) for name in NAMES]


class CDeviceStats(c.Structure):
    """``forebay_torch_stats``: each three times, for all blocks, small ones and large ones."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("blocks", CStat * 3),
        ("bytes", CStat * 3),
        ("requested", CStat * 3),
        ("out_of_memory", c.c_uint64),
        ("page_bytes", c.c_uint64),
    ]


EVENT = c.CFUNCTYPE(None, c.c_int, c.c_void_p, c.c_size_t, c.c_int, c.c_void_p)

_ARGUMENTS: dict[str, list[Any]] = {
    "forebay_torch_pool": [c.c_int32, c.POINTER(c.c_void_p)],
    "forebay_torch_device_stats": [c.c_int32, c.POINTER(CDeviceStats)],
    "forebay_torch_reset_peaks": [c.c_int32],
}
for _name, _types in _ARGUMENTS.items():
    _function = getattr(LIB, _name)
    _function.argtypes = _types
    _function.restype = c.c_int32
LIB.forebay_torch_memory_fraction.argtypes = [c.c_double, c.c_int32]
LIB.forebay_torch_memory_fraction.restype = None
LIB.forebay_torch_reset.argtypes = []
LIB.forebay_torch_reset.restype = None
LIB.forebay_torch_watch.argtypes = [c.c_void_p, c.c_void_p]
LIB.forebay_torch_watch.restype = None


def address(library: c.CDLL, name: str) -> int:
    """Where a function of a library begins."""
    return c.cast(getattr(library, name), c.c_void_p).value or 0


class _Entries(c.Structure):
    NAMES = (
        "forebay_torch_allocate", "forebay_last_error", "forebay_torch_begin_allocate_to_pool",
        "forebay_torch_end_allocate_to_pool",
    )  # fmt: skip
    _fields_ = [(name, c.c_void_p) for name in NAMES]


_companion: Optional[c.CDLL] = None


def companion(torch_folder: Path) -> c.CDLL:
    """The C++ part, loaded and made ready for the PyTorch whose package is in this folder.
    Raises ``RuntimeError`` where it cannot work with that PyTorch; nothing has changed then."""
    global _companion
    if _companion is not None:
        return _companion
    path = lib_path().parent / "libforebay_torch.so"
    if not path.exists():
        raise RuntimeError(
            f"{path} is not there: this build of Forebay has no part for PyTorch; install the "
            "Python package, which carries it beside libforebay.so.0"
        )
    library = c.CDLL(str(path))
    entries = _Entries(*[address(LIB, name) for name in _Entries.NAMES])
    why = c.create_string_buffer(256)
    libc10 = os.fsencode(torch_folder / "lib" / "libc10.so")
    library.forebay_companion_start.argtypes = [
        c.POINTER(_Entries), c.c_char_p, c.c_char_p, c.c_size_t,
    ]  # fmt: skip
    if library.forebay_companion_start(c.byref(entries), libc10, why, len(why)) != 0:
        raise RuntimeError(
            f"Forebay cannot replace this PyTorch's allocator: {why.value.decode()}. "
            "forebay.torch.pool() needs none of that"
        )
    _companion = library
    return library
