"""Pools, blocks and tags.

A pool may be used by several threads at once; a block belongs to one owner. Addresses are
device addresses: only those of the host backend may be read by the CPU. Sizes are in bytes. A
stream is the integer of a ``cudaStream_t``; 0 is the default stream.
"""

from __future__ import annotations

import ctypes as c
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Optional

from ._errors import check
from ._library import LIB, OOM, VISIT, COptions, CStats, CSuspendReport

_CHOICES: dict[str, dict[Any, int]] = {
    "free": {"deferred": 1, "sync": 2, "stream": 3},
    "move": {"always": 1, "idle": 2, "never": 3},
    "leaks": {"off": 1, "summary": 2, "full": 3},
    "scrub": {False: 1, True: 2},
    "backtrace": {False: 1, True: 2},
    "keeper": {False: 0, True: 1},
}
_NUMBERS = frozenset(
    "device limit soft_limit reserve headroom release_threshold decay cache oom_wait_ms "
    "keeper_budget_ms ahead".split()
)


@dataclass(frozen=True)
class Stats:
    """A pool's accounts, in bytes unless the name says otherwise.

    live, cached, pending, trapped, idle, region and other are disjoint; their sum is
    ``mapped_bytes`` while no other thread allocates or frees. Suspended blocks are no part of it.
    """

    live_bytes: int
    requested_bytes: int
    cached_bytes: int
    pending_bytes: int
    trapped_bytes: int
    idle_bytes: int
    other_bytes: int
    mapped_bytes: int
    peak_live_bytes: int
    peak_mapped_bytes: int
    limit_bytes: int
    soft_limit_bytes: int
    reserved_address_bytes: int
    live_blocks: int
    allocs: int
    frees: int
    driver_calls: int
    pages_created: int
    pages_released: int
    pages_moved: int
    map_calls: int
    unmap_calls: int
    set_access_calls: int
    gathers: int
    fences_recorded: int
    oom_count: int
    stranded_pages: int
    unmapped_stock_bytes: int
    host_live_bytes: int
    host_mapped_bytes: int
    suspended_bytes: int
    suspended_host_bytes: int
    region_bytes: int


@dataclass(frozen=True)
class SuspendReport:
    """What :meth:`Pool.suspend` or :meth:`Pool.resume` did, in bytes.

    ``device_bytes`` went back to the device, or were taken from it again; ``host_bytes`` of contents
    are in host memory afterwards; ``kept_bytes`` of the tags' blocks stay on the device, since they
    were allocated before their tag was declared; ``stuck_bytes`` the driver keeps for now;
    ``blocks`` are suspended, or were.
    """

    device_bytes: int
    host_bytes: int
    kept_bytes: int
    stuck_bytes: int
    missing_bytes: int
    blocks: int


@dataclass(frozen=True)
class Leak:
    """A live block. ``age_ms`` and ``call_site`` are known where the pool keeps them."""

    address: int
    bytes: int
    age_ms: int
    tag: int
    call_site: str


class Block:
    """Memory of a pool. Freed by :meth:`free`, at the end of a ``with``, or with the object."""

    def __init__(self, pool: Pool, address: int, bytes: int, stream: Optional[int]) -> None:
        self._pool = pool
        self._stream = stream
        self.address = address
        self.bytes = bytes

    def free(self, stream: Optional[int] = None) -> None:
        """Gives the memory back: in ``stream``'s order, or in that of its allocation. A block
        without a stream is freed as ``cudaFree`` would. Again is fine."""
        address, self.address = self.address, 0
        if address == 0:
            return
        stream = self._stream if stream is None else stream
        if stream is None:
            check(LIB.forebay_free(address))
        else:
            check(LIB.forebay_dealloc(self._pool._handle, address, stream))

    def record_use(self, stream: int) -> None:
        """Tells that work on ``stream`` uses the memory too."""
        check(LIB.forebay_record_use(self._pool._handle, self.address, stream))

    def usable(self) -> int:
        """The bytes that may be used: the request, rounded up."""
        bytes = c.c_size_t()
        check(LIB.forebay_usable_size(self.address, c.byref(bytes)))
        return bytes.value

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __del__(self) -> None:
        try:
            self.free()
        except Exception:  # the pool, or the interpreter, has ended before
            pass

    def __repr__(self) -> str:
        return f"<forebay.Block {self.bytes} bytes at {self.address:#x}>"


