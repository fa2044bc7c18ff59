"""vLLM's own ``BlockPool``, and its ``KVCacheManager``, out of the unpacked source of its release,
without what it is installed with: some of its modules are read, everything else that they import is
an empty stand-in.

``python vllm_source.py FOLDER OUT`` records what its pool shows under ``block_pool``'s calls;
``FOLDER`` is what ``fetch`` made, or the unpacked release.
"""

import hashlib
import http.client
import importlib
import importlib.abc
import importlib.util
import io
import json
import os
import sys
import tarfile
import types
import urllib.request
from pathlib import Path
from unittest.mock import MagicMock

# Of the pool.
READ = ("vllm.v1.core.block_pool", "vllm.v1.core.kv_cache_utils")
# Of the manager: all that runs in its calls.
MANAGER = (
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.request",
    "vllm.utils.math_utils",
    "vllm.v1.utils",
    *READ,
)
# What its calls import when they run.
LATE = ("vllm.platforms",)

SOURCE = (
    "https://files.pythonhosted.org/packages/f7/25/"
    "aa5684e9c59d6fc75f78926b7f15e8d9adc7de2d9e6e7575b80776ad8169/vllm-0.33.0.tar.gz"
)
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"


def fetch(folder, read=READ):
    """Puts the modules that are read into a folder: 47 MB are fetched for them, once. Raises
    ``OSError`` where the package index cannot be reached."""
    files = [Path(*name.split(".")).with_suffix(".py") for name in read]
    if all((Path(folder) / file).is_file() for file in files):
        return
    try:
        with urllib.request.urlopen(SOURCE) as answer:
            data = answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{SOURCE}: {error}") from error
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ValueError(f"{SOURCE} is not what it was")
    with tarfile.open(fileobj=io.BytesIO(data)) as release:
        for file in files:
            target = Path(folder) / file
            target.parent.mkdir(parents=True, exist_ok=True)
            # Two may fetch at once: each puts whole files in place.
            whole = target.with_suffix(f".{os.getpid()}")
            whole.write_bytes(release.extractfile(f"vllm-0.33.0/{file}").read())
            whole.replace(target)


class Kind(type):
    """A class that stands in for any: its attributes and subclasses are made when asked for."""

    def __new__(cls, name, bases, body, **_):
        return super().__new__(cls, name, bases, body)

    def __init__(cls, name, bases, body, **_):
        super().__init__(name, bases, body)

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)

    def __or__(cls, _):
        return cls

    __ror__ = __or__

    def __getitem__(cls, _):
        return cls


class StandIn(types.ModuleType):
    """A module of which every name is there."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Kind(name, (), {}) if name[0].isupper() else MagicMock(name=name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what is read in the folder, and stand-ins for the rest that cannot be found."""

    def __init__(self, folder, read):
        self.folder, self.read = Path(folder), read

    def find_spec(self, name, path=None, target=None):
        if name in self.read:
            file = self.folder.joinpath(*name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] == "vllm" or name.split(".")[0] not in sys.stdlib_module_names:
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def modules(folder, read):
    """The modules that are read, by the last parts of their names. To be called once a process:
    what is imported stays."""
    finder = Finder(folder, read)
    sys.meta_path.insert(0, finder)
    try:
        return {name.split(".")[-1]: importlib.import_module(name) for name in (*read, *LATE)}
    finally:
        sys.meta_path.remove(finder)


def block_pool(folder):
    """The class."""
    return modules(folder, READ)["block_pool"].BlockPool


def main():
    sys.path.insert(0, str(Path(__file__).parent))
    import block_pool as calls

    make = block_pool(sys.argv[1])
    recorded = {str(seed): [calls.short(s) for s in calls.play(make, seed)] for seed in calls.SEEDS}
    Path(sys.argv[2]).write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
