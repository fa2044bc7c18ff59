"""``python -m forebay.run [--] PROGRAM [ARGUMENT...]``: a program with the preload library.

The program replaces this process, so signals and its exit status are its own. Exit statuses
otherwise are those of env(1): 2 without a program, 125 where the library cannot be preloaded, 126
where the program cannot be run, 127 where it is not there. The ``forebay run`` command does more:
options, a dry run, and refusals of programs that the loader would start without the library.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._library import preload_path


def _end(status: int, why: object) -> NoReturn:
    print(f"forebay.run: {why}", file=sys.stderr)
    raise SystemExit(status)


def main(arguments: list[str]) -> NoReturn:
    """Replaces this process by the program; returns never."""
    program = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not program:
        _end(2, "no program: python -m forebay.run [--] PROGRAM [ARGUMENT...]")
    try:
        library = str(preload_path())
    except FileNotFoundError as error:
        _end(125, error)
    if any(byte in library for byte in ": \t\n$"):
        _end(125, f"{library}: the loader cuts LD_PRELOAD at blanks and colons and replaces $")
    others = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = f"{library}:{others}" if others else library
    try:
        os.execvp(program[0], program)
    except FileNotFoundError as error:
        _end(127, f"{program[0]}: {error.strerror}")
    except OSError as error:
        _end(126, f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
