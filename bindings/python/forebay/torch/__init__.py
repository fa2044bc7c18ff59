"""Forebay under PyTorch.

::

    import forebay.torch

    forebay.torch.replace()          # before the first CUDA tensor: all memory is Forebay's

or, with all of PyTorch's own allocator on top::

    with forebay.torch.pool():       # this thread's tensors lie in Forebay's memory
        ...

``docs/pytorch.md`` of the project tells what each way gives and takes.
"""

from .._pool import tag
from ._history import dump_snapshot, record_memory_history, snapshot
from ._hooks import is_replaced, make_pool, pool, replace, retire_stream, use
from ._sleep import declare, is_asleep, sleep, wake
from ._stats import (
    device_pool,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_fraction,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
    tag_bytes,
)

__all__ = [
    "declare",
    "device_pool",
    "dump_snapshot",
    "empty_cache",
    "is_asleep",
    "is_replaced",
    "make_pool",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_fraction",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "pool",
    "record_memory_history",
    "replace",
    "reset_peak_memory_stats",
    "retire_stream",
    "sleep",
    "snapshot",
    "tag",
    "tag_bytes",
    "use",
    "wake",
]
