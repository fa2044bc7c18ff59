"""The C library: found, loaded, and its functions declared.

Owns the one handle of the process. The library is the one in this package, or the one that
``FOREBAY_LIBRARY`` names. Nothing of CUDA is touched by loading it.
"""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path
from typing import Any

ABI_VERSION = 1


def lib_path() -> Path:
    """The file of the library in use: for ``LD_PRELOAD``, linkers and ``ctypes``."""
    named = os.environ.get("FOREBAY_LIBRARY")
    return Path(named) if named else Path(__file__).parent / "lib" / "libforebay.so.0"


def preload_path() -> Path:
    """The preload library that lies beside ``lib_path()``: for the ``LD_PRELOAD`` of a program that
    is not to be changed, as ``python -m forebay.run`` sets it.

    Loading it into this process would be too late: it must be there before CUDA is. Raises
    ``FileNotFoundError`` where ``FOREBAY_LIBRARY`` names a file that has none beside it.
    """
    path = lib_path().absolute().with_name("libforebay_preload.so")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: it must lie beside the library in use")
    return path


class CStats(c.Structure):
    """``forebay_stats``: every field after the first is an unsigned 64-bit number."""

    NAMES = (
        "live_bytes", "requested_bytes", "cached_bytes", "pending_bytes", "trapped_bytes",
        "idle_bytes", "other_bytes", "mapped_bytes", "peak_live_bytes", "peak_mapped_bytes",
        "limit_bytes", "soft_limit_bytes", "reserved_address_bytes", "live_blocks", "allocs",
        "frees", "driver_calls", "pages_created", "pages_released", "pages_moved", "map_calls",
        "unmap_calls", "set_access_calls", "gathers", "fences_recorded", "oom_count",
        "stranded_pages", "unmapped_stock_bytes", "host_live_bytes", "host_mapped_bytes",
        "suspended_bytes", "suspended_host_bytes", "region_bytes",
    )  # fmt: skip
    _fields_ = [("struct_size", c.c_size_t)] + [(name, c.c_uint64) for name in NAMES]


class CSuspendReport(c.Structure):
    """``forebay_suspend_report``: every field after the first is an unsigned 64-bit number."""

    NAMES = (
        "device_bytes", "host_bytes", "kept_bytes", "stuck_bytes", "missing_bytes", "blocks",
    )  # fmt: skip
    _fields_ = [("struct_size", c.c_size_t)] + [(name, c.c_uint64) for name in NAMES]


class CLeak(c.Structure):
    """``forebay_leak``."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("address", c.c_void_p),
        ("bytes", c.c_uint64),
        ("age_ms", c.c_uint64),
        ("tag", c.c_uint32),
        ("call_site", c.c_char_p),
    ]


class COptions(c.Structure):
    """``forebay_pool_options``."""

    _fields_ = [
        ("struct_size", c.c_size_t),
        ("device", c.c_int32),
        ("flags", c.c_uint32),
        ("limit", c.c_uint64),
        ("soft_limit", c.c_uint64),
        ("reserve", c.c_uint64),
        ("headroom", c.c_uint64),
        ("release_threshold", c.c_uint64),
        ("decay", c.c_uint64),
        ("cache", c.c_uint64),
        ("oom_wait_ms", c.c_uint32),
        ("keeper", c.c_uint32),
        ("keeper_budget_ms", c.c_uint32),
        ("leaks", c.c_uint32),
        ("backtrace", c.c_uint32),
        ("debug", c.c_uint32),
        ("scrub", c.c_uint32),
        ("move", c.c_uint32),
        ("free", c.c_uint32),
        ("reuse", c.c_uint32),
        ("ahead", c.c_uint64),
    ]


VISIT = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(CLeak))
OOM = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_size_t)

_SIZES = c.POINTER(c.c_size_t)
_OUT = c.POINTER(c.c_void_p)
_ARGUMENTS: dict[str, list[Any]] = {
    "forebay_malloc": [_OUT, c.c_size_t],
    "forebay_free": [c.c_void_p],
    "forebay_alloc_aligned": [c.c_void_p, _OUT, c.c_size_t, c.c_size_t, c.c_void_p],
    "forebay_alloc": [c.c_void_p, _OUT, c.c_size_t, c.c_void_p],
    "forebay_dealloc": [c.c_void_p, c.c_void_p, c.c_void_p],
    "forebay_record_use": [c.c_void_p, c.c_void_p, c.c_void_p],
    "forebay_mem_info": [_SIZES, _SIZES],
    "forebay_usable_size": [c.c_void_p, _SIZES],
    "forebay_pin": [c.c_void_p],
    "forebay_unpin": [c.c_void_p],
    "forebay_pool_options_init": [c.POINTER(COptions)],
    "forebay_pool_create": [_OUT, c.POINTER(COptions)],
    "forebay_pool_destroy": [c.c_void_p],
    "forebay_pool_default": [c.c_int32, _OUT],
    "forebay_pool_trim": [c.c_void_p, c.c_size_t, _SIZES],
    "forebay_pool_set_limits": [c.c_void_p, c.c_uint64, c.c_uint64],
    "forebay_pool_stats": [c.c_void_p, c.POINTER(CStats)],
    "forebay_pool_report_json": [c.c_void_p, c.c_char_p, c.c_size_t, _SIZES],
    "forebay_pool_leaks": [c.c_void_p, VISIT, c.c_void_p],
    "forebay_set_oom_callback": [c.c_void_p, OOM, c.c_void_p],
    "forebay_tag_create": [c.c_char_p, c.POINTER(c.c_uint32)],
    "forebay_tag_set": [c.c_uint32, c.POINTER(c.c_uint32)],
    "forebay_tag_bytes": [c.c_void_p, c.c_uint32, c.POINTER(c.c_uint64)],
    "forebay_tag_suspendable": [c.c_void_p, c.c_uint32],
    "forebay_tag_is_suspended": [c.c_void_p, c.c_uint32, c.POINTER(c.c_bool)],
    "forebay_suspend": [
        c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t, c.c_uint32, c.POINTER(CSuspendReport),
    ],
    "forebay_resume": [
        c.c_void_p, c.POINTER(c.c_uint32), c.c_size_t, c.POINTER(CSuspendReport),
    ],
    "forebay_stream_retire": [c.c_void_p],
}


def _load() -> c.CDLL:
    path = lib_path()
    try:
        library = c.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"{path} cannot be loaded ({error}); FOREBAY_LIBRARY names another file"
        ) from error
    library.forebay_abi_version.restype = c.c_uint32
    version = library.forebay_abi_version()
    if version != ABI_VERSION:
        raise ImportError(f"{path} speaks ABI version {version}, this package {ABI_VERSION}")
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c.c_int32
    library.forebay_owns.argtypes = [c.c_void_p]
    library.forebay_owns.restype = c.c_bool
    for name in ("forebay_version", "forebay_last_error", "forebay_status_name"):
        getattr(library, name).restype = c.c_char_p
    library.forebay_status_name.argtypes = [c.c_int32]
    return library


LIB = _load()
