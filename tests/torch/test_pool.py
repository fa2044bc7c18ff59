"""Forebay behind PyTorch's allocator: a MemPool of its segments, on the simulated machine."""

import gc
import threading
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, main, run_python  # noqa: E402


class Pools(unittest.TestCase):
    maxDiff = None

    def tearDown(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def test_tensors_inside_are_forebays_and_others_are_not(self):
        with ft.pool() as pool:
            inside = torch.full((MIB,), 3.0, device="cuda")
        outside = torch.empty(MIB, device="cuda")
        self.assertTrue(forebay.owns(inside.data_ptr()))
        self.assertFalse(forebay.owns(outside.data_ptr()))
        self.assertEqual(inside.cpu()[:5].sum(), 15)
        self.assertEqual(len(pool.snapshot()), 1)

    def test_pytorchs_own_functions_answer(self):
        before = torch.cuda.memory_allocated()
        with ft.pool():
            tensor = torch.empty(MIB, device="cuda")
            self.assertEqual(ft.memory_allocated(), before + 4 * MIB)
            self.assertEqual(ft.memory_stats(), torch.cuda.memory_stats())
            self.assertIn("segments", ft.snapshot())
            self.assertIn("Active memory", ft.memory_summary())
        del tensor

    def test_the_cache_gives_memory_back_to_the_device(self):
        free = torch.cuda.mem_get_info()[0]
        with ft.pool() as pool:
            tensor = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
            del tensor
        self.assertLess(torch.cuda.mem_get_info()[0], free)
        del pool
        torch.cuda.empty_cache()
        stats = ft.device_pool(0).stats()
        self.assertEqual((stats.live_blocks, stats.mapped_bytes), (0, 0))
        self.assertEqual(torch.cuda.mem_get_info()[0], free)

    def test_work_that_is_queued_is_waited_for_before_memory_goes(self):
        stream = torch.cuda.Stream()
        with ft.pool() as pool:
            with torch.cuda.stream(stream):
                tensor = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
                torch.cuda._sleep(200_000_000)
                tensor.fill_(1)
            del tensor
        del pool
        torch.cuda.empty_cache()
        self.assertTrue(stream.query())

    def test_blocks_are_not_split_where_that_is_wished(self):
        with ft.pool(no_split=True) as pool:
            first = torch.empty(100, device="cuda")
            second = torch.empty(100, device="cuda")
            self.assertEqual(len(pool.snapshot()), 2)
        with ft.pool() as pool:
            third = torch.empty(100, device="cuda")
            fourth = torch.empty(100, device="cuda")
            self.assertEqual(len(pool.snapshot()), 1)
        del first, second, third, fourth

    def test_a_pools_idle_memory_serves_when_memory_is_short(self):
        total = torch.cuda.mem_get_info()[1]
        kept = {}
        for use_on_oom in (False, True):
            with ft.pool(use_on_oom=use_on_oom) as pool:
                tensor = torch.empty(total * 3 // 4, dtype=torch.uint8, device="cuda")
                del tensor
            kept[use_on_oom] = pool
            if use_on_oom:
                torch.empty(total // 2, dtype=torch.uint8, device="cuda")
            else:
                with self.assertRaises(torch.OutOfMemoryError):
                    torch.empty(total // 2, dtype=torch.uint8, device="cuda")
            del pool
            kept.clear()
            gc.collect()
            torch.cuda.empty_cache()

    def test_too_much_is_pytorchs_error(self):
        with ft.pool() as pool:
            with self.assertRaises(torch.OutOfMemoryError):
                torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
            self.assertEqual(torch.ones(3, device="cuda").cpu().sum(), 3)
        del pool

    def test_graphs_are_captured_and_replayed(self):
        out = torch.zeros(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        pool = ft.make_pool()
        with torch.cuda.graph(graph, pool=pool.id):
            inner = torch.full((MIB,), 2.0, device="cuda")
            out.copy_(inner)
            self.assertTrue(forebay.owns(inner.data_ptr()))
            del inner
        graph.replay()
        torch.cuda.synchronize()
        self.assertEqual(out.cpu()[:4].sum(), 8)
        del graph, pool

    def test_a_graph_inside_has_a_pool_of_pytorchs(self):
        graph = torch.cuda.CUDAGraph()
        with ft.pool() as pool:
            out = torch.zeros(MIB, device="cuda")
            with torch.cuda.graph(graph):
                inner = torch.full((MIB,), 2.0, device="cuda")
                out.copy_(inner)
                self.assertFalse(forebay.owns(inner.data_ptr()))
                del inner
            graph.replay()
        torch.cuda.synchronize()
        self.assertEqual(out.cpu()[:4].sum(), 8)
        del graph, pool, out

    def test_another_thread_is_outside(self):
        seen = []

        def work():
            seen.append(forebay.owns(torch.empty(MIB, device="cuda").data_ptr()))

        with ft.pool() as pool:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        self.assertEqual(seen, [False])
        del pool

    def test_use_is_for_every_thread_to_the_end(self):
        code = """
import threading, torch, forebay, forebay.torch
before = torch.empty(1 << 20, device="cuda")
pool = forebay.torch.use()
assert forebay.torch.use() is pool
seen = []
def work():
    seen.append(forebay.owns(torch.empty(1 << 20, device="cuda").data_ptr()))
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
assert seen == [True, True] and not forebay.owns(before.data_ptr())
kept = torch.zeros(100, device="cuda")
print("well")
"""
        run = run_python(code)
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0))

    def test_there_are_none_after_replacing(self):
        code = """
import torch, forebay.torch
forebay.torch.replace()
try:
    forebay.torch.make_pool()
except RuntimeError as error:
    assert "every tensor is Forebay's" in str(error)
    print("well")
"""
        run = run_python(code)
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0))


if __name__ == "__main__":
    main()