class Pool:
    """A pool of one device's memory.

    :param options: fields of ``forebay_pool_options``: ``device``, ``limit``, ``soft_limit``,
        ``reserve``, ``headroom``, ``release_threshold``, ``decay`` (ms), ``cache``,
        ``oom_wait_ms``, ``keeper_budget_ms``, ``ahead`` as numbers; ``free`` ("deferred",
        "sync", "stream"), ``move`` ("always", "idle", "never"), ``leaks`` ("off", "summary",
        "full"); ``scrub``, ``backtrace``, ``keeper`` as bools. What is not named is as the
        ``FOREBAY_*`` variables say.
    """

    def __init__(self, **options: Any) -> None:
        self._handle: Optional[int] = None
        self._own = True
        self._callback: Any = None
        wanted = COptions()
        wanted.struct_size = c.sizeof(COptions)
        check(LIB.forebay_pool_options_init(c.byref(wanted)))
        for name, value in options.items():
            setattr(wanted, name, _number(name, value))
        handle = c.c_void_p()
        check(LIB.forebay_pool_create(c.byref(handle), c.byref(wanted)))
        self._handle = handle.value

    @classmethod
    def _borrow(cls, handle: int) -> Pool:
        pool = cls.__new__(cls)
        pool._handle, pool._own, pool._callback = handle, False, None
        return pool

    def alloc(
        self, bytes: int, stream: int = 0, *, alignment: int = 256
    ) -> Block:
        """Memory for work on ``stream``, at a multiple of ``alignment`` (a power of two up to
        2 MiB). Raises :class:`OutOfMemoryError` with the pool's report."""
        address = c.c_void_p()
        status = LIB.forebay_alloc_aligned(
            self._live(), c.byref(address), _size(bytes), _size(alignment), stream
        )
        check(status)
        return Block(self, address.value or 0, bytes, stream)

    def stats(self) -> Stats:
        """The accounts, read now. Thread-safe."""
        stats = CStats()
        stats.struct_size = c.sizeof(CStats)
        check(LIB.forebay_pool_stats(self._live(), c.byref(stats)))
        return Stats(**{name: getattr(stats, name) for name in CStats.NAMES})

    def report(self) -> dict[str, Any]:
        """Accounts, limits and tags, as the library's JSON report."""
        needed = c.c_size_t()
        check(LIB.forebay_pool_report_json(self._live(), None, 0, c.byref(needed)))
        while True:
            buffer = c.create_string_buffer(needed.value + 256)
            check(LIB.forebay_pool_report_json(self._live(), buffer, len(buffer), c.byref(needed)))
            if needed.value <= len(buffer):
                found: dict[str, Any] = json.loads(buffer.value.decode())
                return found

    def leaks(self) -> list[Leak]:
        """The live blocks, by address."""
        found: list[Leak] = []

        def visit(_: object, leak: Any) -> None:
            it = leak.contents
            site = (it.call_site or b"").decode(errors="replace")
            found.append(Leak(it.address or 0, it.bytes, it.age_ms, it.tag, site))

        check(LIB.forebay_pool_leaks(self._live(), VISIT(visit), None))
        return found

    def trim(self, keep: int = 0) -> int:
        """Gives idle memory back to the device until the pool holds ``keep`` bytes at most.
        Returns the bytes that went back."""
        released = c.c_size_t()
        check(LIB.forebay_pool_trim(self._live(), _size(keep), c.byref(released)))
        return released.value

    def set_limits(self, hard: int = 0, soft: int = 0) -> None:
        """Changes the limits in bytes; 0 leaves one as it is."""
        check(LIB.forebay_pool_set_limits(self._live(), _size(hard), _size(soft)))

    def tag_bytes(self, tag: int) -> int:
        """Live bytes that carry a tag."""
        bytes = c.c_uint64()
        check(LIB.forebay_tag_bytes(self._live(), tag, c.byref(bytes)))
        return bytes.value

    def declare(self, *tags: str) -> None:
        """Makes tags suspendable: what is allocated under them from now on has pages of its own.
        Again is fine."""
        for name in tags:
            check(LIB.forebay_tag_suspendable(self._live(), tag_number(name)))

    def suspend(self, *tags: str, level: str = "offload") -> SuspendReport:
        """Gives the memory of tags back to the device. Blocks keep their addresses; nothing may use
        them until :meth:`resume`, but they may be freed. All of the tags or none.

        :param level: "offload" keeps contents in host memory, "discard" drops them.
        """
        if level not in _LEVELS:
            raise ValueError(f"level is one of {sorted(_LEVELS)}, not {level!r}")
        numbers, report = _tag_numbers(tags), _suspend_report()
        check(
            LIB.forebay_suspend(
                self._live(), numbers, len(tags), _LEVELS[level], c.byref(report)
            )
        )
        return _suspended(report)

    def resume(self, *tags: str) -> SuspendReport:
        """Brings the memory of tags back at the same addresses, with the contents that were kept.
        Raises :class:`OutOfMemoryError` where the device has too little: everything is suspended
        still then, and the text says how much is missing."""
        numbers, report = _tag_numbers(tags), _suspend_report()
        check(LIB.forebay_resume(self._live(), numbers, len(tags), c.byref(report)))
        return _suspended(report)

    def is_suspended(self, tag: str) -> bool:
        """Whether a tag is suspended now."""
        answer = c.c_bool()
        check(LIB.forebay_tag_is_suspended(self._live(), tag_number(tag), c.byref(answer)))
        return answer.value

    def on_out_of_memory(self, callback: Optional[Callable[[int], bool]]) -> None:
        """Calls ``callback(bytes)`` before an allocation fails; true means: try again. An
        exception in it counts as false."""

        def call(_: object, bytes: int) -> bool:
            try:
                return bool(callback(bytes)) if callback else False
            except Exception:
                return False

        thunk = OOM(call) if callback else OOM()
        check(LIB.forebay_set_oom_callback(self._live(), thunk, None))
        self._callback = thunk  # kept alive until it is replaced

    def close(self) -> None:
        """Ends the pool; blocks that are left become stale. The default pool stays. Again is
        fine."""
        if self._own and self._handle is not None:
            check(LIB.forebay_pool_destroy(self._handle))
            self._handle = None

    def _live(self) -> int:
        # NULL would name the default pool.
        if self._handle is None:
            raise ValueError("the pool is closed")
        return self._handle

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<forebay.Pool, closed>" if self._handle is None else "<forebay.Pool>"


