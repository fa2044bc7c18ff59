"""Random use of a replaced allocator by several streams. Work runs when it is waited for and not
before, so that a reuse that comes too early shows as wrong contents."""

import gc
import os
import random
import sys
import time
import unittest
import warnings

# Read when the simulated driver starts.
os.environ["FOREBAY_SIM_SCHEDULE"] = "stepped"
warnings.simplefilter("ignore")

import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import main  # noqa: E402

ft.replace()


class Random(unittest.TestCase):
    """Tensors with a value of their own, used by several streams, whose work runs late."""

    def test_no_tensor_is_overwritten(self):
        seed = int(os.environ.get("SEED") or time.time_ns() % 1_000_000)
        for seed in range(seed, seed + 3):
            print(f"SEED={seed}", file=sys.stderr)
            self.run_with(random.Random(seed))
            gc.collect()
            torch.cuda.synchronize()

    def run_with(self, draw):
        streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        live = []
        for step in range(400):
            what = draw.choice("new new use use drop drop look".split())
            if what == "new" or not live:
                stream = draw.choice(streams)
                with torch.cuda.stream(stream):
                    size = draw.choice((100, 5_000, 60_000, 400_000))
                    live.append((torch.full((size,), float(step), device="cuda"), step, stream))
                continue
            at = draw.randrange(len(live))
            tensor, value, stream = live[at]
            if what == "use":
                other = draw.choice(streams)
                other.wait_stream(stream)
                with torch.cuda.stream(other):
                    live.append((tensor.clone(), value, other))
                tensor.record_stream(other)
                if draw.random() < 0.7:
                    # Its memory would do for the next one, were the other stream done with it.
                    size = tensor.numel()
                    del live[at], tensor
                    with torch.cuda.stream(stream):
                        full = torch.full((size,), float(step), device="cuda")
                        # Waiting for it alone leaves the other stream's copy for later.
                        self.assertTrue(bool((full.cpu() == step).all()), step)
                    live.append((full, step, stream))
                    del full
                    continue
            elif what == "look":
                with torch.cuda.stream(stream):
                    self.assertTrue(bool((tensor.cpu() == value).all()), (step, value))
            if what == "drop" or len(live) > 40:
                live.pop(at)
        for tensor, value, stream in live:
            with torch.cuda.stream(stream):
                self.assertTrue(bool((tensor.cpu() == value).all()), value)


if __name__ == "__main__":
    main()
