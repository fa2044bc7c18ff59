"""What there is in memory, by PyTorch's names, when PyTorch itself cannot tell.

Without :func:`forebay.torch.replace` PyTorch's own functions answer.
"""

from __future__ import annotations

import ctypes as c
import types
from typing import Any, Union

import torch
from torch.cuda import memory as torch_memory

from .._errors import check
from .._library import LIB
from .._pool import Pool, Stats, tag_number
from . import _native
from ._hooks import Device, device_index, is_replaced

Number = Union[int, float]
_POOLS = ("all", "small_pool", "large_pool")


def device_pool(device: Device = None) -> Pool:
    """The pool behind a device: for its limits, report, leaks."""
    handle = c.c_void_p()
    check(LIB.forebay_torch_pool(device_index(device), c.byref(handle)))
    return Pool._borrow(handle.value or 0)


def _stat(to: dict[str, Number], name: str, stat: Any) -> None:
    for part in _native.CStat.NAMES:
        to[f"{name}.{part}"] = getattr(stat, part)


def _plain(to: dict[str, Number], name: str, current: int, peak: int, freed: int) -> None:
    allocated = current + freed
    values = (current, max(peak, current), allocated, freed)
    for pool in _POOLS:
        for part, value in zip(_native.CStat.NAMES, values):
            to[f"{name}.{pool}.{part}"] = value if pool == "all" else 0


def _own_stats(index: int) -> dict[str, Number]:
    counts = _native.CDeviceStats()
    counts.struct_size = c.sizeof(counts)
    check(LIB.forebay_torch_device_stats(index, c.byref(counts)))
    if counts.blocks[0].allocated + counts.out_of_memory == 0:
        # Asking makes no pool on a device that was never used.
        accounts = Stats(**dict.fromkeys(Stats.__dataclass_fields__, 0))
    else:
        accounts = device_pool(index).stats()
    page = counts.page_bytes
    found: dict[str, Number] = {}
    for at, name in enumerate(_POOLS):
        _stat(found, f"allocation.{name}", counts.blocks[at])
        _stat(found, f"allocated_bytes.{name}", counts.bytes[at])
        _stat(found, f"requested_bytes.{name}", counts.requested[at])
        # What was freed and still waits for its stream is active in PyTorch's sense.
        _stat(found, f"active.{name}", counts.blocks[at])
        _stat(found, f"active_bytes.{name}", counts.bytes[at])
    found["active_bytes.all.current"] += accounts.pending_bytes
    found["active_bytes.all.peak"] = max(
        found["active_bytes.all.peak"], found["active_bytes.all.current"]
    )
    freed = accounts.pages_released
    _plain(found, "reserved_bytes", accounts.mapped_bytes, accounts.peak_mapped_bytes, freed * page)
    pages = accounts.pages_created - freed
    _plain(found, "segment", pages, accounts.peak_mapped_bytes // max(page, 1), freed)
    split = accounts.trapped_bytes + accounts.cached_bytes
    _plain(found, "inactive_split_bytes", split, split, 0)
    _plain(found, "inactive_split", 0, 0, 0)
    for name in ("oversize_allocations", "oversize_segments"):
        for part in _native.CStat.NAMES:
            found[f"{name}.{part}"] = 0
    found["max_split_size"] = -1
    found["num_alloc_retries"] = accounts.gathers
    found["num_ooms"] = counts.out_of_memory
    found["num_sync_all_streams"] = 0
    found["num_device_alloc"] = accounts.pages_created
    found["num_device_free"] = accounts.pages_released
    return dict(sorted(found.items()))


def memory_stats(device: Device = None) -> dict[str, Number]:
    """``torch.cuda.memory_stats``. After ``replace()`` the counts of blocks are exact; "segment"
    counts pages, "inactive_split_bytes" is what is free in pages that blocks hold and in caches,
    "num_alloc_retries" how often pages were moved together for a request, and what a pool does not
    tell apart by size is under "all" alone."""
    if not is_replaced():
        found: dict[str, Number] = torch.cuda.memory_stats(device)
        return found
    return _own_stats(device_index(device))


def memory_allocated(device: Device = None) -> int:
    """Bytes of live tensors, rounded up to what they take."""
    return int(memory_stats(device).get("allocated_bytes.all.current", 0))


def max_memory_allocated(device: Device = None) -> int:
    """The highest :func:`memory_allocated` since the peaks were reset."""
    return int(memory_stats(device).get("allocated_bytes.all.peak", 0))


def memory_reserved(device: Device = None) -> int:
    """Bytes that the pool holds of the device."""
    return int(memory_stats(device).get("reserved_bytes.all.current", 0))


def max_memory_reserved(device: Device = None) -> int:
    """The highest :func:`memory_reserved` since the peaks were reset."""
    return int(memory_stats(device).get("reserved_bytes.all.peak", 0))


def reset_peak_memory_stats(device: Device = None) -> None:
    """The peaks begin anew at what is there now."""
    if not is_replaced():
        torch.cuda.reset_peak_memory_stats(device)
        return
    check(LIB.forebay_torch_reset_peaks(device_index(device)))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """``torch.cuda.memory_summary``: PyTorch's table, of :func:`memory_stats`."""
    if not is_replaced():
        return str(torch.cuda.memory_summary(device, abbreviated))
    names = {**torch_memory.__dict__, "memory_stats": memory_stats}
    summary = types.FunctionType(torch_memory.memory_summary.__code__, names)
    return str(summary(device_index(device), abbreviated))


def memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits a device's memory to a share of it, above 0 and at most 1: as
    ``torch.cuda.set_per_process_memory_fraction``."""
    torch.cuda.set_per_process_memory_fraction(fraction, device_index(device))


def empty_cache() -> None:
    """``torch.cuda.empty_cache()``: idle memory goes back to the devices."""
    torch.cuda.empty_cache()


def tag_bytes(name: str, device: Device = None) -> int:
    """Live bytes that were allocated inside ``tag(name)``."""
    return device_pool(device).tag_bytes(tag_number(name))
