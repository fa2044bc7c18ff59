"""Who allocated what, and where: PyTorch's snapshots, made of Forebay's blocks.

A snapshot has PyTorch's schema and nothing but plain values, so that PyTorch's ``_memory_viz.py``
and the viewer at pytorch.org/memory_viz read it. Without :func:`forebay.torch.replace` PyTorch's
own recorder works, and the functions here lead to it.
"""

from __future__ import annotations

import atexit
import ctypes as c
import pickle
import sys
import time
import types
from collections import deque
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch.cuda import memory as torch_memory

from .._library import LIB
from . import _native
from ._hooks import is_replaced
from ._stats import device_pool, memory_stats

Frame = dict[str, Any]
Entry = dict[str, Any]
_ALLOC, _FREE, _OUT_OF_MEMORY = 0, 1, 2
# Blocks are shown in stretches of whole pages.
_PAGE = 2 << 20
_DEPTH_MAX = 64


class _Recorder:
    """The history since it was asked for. Its lists are touched with the interpreter's lock held,
    by one call each, so threads need no other."""

    def __init__(
        self, max_entries: int, entries: bool, context: Optional[str], skipped: frozenset[str]
    ) -> None:
        self.traces: dict[int, deque[Entry]] = {}
        self.live: dict[int, Entry] = {}
        self.max_entries = max_entries
        self.entries = entries
        self.context = context
        self.skipped = skipped
        self.stopped = False
        self.function = _native.EVENT(self.event)

    def event(
        self, what: int, address: Optional[int], bytes: int, device: int, stream: Optional[int]
    ) -> None:
        """One block has come or is about to go; never raises."""
        entry: Entry = {
            "action": "alloc", "addr": address or 0, "size": bytes, "stream": stream or 0,
            "time_us": time.time_ns() // 1000, "frames": [], "device": device,
        }  # fmt: skip
        if self.context == "all" or (self.context and what == _ALLOC):
            entry["frames"] = _frames()
        trace = self.traces.get(device)
        if trace is None:
            trace = self.traces.setdefault(device, deque(maxlen=self.max_entries))
        if what == _ALLOC:
            self.live[entry["addr"]] = entry
            if self.stopped:
                # A thread was on its way: nobody would see the block go.
                self.live.clear()
            self.note(trace, entry)
        elif what == _FREE:
            known = self.live.pop(entry["addr"], None)
            if self.context == "alloc" and known is not None:
                entry["frames"] = known["frames"]
            self.note(trace, {**entry, "action": "free_requested"})
            self.note(trace, {**entry, "action": "free_completed"})
        elif what == _OUT_OF_MEMORY:
            del entry["addr"]
            entry["action"] = "oom"
            entry["device_free"] = torch.cuda.mem_get_info(device)[0]
            self.note(trace, entry)

    def note(self, trace: deque[Entry], entry: Entry) -> None:
        if self.entries and entry["action"] not in self.skipped:
            trace.append({**entry, "frames": []} if self.context == "state" else entry)


_recorder: Optional[_Recorder] = None


def _frames() -> list[Frame]:
    """The calling Python code, innermost first, without the recorder's own frames."""
    found: list[Frame] = []
    frame: Optional[types.FrameType] = sys._getframe(2)
    while frame is not None and len(found) < _DEPTH_MAX:
        code = frame.f_code
        found.append(
            {"filename": code.co_filename, "line": frame.f_lineno or 0, "name": code.co_name}
        )
        frame = frame.f_back
    return found


def record_memory_history(
    enabled: Union[None, bool, str] = "all",
    max_entries: int = sys.maxsize,
    *,
    context: Optional[str] = "all",
    skip_actions: Optional[Iterable[str]] = None,
    clear_history: bool = False,
    **options: Any,
) -> None:
    """``torch.cuda.memory._record_memory_history``: ``"all"`` records every event, ``"state"`` the
    live blocks alone, ``None`` ends it. Costs some microseconds a tensor while it is on.

    :param context: what Python stacks are kept with: ``"all"`` events, each ``"alloc"``, the
        ``"state"`` of live blocks alone, or nothing (``None``).
    :param skip_actions: events that are not recorded, by their names in a snapshot.
    :param clear_history: whether a history that is being recorded begins anew.
    """
    global _recorder
    if enabled not in (None, False, True, "all", "state"):
        raise ValueError(f'enabled is None, "state" or "all", not {enabled!r}')
    if context not in (None, "all", "alloc", "state"):
        raise ValueError(f'context is None, "state", "alloc" or "all", not {context!r}')
    if max_entries < 1:
        raise ValueError(f"max_entries is at least 1, not {max_entries}")
    skipped = frozenset(skip_actions or ())
    if not is_replaced():
        mode = "all" if enabled is True else enabled or None
        if skipped:
            options["skip_actions"] = sorted(skipped)
        torch_memory._record_memory_history(
            mode, context, max_entries=max_entries, clear_history=clear_history, **options
        )
        return
    if not enabled:
        LIB.forebay_torch_watch(None, None)
        # A thread may be inside: the function itself is kept. What was recorded stays to be read;
        # what was live is not known any more, since nobody sees those blocks go.
        if _recorder is not None:
            _recorder.stopped = True
            _recorder.live.clear()
        return
    before = _recorder
    _recorder = _Recorder(min(max_entries, sys.maxsize), enabled != "state", context, skipped)
    if before is not None:
        LIB.forebay_torch_watch(None, None)
        _kept.append(before)
        if not (before.stopped or clear_history):
            for device, trace in list(before.traces.items()):
                _recorder.traces[device] = deque(list(trace), maxlen=_recorder.max_entries)
            _recorder.live.update(before.live)
    companion = _native.companion(Path(torch.__file__).parent)
    watcher = _native.address(companion, "forebay_companion_watch")
    LIB.forebay_torch_watch(watcher, c.cast(_recorder.function, c.c_void_p))


