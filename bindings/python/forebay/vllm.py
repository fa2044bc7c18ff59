"""A stand-in for vLLM's ``BlockPool`` over Forebay's blocks.

``BlockPool`` has the constructor and the methods by which vLLM 0.33's ``KVCacheManager`` works
with groups of full attention: blocks are taken, freed, touched, cached by hash and looked up, each
list by one to three calls of the C library. Blocks are objects with ``block_id``, ``ref_cnt``, ``block_hash`` and ``is_null``.

What differs:

- A block that ``evict_blocks`` made unknown while nobody holds it is the next to be reused; in
  vLLM it keeps its place in the queue, so that cached blocks before it are given up first.
- Numbers of blocks without a hash may differ: of blocks freed together the last is reused first.
- Events are ``("stored", block_hash, group)``, ``("removed", block_hash, group)`` and
  ``("cleared",)``: what vLLM's event objects say of tokens is known to its requests only.
- Not there: partial blocks' hashes (``cache_partial_block``, ``move_block_hashes``: a block that
  several hashes find at once, which vLLM asks for only where a group of Mamba states has blocks
  longer than a hash's), ``unpin_blocks``, metrics collectors, hashes of tokens to come, and pools
  that are freed into each other. What can be asked for of these raises ``NotImplementedError`` or
  ``AttributeError``.

Not for several threads at once, as vLLM's is not.
"""

from __future__ import annotations

import ctypes as c
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._errors import Error, check
from ._library import LIB

_REMOVED = 1
_BYTE = 3


def _layout(*fields: tuple[str, Any]) -> Any:
    """The fields of a structure, of several kinds."""
    return list(fields)


class CGroup(c.Structure):
    """``forebay_kv_group``."""

    NAMES = (
        "layers", "heads", "key_size", "value_size", "block_tokens", "element", "content",
        "window", "order", "blocks",
    )  # fmt: skip
    _fields_ = _layout(
        *[(name, c.c_uint32) for name in NAMES],
        ("state_bytes", c.c_uint64),
        ("reserved", c.c_uint64 * 4),
    )


class COptions(c.Structure):
    """``forebay_kv_options``."""

    NAMES = (
        "max_sequences", "max_blocks", "prefixes", "policy", "hashing", "dedupe", "partial",
        "watermark",
    )  # fmt: skip
    _fields_ = _layout(
        ("struct_size", c.c_size_t),
        ("groups", c.POINTER(CGroup)),
        ("group_count", c.c_size_t),
        *[(name, c.c_uint32) for name in NAMES],
        ("events", c.c_size_t),
        ("hash_key", c.c_uint8 * 32),
        ("flags", c.c_uint64),
    )


class CDigest(c.Structure):
    """``forebay_kv_digest``."""

    _fields_ = [("bytes", c.c_uint8 * 32)]


class CEvent(c.Structure):
    """``forebay_kv_event``."""

    _fields_ = [
        ("kind", c.c_uint32),
        ("group", c.c_uint32),
        ("block", c.c_uint32),
        ("reserved", c.c_uint32),
        ("digest", CDigest),
    ]


class CStats(c.Structure):
    """``forebay_kv_stats``."""

    _fields_ = (
        [("struct_size", c.c_size_t)]
        + [(name, c.c_uint64) for name in ("hit_tokens", "missed_tokens")]
        + [(name, c.c_uint32) for name in ("sequences", "copies", "groups", "reserved")]
    )


class CCounts(c.Structure):
    """``forebay_kv_counts``."""

    _fields_ = [(name, c.c_uint32) for name in ("total", "used", "free", "cached", "quarantined")]


_P, _N, _SIZES = c.c_void_p, c.c_size_t, c.POINTER(c.c_size_t)
_BLOCKS, _DIGESTS = c.POINTER(c.c_uint32), c.POINTER(CDigest)
_ARGUMENTS: dict[str, list[Any]] = {
    "options_init": [c.POINTER(COptions)],
    "create": [c.POINTER(COptions), c.POINTER(c.c_void_p)],
    "destroy": [_P, _P],
    "blocks_take": [_P, c.c_uint32, _BLOCKS, _N, _P],
    "blocks_hold": [_P, c.c_uint32, _BLOCKS, _N],
    "blocks_release": [_P, c.c_uint32, _BLOCKS, _N, c.c_uint64],
    "blocks_register": [_P, c.c_uint32, _BLOCKS, _DIGESTS, _N],
    "blocks_peek": [_P, c.c_uint32, _DIGESTS, _BLOCKS, _N, _SIZES],
    "blocks_evict": [_P, c.c_uint32, _BLOCKS, _N, _SIZES],
    "reset_prefixes": [_P],
    "get_stats": [_P, c.POINTER(CStats), c.POINTER(CCounts), _N],
    "take_events": [_P, c.POINTER(CEvent), _N, _SIZES, c.POINTER(c.c_uint64)],
}
for _name, _arguments in _ARGUMENTS.items():
    _function = getattr(LIB, f"forebay_kv_{_name}")
    _function.argtypes, _function.restype = _arguments, c.c_int32


