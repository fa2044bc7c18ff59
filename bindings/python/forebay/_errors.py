"""What a failing call raises."""

from __future__ import annotations

from ._library import LIB


class Error(RuntimeError):
    """A Forebay call failed: ``status`` is its number, ``name`` that number's name."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        self.name = LIB.forebay_status_name(status).decode()
        super().__init__(f"{self.name}: {sentence}")


class OutOfMemoryError(Error, MemoryError):
    """The request does not fit; the text is the pool's report."""


OUT_OF_MEMORY = 2


def check(status: int) -> None:
    """Raises what ``status`` stands for, with the library's sentence; nothing for 0."""
    if status == 0:
        return
    sentence = LIB.forebay_last_error().decode(errors="replace")
    raise (OutOfMemoryError if status == OUT_OF_MEMORY else Error)(status, sentence)
