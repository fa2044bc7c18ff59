"""Forebay in place of PyTorch's allocator, on the simulated machine."""

import gc
import threading
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, main, run_python  # noqa: E402

ft.replace()


def overlaps(address, bytes, tensors):
    """Whether any tensor lies on part of a range that was another's."""
    ranges = [(t.data_ptr(), t.numel() * t.element_size()) for t in tensors]
    return any(at < address + bytes and address < at + length for at, length in ranges)


def accounts():
    return ft.device_pool(0).stats()


class Replaced(unittest.TestCase):
    def setUp(self):
        self.before = ft.memory_allocated()

    def tearDown(self):
        gc.collect()
        torch.cuda.synchronize()
        self.assertEqual(ft.memory_allocated(), self.before)

    def test_tensors_lie_in_the_pool(self):
        self.assertEqual(torch.cuda.get_allocator_backend(), "pluggable")
        tensors = [torch.empty(n, device="cuda") for n in (1, 100, 1000, MIB)]
        for tensor in tensors:
            self.assertTrue(forebay.owns(tensor.data_ptr()))
            self.assertEqual(tensor.data_ptr() % 512, 0)
        values = torch.arange(1000, dtype=torch.float32)
        self.assertTrue(torch.equal(values.cuda().clone().cpu(), values))
        self.assertEqual(torch.full((1003,), 7.5, device="cuda").cpu().sum(), 7522.5)

    def test_a_size_of_0_is_no_memory(self):
        blocks = accounts().live_blocks
        empty = torch.empty(0, device="cuda")
        self.assertEqual(empty.data_ptr(), 0)
        self.assertEqual(accounts().live_blocks, blocks)

    def test_a_stream_has_its_memory_back_at_once(self):
        tensor = torch.empty(1000, device="cuda")
        address = tensor.data_ptr()
        del tensor
        self.assertEqual(torch.empty(1000, device="cuda").data_ptr(), address)

    def test_a_recorded_stream_is_waited_for(self):
        stream = torch.cuda.Stream()
        tensor = torch.empty(4 * MIB, device="cuda")
        address = tensor.data_ptr()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)
            tensor.fill_(1.0)
            tensor.record_stream(stream)
        del tensor
        others = [torch.empty(4 * MIB, device="cuda") for _ in range(3)]
        self.assertFalse(overlaps(address, 16 * MIB, others))
        self.assertFalse(stream.query())

    def test_memory_of_another_stream_is_not_handed_out_before_its_work_is_done(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensor = torch.empty(4 * MIB, device="cuda")
            address = tensor.data_ptr()
            torch.cuda._sleep(1_000_000_000)
            tensor.fill_(2.0)
            del tensor
        mine = [torch.empty(4 * MIB, device="cuda") for _ in range(3)]
        self.assertFalse(overlaps(address, 16 * MIB, mine))

    def test_frees_from_any_thread(self):
        tensors = [torch.empty(1000 + i, device="cuda") for i in range(400)]

        def drop(part):
            while part:
                part.pop()

        threads = [threading.Thread(target=drop, args=(tensors[i::4],)) for i in range(4)]
        tensors = None
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_threads_allocate_at_once(self):
        def work(seed):
            generator = torch.Generator().manual_seed(seed)
            kept = []
            for _ in range(100):
                size = int(torch.randint(1, 100_000, (1,), generator=generator))
                kept.append(torch.full((size,), float(seed), device="cuda"))
                if len(kept) > 8:
                    tensor = kept.pop(0)
                    if not bool((tensor.cpu() == seed).all()):
                        wrong.append(seed)

        wrong = []
        threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_too_much_is_pytorchs_error_with_the_pools_report(self):
        ooms = ft.memory_stats()["num_ooms"]
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
        text = str(caught.exception)
        self.assertIn("CUDA out of memory. Tried to allocate 200.00 GiB. Forebay: ", text)
        self.assertIn("214748364800 bytes requested; limit 1073741824", text)
        self.assertEqual(ft.memory_stats()["num_ooms"], ooms + 1)
        # And the next one works.
        self.assertEqual(torch.ones(5, device="cuda").cpu().sum(), 5)

    def test_emptying_the_cache_gives_memory_back(self):
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        held = ft.memory_reserved()
        self.assertGreaterEqual(held, 64 * MIB)
        del tensor
        torch.cuda.empty_cache()
        self.assertLess(ft.memory_reserved(), held - 60 * MIB)

    def test_a_share_of_the_device_is_a_limit(self):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        ft.memory_fraction(0.05)
        try:
            self.assertEqual(accounts().limit_bytes, int(total * 0.05))
            with self.assertRaises(torch.OutOfMemoryError):
                torch.empty(total // 10, dtype=torch.uint8, device="cuda")
        finally:
            ft.memory_fraction(1.0)
        torch.empty(total // 10, dtype=torch.uint8, device="cuda")

    def test_products_find_their_memory(self):
        layer = torch.nn.Linear(64, 32).cuda()
        layer(torch.zeros(8, 64, device="cuda")).sum().backward()
        self.assertTrue(forebay.owns(layer.weight.grad.data_ptr()))
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()

    def test_a_tag_goes_with_a_threads_tensors(self):
        with ft.tag("kv"):
            tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        other = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual(ft.tag_bytes("kv"), 3 * MIB)
        del tensor, other
        self.assertEqual(ft.tag_bytes("kv"), 0)

    def test_counts_have_pytorchs_names_and_meaning(self):
        ft.reset_peak_memory_stats()
        start = ft.memory_stats()
        small = torch.empty(100, device="cuda")
        large = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        now = ft.memory_stats()
        rise = {k: now[k] - start[k] for k in now}
        self.assertEqual(rise["allocation.all.current"], 2)
        self.assertEqual(rise["allocation.small_pool.allocated"], 1)
        self.assertEqual(rise["requested_bytes.all.current"], 400 + 3 * MIB)
        self.assertEqual(rise["allocated_bytes.all.current"], 512 + 3 * MIB)
        self.assertEqual(rise["allocated_bytes.large_pool.peak"], 3 * MIB)
        self.assertEqual(ft.max_memory_allocated(), now["allocated_bytes.all.current"])
        del small, large
        self.assertEqual(ft.memory_stats()["allocation.all.freed"] - start["allocation.all.freed"], 2)
        self.assertGreater(ft.max_memory_allocated(), ft.memory_allocated())
        ft.reset_peak_memory_stats()
        self.assertEqual(ft.max_memory_allocated(), ft.memory_allocated())
        self.assertIn("CUDA OOMs", ft.memory_summary())
        self.assertEqual(ft.memory_reserved(), accounts().mapped_bytes)


class Graphs(unittest.TestCase):
    def capture(self):
        tensor = torch.zeros(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inner = torch.full((MIB,), 3.0, device="cuda")
            tensor.copy_(inner)
            address = inner.data_ptr()
            del inner
        return tensor, graph, address

    def test_a_graphs_memory_is_its_own_until_it_is_gone(self):
        tensor, graph, address = self.capture()
        taken = [torch.full((MIB,), 9.0, device="cuda") for _ in range(4)]
        self.assertFalse(overlaps(address, 4 * MIB, taken))
        for _ in range(2):
            tensor.zero_()
            graph.replay()
            torch.cuda.synchronize()
            self.assertEqual(tensor.cpu()[:7].sum(), 21)
        self.assertTrue(all(bool((t.cpu() == 9).all()) for t in taken))
        del graph
        gc.collect()
        torch.cuda.synchronize()
        held = [torch.empty(MIB, device="cuda") for _ in range(64)]
        self.assertTrue(overlaps(address, 4 * MIB, held), "the graph is gone")

    def test_streams_that_join_a_capture_share_its_pool(self):
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        out = torch.zeros(MIB, device="cuda")
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                inner = torch.full((MIB,), 5.0, device="cuda")
                address = inner.data_ptr()
            torch.cuda.current_stream().wait_stream(side)
            out.copy_(inner)
            del inner
        taken = [torch.full((MIB,), 9.0, device="cuda") for _ in range(4)]
        self.assertFalse(overlaps(address, 4 * MIB, taken))
        graph.replay()
        torch.cuda.synchronize()
        self.assertEqual(out.cpu()[:3].sum(), 15)

    def test_two_graphs_share_a_private_pool(self):
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        out = torch.zeros(MIB, device="cuda")
        with torch.cuda.graph(first):
            out.copy_(torch.full((MIB,), 2.0, device="cuda"))
        with torch.cuda.graph(second, pool=first.pool()):
            out.copy_(torch.full((MIB,), 4.0, device="cuda"))
        del first
        gc.collect()
        taken = [torch.full((MIB,), 9.0, device="cuda") for _ in range(8)]
        second.replay()
        torch.cuda.synchronize()
        self.assertEqual(out.cpu()[:3].sum(), 12)
        self.assertTrue(all(bool((t.cpu() == 9).all()) for t in taken))

    def test_other_streams_work_while_a_capture_is_open(self):
        graph = torch.cuda.CUDAGraph()
        kept = torch.zeros(100, device="cuda")
        done = []

        def beside():
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    torch.empty(100_000, device="cuda")
            done.append(True)

        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            kept.fill_(1.0)
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join()
        graph.replay()
        torch.cuda.synchronize()
        self.assertEqual((done, float(kept.cpu().sum())), ([True], 100.0))


class Processes(unittest.TestCase):
    maxDiff = None

    def well(self, code, **variables):
        run = run_python(code, **variables)
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0))

    def test_too_late_is_told_and_changes_nothing(self):
        self.well("""
import torch, forebay.torch
kept = torch.zeros(3, device="cuda")
try:
    forebay.torch.replace()
except RuntimeError as error:
    assert "too late" in str(error), error
assert not forebay.torch.is_replaced()
assert torch.cuda.memory_allocated() == 512
print("well")
""")

    def test_tensors_alive_at_the_interpreters_end_do_no_harm(self):
        self.well("""
import sys, torch, forebay.torch
forebay.torch.replace(patch=True)
forebay.torch.record_memory_history()
sys.kept = [torch.zeros(1000, device="cuda") for _ in range(10)]
graph = sys.graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sys.more = torch.zeros(1000, device="cuda")
print("well")
""")

    def test_pytorchs_functions_become_ours(self):
        self.well("""
import torch, forebay.torch
forebay.torch.replace(patch=True)
forebay.torch.replace(patch=True)
kept = torch.zeros(1000, device="cuda")
assert torch.cuda.memory_allocated() == 4096, torch.cuda.memory_allocated()
assert torch.cuda.max_memory_allocated() == 4096
assert torch.cuda.memory_reserved() == forebay.torch.memory_reserved() > 0
torch.cuda.reset_peak_memory_stats()
assert "Active memory" in torch.cuda.memory_summary()
torch.cuda.memory._record_memory_history()
more = torch.zeros(1000, device="cuda")
taken = torch.cuda.memory._snapshot()
assert [e["action"] for e in taken["device_traces"][0]] == ["alloc"]
assert torch.cuda.memory_snapshot() == taken["segments"]
print("well")
""")

    def test_everything_given_back_leaves_the_counts_right(self):
        self.well("""
import torch, forebay.torch as ft
ft.replace()
kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
del kept
torch.cuda.empty_cache()
now = ft.memory_stats()
told = [now[f"{name}.all.{part}"] for name in ("segment", "reserved_bytes") for part in (
    "current", "peak", "allocated", "freed")]
assert told == [0, 32, 32, 32, 0, 64 << 20, 64 << 20, 64 << 20], told
print("well")
""")

    def test_the_history_is_asked_for_as_of_pytorch(self):
        self.well("""
import torch, forebay.torch
forebay.torch.replace(patch=True)
record = torch.cuda.memory._record_memory_history
record("state", "alloc", "python", 1000)
record("all", "all", "python", 2, device=0, clear_history=True)
for _ in range(3):
    torch.zeros(1000, device="cuda")
taken = torch.cuda.memory._snapshot()["device_traces"][0]
assert sum(not e["action"].startswith("segment") for e in taken) == 2, taken
record(enabled=None, context="alloc")
print("well")
""")

    def test_two_devices_reach_each_others_memory(self):
        self.well("""
import torch, forebay, forebay.torch
forebay.torch.replace()
c = torch.zeros(3, device="cuda:0")
assert forebay.torch.memory_stats(1)["reserved_bytes.all.current"] == 0
assert len(forebay.torch.snapshot()["segments"]) == 1
assert torch.cuda.mem_get_info(1)[0] == torch.cuda.mem_get_info(1)[1], "a pool was made"
a = torch.arange(100000, dtype=torch.float32, device="cpu").to("cuda:0")
b = a.to("cuda:1")
assert b.device.index == 1 and torch.equal(b.cpu(), a.cpu())
assert torch.equal((b.to("cuda:0")).cpu(), a.cpu())
assert forebay.owns(a.data_ptr()) and forebay.owns(b.data_ptr())
assert forebay.torch.memory_allocated(1) > 0
assert len({s["device"] for s in forebay.torch.snapshot()["segments"]}) == 2
assert forebay.torch.device_pool(1).stats().live_blocks == 1
torch.cuda.empty_cache()
print("well")
""", FOREBAY_SIM_DEVICES="2")

    def test_a_missing_part_is_told(self):
        self.well("""
import forebay, forebay.torch._native as native, pathlib
native.lib_path = lambda: pathlib.Path("/none/libforebay.so.0")
try:
    forebay.torch.replace()
except RuntimeError as error:
    assert "libforebay_torch.so is not there" in str(error), error
print("well")
""")


if __name__ == "__main__":
    main()