_kept: list[_Recorder] = []


@atexit.register
def _stop() -> None:
    # No Python function may be called once the interpreter ends.
    LIB.forebay_torch_watch(None, None)


def _blocks(device: int) -> list[dict[str, Any]]:
    """The live blocks of a device, by address, as a snapshot has them."""
    if memory_stats(device)["allocation.all.current"] == 0:
        return []  # and no pool is made on a device that was never used
    usable = c.c_size_t()
    known = _recorder.live if _recorder else {}
    found = []
    for leak in sorted(device_pool(device).leaks(), key=lambda leak: leak.address):
        if LIB.forebay_usable_size(leak.address, c.byref(usable)) != 0:
            continue  # freed meanwhile
        entry = known.get(leak.address)
        found.append({
            "address": leak.address, "size": usable.value,
            "requested_size": entry["size"] if entry else min(leak.bytes, usable.value),
            "state": "active_allocated", "frames": entry["frames"] if entry else [],
            "stream": entry["stream"] if entry else 0,
        })  # fmt: skip
    return found


def _gap(start: int, end: int) -> dict[str, Any]:
    return {
        "address": start, "size": end - start, "requested_size": 0, "state": "inactive",
        "frames": [],
    }  # fmt: skip


def _segments(device: int) -> list[dict[str, Any]]:
    """Stretches of pages that live blocks hold, each filled with blocks and gaps."""
    stretches: list[tuple[int, int, list[dict[str, Any]]]] = []
    for block in _blocks(device):
        start = block["address"] // _PAGE * _PAGE
        end = -(-(block["address"] + block["size"]) // _PAGE) * _PAGE
        if stretches and start <= stretches[-1][1]:
            first, last, inside = stretches[-1]
            inside.append(block)
            stretches[-1] = (first, max(last, end), inside)
        else:
            stretches.append((start, end, [block]))
    return [_segment(device, *stretch) for stretch in stretches]


def _segment(device: int, start: int, end: int, inside: list[dict[str, Any]]) -> dict[str, Any]:
    tiles: list[dict[str, Any]] = []
    at = start
    stream = inside[0]["stream"]
    for block in inside:
        if block["address"] > at:
            tiles.append(_gap(at, block["address"]))
        at = block["address"] + block["size"]
        del block["stream"]
        tiles.append(block)
    if at < end:
        tiles.append(_gap(at, end))
    live = sum(block["size"] for block in inside)
    return {
        "device": device, "address": start, "total_size": end - start, "allocated_size": live,
        "active_size": live, "requested_size": sum(b["requested_size"] for b in inside),
        "stream": stream, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": True, "frames": [], "blocks": tiles,
    }  # fmt: skip


def _trace(device: int, segments: list[dict[str, Any]]) -> list[Entry]:
    """A device's events. Viewers look each block up in a segment that is there at that moment, so
    pages that no block holds any more come at the beginning and go at the end."""
    recorded = _recorder.traces.get(device) if _recorder else None
    events = [{k: v for k, v in e.items() if k != "device"} for e in list(recorded or ())]
    held = [(s["address"], s["address"] + s["total_size"]) for s in segments]
    gone: set[int] = set()
    for event in events:
        if event["action"] == "alloc" or event["action"].startswith("free"):
            first = event["addr"] // _PAGE
            last = (event["addr"] + max(event["size"], 1) - 1) // _PAGE
            gone.update(
                page for page in range(first, last + 1)
                if not any(a <= page * _PAGE < b for a, b in held)
            )  # fmt: skip
    rows: list[list[int]] = []
    for page in sorted(gone):
        if rows and rows[-1][1] == page:
            rows[-1][1] = page + 1
        else:
            rows.append([page, page + 1])
    first_us = events[0]["time_us"] if events else 0
    last_us = events[-1]["time_us"] if events else 0

    def told(action: str, time_us: int) -> list[Entry]:
        return [
            {
                "action": action, "addr": a * _PAGE, "size": (b - a) * _PAGE, "stream": 0,
                "time_us": time_us, "frames": [],
            }
            for a, b in rows
        ]  # fmt: skip

    every = told("segment_alloc", first_us) + events + told("segment_free", last_us)
    skipped = _recorder.skipped if _recorder else frozenset()
    return [event for event in every if event["action"] not in skipped]


def snapshot() -> dict[str, Any]:
    """``torch.cuda.memory._snapshot()``: segments with their blocks, and what was recorded. After
    ``replace()`` segments are the pages that live blocks hold; idle pages are in
    :func:`forebay.torch.memory_stats` only."""
    if not is_replaced():
        found: dict[str, Any] = torch_memory._snapshot()
        return found
    per_device = [_segments(device) for device in range(torch.cuda.device_count())]
    return {
        "segments": [segment for segments in per_device for segment in segments],
        "device_traces": [_trace(device, segments) for device, segments in enumerate(per_device)],
        # None of PyTorch's settings has an effect.
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def dump_snapshot(path: Union[str, PathLike[str]] = "dump_snapshot.pickle") -> None:
    """Writes :func:`snapshot` to a file that the viewer at pytorch.org/memory_viz reads: a pickle
    of protocol 2, since the viewer knows no later one."""
    with open(path, "wb") as file:
        pickle.dump(snapshot(), file, protocol=2)