class Block:
    """A block: what vLLM's ``KVCacheBlock`` tells of itself."""

    __slots__ = ("block_id", "ref_cnt", "block_hash", "is_null")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.is_null = False

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={self.block_hash!r})"


def _key(block_hash: bytes, group: int) -> bytes:
    """A block's hash with its group's number, as vLLM joins them."""
    return bytes(block_hash) + group.to_bytes(4, "big")


def _digest(key: bytes) -> CDigest:
    digest = hashlib.blake2b(key, digest_size=32).digest()
    return CDigest((c.c_uint8 * 32).from_buffer_copy(digest))


def _numbers(blocks: Sequence[Block]) -> Any:
    return (c.c_uint32 * len(blocks))(*[block.block_id for block in blocks])


def _hashes_of_blocks(
    hashes: Any, hash_block_size: int, block_size: int
) -> Callable[[int], bytes]:
    """How to find a block's hash among its request's, which may be vLLM's view at the block's size
    already."""
    units, rest = divmod(block_size, hash_block_size)
    if rest != 0 or units == 0:
        text = f"blocks of {block_size} tokens are no multiple of a hash's {hash_block_size}"
        raise ValueError(text)
    if getattr(hashes, "scale_factor", None) == units:
        units = 1
    return lambda at: hashes[(at + 1) * units - 1]


