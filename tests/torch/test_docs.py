"""What docs/pytorch.md and the README show is run as it stands."""

import pathlib
import re
import tempfile
import unittest

from support import main, run_python

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
        code = "import forebay, forebay.torch, torch\n" + shown
        run = run_python(code + "print(forebay.owns(x.data_ptr()), len(pool.snapshot()))")
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("True 1\n", "", 0))

    def test_the_tensors_that_sleep(self):
        code = "import forebay, forebay.torch, torch\n" + blocks("docs/pytorch.md")[3]
        asleep = code.replace("# the device's", "print(forebay.torch.is_asleep('kv'))\n#")
        told = "print(float(weights.cpu().sum()), forebay.torch.is_asleep('kv'))"
        run = run_python(asleep + told)
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("True\n1048576.0 False\n", "", 0))


if __name__ == "__main__":
    main()
