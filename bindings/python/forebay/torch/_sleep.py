"""Sleep and wake: the memory of tagged tensors given back to the device for a while.

After :func:`forebay.torch.replace` only: the pages of PyTorch's own allocator, and the segments of a
``MemPool``, are shared by tensors of all tags.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

from .._pool import SuspendReport
from ._hooks import Device, device_index, is_replaced
from ._stats import device_pool

Tags = Union[str, Iterable[str]]


def _names(tags: Tags) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def _check_replaced() -> None:
    if not is_replaced():
        raise RuntimeError("tags can be put to sleep after forebay.torch.replace() only")


def declare(tags: Tags, device: Device = None) -> None:
    """Makes tags of a device suspendable. To be called before their first tensor: what is allocated
    inside ``tag(...)`` from then on has pages of its own."""
    _check_replaced()
    device_pool(device).declare(*_names(tags))


def sleep(tags: Tags, level: str = "offload", device: Device = None) -> SuspendReport:
    """Gives the memory of all tensors under these tags back to the device. Their addresses stay
    theirs. Until :func:`wake` no kernel may use them, nor a graph that does be launched; they may be
    dropped. Waits for the device first.

    :param level: "offload" keeps contents in host memory, "discard" drops them.
    """
    _check_replaced()
    index = device_index(device)
    # Waits by itself for what is queued, and refuses while a capture is open, which a wait here
    # would end.
    return device_pool(index).suspend(*_names(tags), level=level)


def wake(tags: Tags, device: Device = None) -> SuspendReport:
    """Brings the memory of tensors back, at the same addresses, with the contents that were kept.
    Raises :class:`forebay.OutOfMemoryError` where the device has too little; everything sleeps still
    then, contents kept, and the call may be repeated."""
    _check_replaced()
    return device_pool(device).resume(*_names(tags))


def is_asleep(tag: str, device: Device = None) -> bool:
    """Whether a tag of a device sleeps now."""
    return device_pool(device).is_suspended(tag)