class BlockPool:
    """``num_gpu_blocks`` blocks, number 0 the null block."""

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        metrics_collector: Any = None,
        num_hash_lookahead_tokens: int = 0,
        medium: str | None = None,
    ) -> None:
        if metrics_collector is not None or num_hash_lookahead_tokens != 0:
            raise NotImplementedError("a metrics collector, or hashes of tokens to come")
        group = CGroup(layers=1, heads=1, key_size=1, value_size=1)
        group.block_tokens, group.element, group.blocks = hash_block_size, _BYTE, num_gpu_blocks
        options = COptions()
        check(LIB.forebay_kv_options_init(options))
        options.groups, options.group_count = c.pointer(group), 1
        options.prefixes, options.max_sequences = 0, 1
        # A call can give up each block once.
        options.events = num_gpu_blocks
        handle = c.c_void_p()
        self._handle: c.c_void_p | None = None
        check(LIB.forebay_kv_create(options, handle))
        self._handle = handle
        self._stats, self._counts = CStats(struct_size=c.sizeof(CStats)), CCounts()
        self._events = (CEvent * num_gpu_blocks)()
        self._queue: list[tuple[Any, ...]] | None = [] if enable_kv_cache_events else None
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.hash_block_size = hash_block_size
        self.num_hash_lookahead_tokens = 0
        self.medium = medium
        self.blocks = [Block(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True

    def close(self) -> None:
        """Ends the pool; its blocks are nobody's afterwards."""
        handle, self._handle = self._handle, None
        if handle is not None:
            check(LIB.forebay_kv_destroy(handle, None))

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and LIB is not None:
            LIB.forebay_kv_destroy(self._handle, None)
            self._handle = None

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        """Blocks with one reference each; cached ones that nobody holds are given up for them."""
        if not 0 <= num_blocks <= self.get_num_free_blocks():
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        numbers = (c.c_uint32 * num_blocks)()
        status = LIB.forebay_kv_blocks_take(self._handle, 0, numbers, num_blocks, None)
        check(status)
        self._note_events()
        taken = [self.blocks[number] for number in numbers]
        for block in taken:
            block.ref_cnt = 1
        return taken

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """One reference less each; of cached blocks the first named are given up first."""
        blocks = self._own(ordered_blocks)
        numbers = _numbers(blocks)
        check(LIB.forebay_kv_blocks_release(self._handle, 0, numbers, len(blocks), 0))
        for block in blocks:
            block.ref_cnt -= 1

    def touch(self, blocks: Sequence[Block]) -> None:
        """One reference more each, also to cached blocks that nobody holds."""
        real = self._own(blocks)
        check(LIB.forebay_kv_blocks_hold(self._handle, 0, _numbers(real), len(real)))
        for block in real:
            block.ref_cnt += 1

    def get_cached_block(
        self, block_hash: bytes, kv_cache_group_ids: list[int]
    ) -> list[Block] | None:
        """A block of this hash for each group, without references; ``None`` if one lacks."""
        count = len(kv_cache_group_ids)
        keys = (CDigest * count)(*[_digest(_key(block_hash, g)) for g in kv_cache_group_ids])
        numbers, found = (c.c_uint32 * count)(), c.c_size_t()
        check(LIB.forebay_kv_blocks_peek(self._handle, 0, keys, numbers, count, found))
        return [self.blocks[number] for number in numbers] if found.value == count else None

    def get_cached_prefix(
        self, block_hashes: Sequence[bytes], kv_cache_group_id: int
    ) -> list[Block]:
        """Blocks of the longest run of these hashes that is there, in one call."""
        count = len(block_hashes)
        keys = (CDigest * count)(*[_digest(_key(h, kv_cache_group_id)) for h in block_hashes])
        numbers, found = (c.c_uint32 * count)(), c.c_size_t()
        check(LIB.forebay_kv_blocks_peek(self._handle, 0, keys, numbers, count, found))
        return [self.blocks[number] for number in numbers[: found.value]]

    def cache_full_blocks(
        self,
        request: Any,
        blocks: list[Block],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        """Makes full blocks known by ``request.block_hashes``, save null and masked ones. Where a
        block holds several units of ``hash_block_size`` tokens the last one's hash, which covers
        those before it, is the block's."""
        if num_cached_blocks >= num_full_blocks:
            return
        hashes = _hashes_of_blocks(request.block_hashes, self.hash_block_size, block_size)
        self._own(blocks[num_cached_blocks:num_full_blocks])
        new, keys = [], []
        for at in range(num_cached_blocks, num_full_blocks):
            masked = block_mask is not None and not block_mask[at - num_cached_blocks]
            if not blocks[at].is_null and not masked:
                new.append(blocks[at])
                keys.append(_key(hashes(at), kv_cache_group_id))
        digests = (CDigest * len(new))(*map(_digest, keys))
        check(LIB.forebay_kv_blocks_register(self._handle, 0, _numbers(new), digests, len(new)))
        for block, key in zip(new, keys):
            block.block_hash = key
        self._note_events()

    def is_block_writable(self, block: Block) -> bool:
        """Whether its one owner may write it."""
        return not block.is_null and block.ref_cnt == 1 and block.block_hash is None

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Makes blocks unknown; who holds them keeps them."""
        for block_id in block_ids:
            if not 0 <= block_id < self.num_gpu_blocks:
                raise ValueError(f"the pool has no block {block_id}")
        numbers = (c.c_uint32 * len(block_ids))(*block_ids)
        check(LIB.forebay_kv_blocks_evict(self._handle, 0, numbers, len(block_ids), None))
        self._note_events()

    def reset_prefix_cache(self) -> bool:
        """Makes all blocks unknown; ``False``, with nothing done, while somebody holds one."""
        if self._count().used > 0:
            return False
        check(LIB.forebay_kv_reset_prefixes(self._handle))
        for block in self.blocks:
            block.block_hash = None
        self._note_events()
        return True

    def get_num_free_blocks(self) -> int:
        """Blocks that can be taken, cached ones that nobody holds among them."""
        counts = self._count()
        return int(counts.free + counts.cached)

    def get_usage(self) -> float:
        """The part of the blocks that somebody holds, 0 to 1."""
        total = self.num_gpu_blocks - 1
        return 1.0 - self.get_num_free_blocks() / total if total else 0.0

    def emit_cached_block_events(
        self, request: Any, num_cached_blocks: int, block_size: int, kv_cache_group_id: int
    ) -> None:
        """Tells of blocks that were found, as if they were stored now."""
        if self._queue is not None:
            for block_hash in request.block_hashes[:num_cached_blocks]:
                self._queue.append(("stored", bytes(block_hash), kv_cache_group_id))

    def take_events(self) -> list[tuple[Any, ...]]:
        """What became of hashes since the last call; see the module's text."""
        if self._queue is None:
            return []
        events, self._queue = self._queue, []
        return events

    def _own(self, blocks: Iterable[Block]) -> list[Block]:
        """Those that are not the null block; raises where one is not this pool's."""
        real = [block for block in blocks if not block.is_null]
        for block in real:
            if self._handle is None or self.blocks[block.block_id] is not block:
                raise ValueError(f"{block} is another pool's, or the pool is closed")
        return real

    def _count(self) -> CCounts:
        check(LIB.forebay_kv_get_stats(self._handle, self._stats, self._counts, 1))
        return self._counts

    def _note_events(self) -> None:
        """Takes hashes from blocks that were given up, and keeps events for who asked."""
        count, room = c.c_size_t(), len(self._events)
        check(LIB.forebay_kv_take_events(self._handle, self._events, room, count, None))
        for event in self._events[: count.value]:
            block = self.blocks[event.block]
            if event.kind > _REMOVED:
                if self._queue is not None:
                    self._queue.append(("cleared",))
                continue
            key = block.block_hash
            if event.kind == _REMOVED:
                block.block_hash = None
            if self._queue is not None and key is not None:
                word = "removed" if event.kind == _REMOVED else "stored"
                self._queue.append((word, key[:-4], int.from_bytes(key[-4:], "big")))


__all__ = ["Block", "BlockPool", "Error"]