def default_pool(device: int = 0) -> Pool:
    """The default pool of a device, made at first use as the environment says."""
    handle = c.c_void_p()
    check(LIB.forebay_pool_default(device, c.byref(handle)))
    return Pool._borrow(handle.value or 0)


def malloc(bytes: int) -> Block:
    """Memory of the default pool with ``cudaMalloc``'s meaning."""
    address = c.c_void_p()
    check(LIB.forebay_malloc(c.byref(address), _size(bytes)))
    return Block(default_pool(), address.value or 0, bytes, None)


def mem_info() -> tuple[int, int]:
    """Free and total bytes of the default device; what the pool could hand out counts as free."""
    free, total = c.c_size_t(), c.c_size_t()
    check(LIB.forebay_mem_info(c.byref(free), c.byref(total)))
    return free.value, total.value


def owns(address: int) -> bool:
    """Whether an address lies in memory that some pool manages, live or not."""
    return bool(LIB.forebay_owns(address))


def tag_number(name: str) -> int:
    """The number of a tag's name; the same name has one number. There are 126."""
    number = c.c_uint32()
    check(LIB.forebay_tag_create(name.encode(), c.byref(number)))
    return number.value


@contextmanager
def tag(name: str) -> Iterator[int]:
    """Allocations of this thread inside the ``with`` carry the tag ``name``."""
    number, before = tag_number(name), c.c_uint32()
    check(LIB.forebay_tag_set(number, c.byref(before)))
    try:
        yield number
    finally:
        check(LIB.forebay_tag_set(before.value, None))


_LEVELS = {"offload": 0, "discard": 1}


def _tag_numbers(names: tuple[str, ...]) -> Any:
    return (c.c_uint32 * len(names))(*(tag_number(name) for name in names))


def _suspend_report() -> CSuspendReport:
    report = CSuspendReport()
    report.struct_size = c.sizeof(CSuspendReport)
    return report


def _suspended(report: CSuspendReport) -> SuspendReport:
    return SuspendReport(**{name: getattr(report, name) for name in CSuspendReport.NAMES})


def _size(value: int) -> int:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is no number of bytes")
    return value


def _number(name: str, value: Any) -> int:
    choices = _CHOICES.get(name)
    if choices is not None:
        if value not in choices:
            raise ValueError(f"{name} is one of {sorted(choices)}, not {value!r}")
        return choices[value]
    if name not in _NUMBERS:
        known = ", ".join(sorted(_NUMBERS | _CHOICES.keys()))
        raise TypeError(f"a pool has no option {name!r}; there are {known}")
    return _size(value)
