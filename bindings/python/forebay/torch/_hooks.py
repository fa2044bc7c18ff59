"""The two ways to put Forebay under PyTorch: in place of its allocator, or behind a ``MemPool``."""

from __future__ import annotations

import atexit
import ctypes as c
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch.cuda import memory as torch_memory

from .._errors import check
from .._library import LIB
from . import _native

Device = Union[None, int, str, torch.device]

_SETTERS = {
    "set_init_fn": "forebay_torch_init",
    "set_reset_fn": "forebay_torch_reset",
    "set_memory_fraction_fn": "forebay_torch_memory_fraction",
    "set_base_alloc_fn": "forebay_torch_base_alloc",
    "set_record_stream_fn": "forebay_torch_record_stream",
    "set_release_pool": "forebay_torch_release_pool",
}
_COMPANION_SETTERS = {
    "set_begin_allocate_to_pool": "forebay_companion_begin",
    "set_end_allocate_to_pool_fn": "forebay_companion_end",
}

# PyTorch calls these for as long as the process lives: nothing here is ever given up.
_replaced: Optional[Any] = None
_segments: Optional[Any] = None
_used: dict[int, Any] = {}


def is_replaced() -> bool:
    """Whether :func:`replace` has put Forebay in place of PyTorch's allocator."""
    return _replaced is not None


def _is_preloaded() -> bool:
    """Whether the preload library serves this process."""
    return hasattr(c.CDLL(None), "forebay_preload_count")


def device_index(device: Device) -> int:
    """The number of a device; the current one's for ``None``."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return int(torch.cuda.current_device() if index is None else index)


def retire_stream(stream: torch.cuda.Stream) -> None:
    """Tells Forebay that a stream is about to be destroyed: needed for those that the program made
    outside of PyTorch (``torch.cuda.ExternalStream``), whose memory could not be told from a later
    stream's of the same handle. PyTorch's own streams are never destroyed."""
    check(LIB.forebay_stream_retire(stream.cuda_stream))


def replace(*, patch: bool = False) -> None:
    """Makes Forebay the allocator of every CUDA tensor of this process. Again is fine.

    To be called before the first tensor on a device: PyTorch allows no exchange afterwards, and
    this raises ``RuntimeError`` then, as it does where PyTorch has no CUDA or is of a version that
    cannot be told of errors, and under the preload library. With ``patch`` the functions of
    ``torch.cuda`` that PyTorch refuses under an allocator of this kind (``memory_stats``,
    ``memory_allocated`` and so on) become those of :mod:`forebay.torch`.
    """
    global _replaced
    if _replaced is None:
        if not hasattr(torch._C, "_cuda_customAllocator"):
            raise RuntimeError("this PyTorch is built without CUDA: there is nothing to replace")
        if _is_preloaded():
            # Both would tell the pool of the same captures.
            raise RuntimeError(
                "the preload library is in this process, and serves PyTorch's memory already: use "
                "LD_PRELOAD without replace(), or replace() without LD_PRELOAD"
            )
        companion = _native.companion(Path(torch.__file__).parent)
        allocator = torch._C._cuda_customAllocator(
            _native.address(companion, "forebay_companion_alloc"),
            _native.address(LIB, "forebay_torch_free"),
        )
        for setter, name in _SETTERS.items():
            getattr(allocator, setter)(_native.address(LIB, name))
        for setter, name in _COMPANION_SETTERS.items():
            getattr(allocator, setter)(_native.address(companion, name))
        try:
            torch_memory.change_current_allocator(torch_memory._CUDAAllocator(allocator))
        except RuntimeError as error:
            raise RuntimeError(
                "forebay.torch.replace() comes too late: PyTorch has allocated on a device, or "
                f"has another allocator already ({str(error).splitlines()[0]}). Call it before "
                "the first CUDA tensor, or use forebay.torch.pool()"
            ) from error
        _replaced = allocator
    if patch:
        from . import _patch

        _patch.apply()


def make_pool(*, use_on_oom: bool = False, no_split: bool = False) -> torch.cuda.MemPool:
    """A ``torch.cuda.MemPool`` whose segments are Forebay's: for ``torch.cuda.use_mem_pool``.

    :param use_on_oom: whether PyTorch may use its memory when memory is short outside of it.
    :param no_split: whether each segment holds one block only.

    ``RuntimeError`` after :func:`replace`: there are no such pools under a replaced allocator.
    """
    global _segments
    if is_replaced():
        raise RuntimeError(
            "after forebay.torch.replace() every tensor is Forebay's; PyTorch has no MemPool then"
        )
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError("this PyTorch is built without CUDA")
    if _segments is None:
        _segments = torch._C._cuda_customAllocator(
            _native.address(LIB, "forebay_torch_segment_alloc"),
            _native.address(LIB, "forebay_torch_segment_free"),
        )
    return torch.cuda.MemPool(_segments, use_on_oom=use_on_oom, no_split=no_split)


@contextmanager
def pool(
    device: Device = None, *, use_on_oom: bool = False, no_split: bool = False
) -> Iterator[torch.cuda.MemPool]:
    """Tensors that this thread makes inside the ``with`` lie in Forebay's memory. Gives the
    ``MemPool``; when it is dropped, its tensors are gone and ``torch.cuda.empty_cache()`` is
    called, the memory goes back to the device."""
    made = make_pool(use_on_oom=use_on_oom, no_split=no_split)
    with torch.cuda.use_mem_pool(made, device_index(device)):
        yield made


def use(
    device: Device = None, *, use_on_oom: bool = False, no_split: bool = False
) -> torch.cuda.MemPool:
    """As :func:`pool`, for every thread and until the process ends. Once a device.

    Tensors of before stay where they are. A graph that is captured meanwhile has memory of CUDA's,
    unless it is given a pool: ``torch.cuda.graph(g, pool=forebay.torch.make_pool().id)``.
    """
    index = device_index(device)
    if index not in _used:
        made = make_pool(use_on_oom=use_on_oom, no_split=no_split)
        torch._C._cuda_beginAllocateToPool(index, made.id)
        _used[index] = made
    return _used[index]


@atexit.register
def _end() -> None:
    # PyTorch's own end must not find pools of an interpreter that is gone.
    for index, made in _used.items():
        torch._C._cuda_endAllocateToPool(index, made.id)
        torch._C._cuda_releasePool(index, made.id)
    _used.clear()
