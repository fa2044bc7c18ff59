"""vLLM's own ``BlockPool``, out of the unpacked source of its release, without what it is installed
with: two of its modules are read, everything else that they import is an empty stand-in.

``python vllm_source.py FOLDER OUT`` records what its pool shows under ``block_pool``'s calls;
``FOLDER`` is what ``fetch`` made, or the unpacked release.
"""

import hashlib
import importlib
import importlib.abc
import importlib.util
import io
import json
import sys
import tarfile
import types
import urllib.request
from pathlib import Path
from unittest.mock import MagicMock

READ = ("vllm.v1.core.block_pool", "vllm.v1.core.kv_cache_utils")


SOURCE = (
    "https://files.pythonhosted.org/packages/f7/25/"
    "aa5684e9c59d6fc75f78926b7f15e8d9adc7de2d9e6e7575b80776ad8169/vllm-0.33.0.tar.gz"
)
SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"


def fetch(folder):
    """Puts the modules that are read into a folder: 47 MB are fetched for them, once. Raises
    ``OSError`` where the package index cannot be reached."""
    files = [Path(*name.split(".")).with_suffix(".py") for name in READ]
    if all((Path(folder) / file).is_file() for file in files):
        return
    with urllib.request.urlopen(SOURCE) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ValueError(f"{SOURCE} is not what it was")
    with tarfile.open(fileobj=io.BytesIO(data)) as release:
        for file in files:
            target = Path(folder) / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(release.extractfile(f"vllm-0.33.0/{file}").read())


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

    def __init__(self, folder):
        self.folder = Path(folder)

    def find_spec(self, name, path=None, target=None):
        if name in READ:
            file = self.folder.joinpath(*name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] == "vllm" or name.split(".")[0] not in sys.stdlib_module_names:
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def block_pool(folder):
    """The class."""
    finder = Finder(folder)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(READ[0]).BlockPool
    finally:
        sys.meta_path.remove(finder)


def main():
    sys.path.insert(0, str(Path(__file__).parent))
    import block_pool as calls

    make = block_pool(sys.argv[1])
    recorded = {str(seed): [calls.short(s) for s in calls.play(make, seed)] for seed in calls.SEEDS}
    Path(sys.argv[2]).write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
