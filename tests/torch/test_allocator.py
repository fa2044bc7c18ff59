"""What PyTorch's own tests ask of an allocator, asked of Forebay in its place: counts, limits,
errors, raw blocks, random use."""

import gc
import random
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, main, run_python  # noqa: E402

ft.replace(patch=True)


class Allocator(unittest.TestCase):
    def setUp(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual(torch.cuda.memory_allocated(), 0)

    tearDown = setUp

    def test_raw_blocks(self):
        for size in (1, 1000, MIB, 40 * MIB):
            before = torch.cuda.memory_stats()
            block = torch.cuda.caching_allocator_alloc(size)
            now = torch.cuda.memory_stats()
            self.assertTrue(forebay.owns(block))
            self.assertGreaterEqual(torch.cuda.memory_allocated(), size)
            rise = "requested_bytes.all.allocated"
            self.assertEqual(now[rise] - before[rise], size)
            torch.cuda.caching_allocator_delete(block)
            self.assertEqual(torch.cuda.memory_allocated(), 0)

    def test_raw_blocks_of_a_stream(self):
        stream = torch.cuda.Stream()
        blocks = [
            torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, stream.cuda_stream)
            for _ in range(2)
        ]
        self.assertEqual(torch.cuda.memory_allocated(), 2 * MIB)
        for block in blocks:
            torch._C._cuda_cudaCachingAllocator_raw_delete(block)
        again = torch.cuda.caching_allocator_alloc(MIB, stream=stream)
        self.assertIn(again, blocks)
        torch.cuda.caching_allocator_delete(again)

    def test_counts_and_peaks(self):
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), 0)
        self.assertEqual(torch.cuda.max_memory_reserved(), torch.cuda.memory_reserved())
        tensor = torch.empty(256, device="cuda")
        now = torch.cuda.memory_stats()
        active = "active_bytes.all."
        self.assertEqual(now[active + "current"] - start[active + "current"], 1024)
        self.assertEqual(now[active + "freed"], start[active + "freed"])
        del tensor
        torch.cuda.empty_cache()
        now = torch.cuda.memory_stats()
        self.assertEqual(now[active + "current"], start[active + "current"])
        self.assertEqual(now[active + "freed"] - start[active + "freed"], 1024)
        self.assertEqual(torch.cuda.max_memory_allocated(), 1024)
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), 0)

    def test_too_much_disturbs_nothing(self):
        tensor = torch.zeros(1024, device="cuda")
        for size, said in ((800 << 30, "800.00 GiB"), (3 << 29, "1.50 GiB"), (6 << 60, "GiB")):
            with self.assertRaisesRegex(RuntimeError, "out of memory. Tried to allocate .*" + said):
                torch.empty(size, dtype=torch.int8, device="cuda")
        tensor.fill_(1)
        self.assertTrue(bool((tensor.cpu() == 1).all()))

    def test_half_of_the_device_twice(self):
        size = torch.cuda.get_device_properties(0).total_memory // 2 + 2 * MIB
        first = torch.empty(size, dtype=torch.int8, device="cuda")
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(size, dtype=torch.int8, device="cuda")
        del first
        torch.empty(size, dtype=torch.int8, device="cuda")

    def test_a_share_of_the_device(self):
        for wrong, error in ((1, TypeError), (-0.1, ValueError), (2.0, ValueError)):
            with self.assertRaises(error):
                torch.cuda.set_per_process_memory_fraction(wrong)
        total = torch.cuda.get_device_properties(0).total_memory
        tensor = torch.zeros(1024, device="cuda")
        torch.cuda.set_per_process_memory_fraction(0.5, 0)
        try:
            size = int(total * 0.499) - torch.cuda.max_memory_reserved()
            torch.empty(size, dtype=torch.int8, device="cuda")
            torch.cuda.empty_cache()
            with self.assertRaisesRegex(RuntimeError, "out of memory"):
                torch.empty(total // 2, dtype=torch.int8, device="cuda")
            tensor.fill_(1)
            self.assertTrue(bool((tensor.cpu() == 1).all()))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)

    def test_a_busy_streams_blocks_come_back_when_memory_is_short(self):
        stream = torch.cuda.Stream()
        ooms = torch.cuda.memory_stats()["num_ooms"]
        with torch.cuda.stream(stream):
            kept = torch.zeros(40 * MIB, dtype=torch.uint8, device="cuda")
        for _ in range(60):
            tensor = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
            with torch.cuda.stream(stream):
                kept.copy_(tensor)
            tensor.record_stream(stream)
            del tensor
        self.assertEqual(torch.cuda.memory_stats()["num_ooms"], ooms)

    def test_random_tensors_keep_their_contents(self):
        draw = random.Random(123)
        live, total = [], 0
        # One for all: a new one each time would cost more than looking at it.
        host = torch.empty(20 * MIB // 4, dtype=torch.int32)
        for step in range(1500):
            what = draw.choices(("new", "drop", "empty"), (1, bool(live), 0.1))[0]
            while live and (what == "drop" or total > 100 * MIB):
                tensor, value, size = live.pop(draw.randrange(len(live)))
                seen = host[: size // 4].copy_(tensor)
                self.assertEqual([int(end) for end in seen.aminmax()], [value, value], step)
                total -= size
                what = "dropped"
            if what == "new":
                size = draw.randrange(2 * MIB // 4, 20 * MIB // 4) * 4
                tensor = torch.full((size // 4,), step, dtype=torch.int32, device="cuda")
                live.append((tensor, step, size))
                total += size
            elif what == "empty":
                torch.cuda.empty_cache()

    def test_a_snapshot_tells_where_a_block_was_made(self):
        torch.cuda.memory._record_memory_history("state", stacks="python")
        try:
            torch.empty(2 * 311, 411, device="cuda")
            other = torch.empty(310, 410, device="cuda")
            tensor = torch.empty(311, 411, device="cuda")
            small = [torch.empty(128, device="cuda") for _ in range(1000)]
            del small, other
            taken = torch.cuda.memory._snapshot()
            found = [
                b for s in taken["segments"] for b in s["blocks"]
                if b["requested_size"] == 311 * 411 * 4
            ]  # fmt: skip
            self.assertEqual([b["address"] for b in found], [tensor.data_ptr()])
            self.assertEqual(found[0]["frames"][0]["filename"], __file__)
        finally:
            torch.cuda.memory._record_memory_history(None)

    def test_what_has_no_answer_says_so(self):
        # PyTorch's interface for allocators has no such questions.
        with self.assertRaisesRegex(RuntimeError, "does not yet support"):
            torch.cuda.get_per_process_memory_fraction()
        with self.assertRaisesRegex(RuntimeError, "does not yet support"):
            torch._C._cuda_attach_out_of_memory_observer(print)
        with self.assertRaises(RuntimeError):
            torch.cuda.MemPool()

    def test_the_settings_of_pytorchs_own_do_nothing(self):
        code = """
import torch, forebay, forebay.torch as ft
ft.replace()
kept = [torch.full((1000 * (i + 1),), 1.0, device="cuda") for i in range(20)]
assert all(forebay.owns(t.data_ptr()) and float(t.cpu().sum()) == t.numel() for t in kept)
assert ft.memory_stats()["allocation.all.current"] == 20
print("well")
"""
        for conf in (
            "expandable_segments:True",
            "max_split_size_mb:20,garbage_collection_threshold:0.5",
            "roundup_power2_divisions:4",
        ):
            run = run_python(code, PYTORCH_ALLOC_CONF=conf)
            self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0), conf)


if __name__ == "__main__":
    main()
