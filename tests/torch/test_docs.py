"""What docs/pytorch.md and the README show is run as it stands."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from support import MIB, main, run_python

ROOT = pathlib.Path(__file__).parents[2]


def blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


class Shown(unittest.TestCase):
    maxDiff = None

    def test_the_start_and_the_history(self):
        start, history, *_ = blocks("docs/pytorch.md")
        self.assertEqual(len([line for line in start.splitlines() if line]), 5)
        self.assertIn(start, blocks("README.md"))
        with tempfile.TemporaryDirectory() as folder:
            history = history.replace('"memory.pickle"', repr(folder + "/memory.pickle"))
            run = run_python(start + history)
            self.assertEqual((run.stdout, run.stderr, run.returncode), ("4096\n", "", 0))
            self.assertGreater((pathlib.Path(folder) / "memory.pickle").stat().st_size, 100)

    def test_the_pool(self):
        shown = blocks("docs/pytorch.md")[2]
        self.assertEqual(len([line for line in shown.splitlines() if line]), 5)
        run = run_python(shown + "import forebay\nprint(forebay.owns(x.data_ptr()))")
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("1\nTrue\n", "", 0))

    def test_nothing_changed(self):
        text = (ROOT / "docs/pytorch.md").read_text()
        (line,) = re.findall(r"^    (LD_PRELOAD=.* python train\.py)(?= +#)", text, re.MULTILINE)
        library = pathlib.Path(os.environ["TEST_PRELOAD_LIBRARY"])
        with tempfile.TemporaryDirectory() as folder:
            python, train = pathlib.Path(folder, "python"), pathlib.Path(folder, "train.py")
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
            train.write_text(
                'import forebay, torch\nx = torch.ones(1000, device="cuda")\n'
                "print(forebay.owns(x.data_ptr()), forebay.default_pool().stats().live_bytes)\n"
            )
            own = {
                "PATH": folder + os.pathsep + os.environ["PATH"],
                "LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"] + f":{library.parent}",
                # PyTorch warns where NumPy is not installed.
                "PYTHONWARNINGS": "ignore::UserWarning",
            }
            without = {k: v for k, v in os.environ.items() if k != "FOREBAY_SIM_REPORT"}
            run = subprocess.run(
                ["sh", "-c", line], cwd=folder, env={**without, **own},
                capture_output=True, text=True, timeout=150,
            )  # fmt: skip
        self.assertEqual((run.stdout, run.stderr, run.returncode), (f"True {2 * MIB}\n", "", 0))

    def test_the_tensors_that_sleep(self):
        code = "import forebay, forebay.torch, torch\n" + blocks("docs/pytorch.md")[3]
        asleep = code.replace("# the device's", "print(forebay.torch.is_asleep('kv'))\n#")
        told = "print(float(weights.cpu().sum()), forebay.torch.is_asleep('kv'))"
        run = run_python(asleep + told)
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("True\n1048576.0 False\n", "", 0))


if __name__ == "__main__":
    main()
