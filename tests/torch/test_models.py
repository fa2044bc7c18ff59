"""A Llama of Hugging Face's and a training step, counted alike with and without Forebay."""

import json
import os
import pathlib
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from support import main

SCRIPT = pathlib.Path(__file__).with_name("models.py")
WAYS = ("native", "pool", "replace")
WORK = ("decode", "train")
REQUESTED = [f"requested_bytes.{part}" for part in ("current", "peak", "allocated", "freed")]
BLOCKS = [f"allocation.{part}" for part in ("current", "peak", "allocated", "freed")]


def run(way):
    """A process of its own; what it misuses would be on its standard error."""
    environment = {k: v for k, v in os.environ.items() if k != "FOREBAY_SIM_REPORT"}
    environment["PYTHONPATH"] += os.pathsep + environment["TEST_MODELS"]
    environment["TRANSFORMERS_VERBOSITY"] = "error"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), way],
        env=environment, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"{way}: {done.returncode}: {done.stderr[-3000:]}")
    return json.loads(done.stdout)


class Models(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        with ThreadPoolExecutor(2) as runs:
            cls.told = dict(zip(WAYS, runs.map(run, WAYS)))

    def picked(self, way, work, names):
        return {name: self.told[way][work]["counts"][name] for name in names}

    def test_a_replaced_allocator_counts_as_pytorchs_own(self):
        for work in WORK:
            names = REQUESTED + BLOCKS
            native = self.picked("native", work, names)
            self.assertGreater(native["allocation.allocated"], 1000, work)
            self.assertEqual(self.picked("replace", work, names), native, work)

    def test_behind_pytorchs_own_nothing_differs(self):
        for work in WORK:
            native = self.told["native"][work]["counts"]
            self.assertEqual(self.told["pool"][work]["counts"], native, work)

    def test_slots_cost_little_more_than_pytorchs_rounding(self):
        for work in WORK:
            native = self.told["native"][work]["counts"]
            ours = self.told["replace"][work]["counts"]
            self.assertGreaterEqual(
                ours["allocated_bytes.current"], ours["requested_bytes.current"], work
            )
            self.assertLess(
                ours["allocated_bytes.peak"], 1.05 * native["allocated_bytes.peak"], work
            )

    def test_every_tensor_is_forebays(self):
        for work in WORK:
            self.assertGreater(self.told["native"][work]["tensors"], 50)
            self.assertEqual(self.told["native"][work]["forebays"], 0)
            for way in ("pool", "replace"):
                told = self.told[way][work]
                self.assertEqual(told["forebays"], told["tensors"], (way, work))

    def test_nothing_is_left(self):
        for way in WAYS:
            for work in WORK:
                self.assertEqual(set(self.told[way][work]["ends"].values()), {0}, (way, work))
                self.assertEqual(self.told[way][work]["leaks"], 0, (way, work))
            self.assertEqual(self.told[way]["left"], [0, 0], way)


if __name__ == "__main__":
    main()
