"""``replace(patch=True)``: PyTorch's functions that refuse a replaced allocator become ours."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.cuda import memory as torch_memory

from . import _history, _stats

_done = False


def _memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> Any:
    return _history.snapshot()["segments"]


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> Any:
    return _history.snapshot()


def _dump(filename: Any = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    _history.dump_snapshot(filename)


def _record_memory_history(
    enabled: Any = "all", context: Any = "all", stacks: Any = "all",
    max_entries: int = sys.maxsize, device: Any = None, clear_history: bool = False,
    compile_context: bool = False, global_record_annotations: bool = False,
    skip_actions: Any = None,
) -> None:  # fmt: skip
    """With PyTorch's arguments; of them ours has Python's stacks alone."""
    _history.record_memory_history(
        enabled, max_entries, context=context, skip_actions=skip_actions,
        clear_history=clear_history,
    )  # fmt: skip


def apply() -> None:
    """Puts them in place, once. ``memory_allocated`` and its like are PyTorch's own: they read
    ``memory_stats``."""
    global _done
    if _done:
        return
    public = {
        "memory_stats": _stats.memory_stats,
        "reset_peak_memory_stats": _stats.reset_peak_memory_stats,
        "memory_snapshot": _memory_snapshot,
    }
    private = {
        "_snapshot": _snapshot,
        "_dump_snapshot": _dump,
        "_record_memory_history": _record_memory_history,
    }
    for name, function in public.items():
        setattr(torch.cuda, name, function)
        setattr(torch_memory, name, function)
    for name, function in private.items():
        setattr(torch_memory, name, function)
    _done = True
