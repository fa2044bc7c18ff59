"""What PyTorch's own tests ask of a ``torch.cuda.MemPool``, asked with Forebay behind it."""

import ctypes
import gc
import os
import threading
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, main, run_python  # noqa: E402

LIBRARY = os.environ["FOREBAY_LIBRARY"]


def empty(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def accounts():
    stats = ft.device_pool(0).stats()
    return stats.live_blocks, stats.mapped_bytes


class MemPool(unittest.TestCase):
    def setUp(self):
        self.free = torch.cuda.mem_get_info()[0]
        self.assertEqual(accounts(), (0, 0))

    def tearDown(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual(accounts(), (0, 0))
        self.assertEqual(torch.cuda.mem_get_info()[0], self.free)

    def limited(self, mib):
        """Leaves the process so much memory, counted by PyTorch."""
        total = torch.cuda.mem_get_info()[1]
        share = (mib * MIB + torch.cuda.memory_reserved()) / total
        torch.cuda.set_per_process_memory_fraction(share)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)

    def test_each_pool_has_a_number_of_its_own(self):
        handle = torch.cuda.graph_pool_handle()
        first = ft.make_pool()
        self.assertEqual(first.id[0], 0)
        self.assertGreater(first.id[1], handle[1])
        numbers = []
        threads = [
            threading.Thread(target=lambda: numbers.append(ft.make_pool().id)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len({first.id, *numbers}), 5)

    def test_it_knows_its_uses(self):
        pool = ft.make_pool()
        self.assertEqual(pool.use_count(), 1)
        with torch.cuda.use_mem_pool(pool):
            self.assertEqual(pool.use_count(), 2)
            tensors = [torch.empty(MIB, dtype=torch.uint8, device="cuda")]
            self.assertEqual(len(pool.snapshot()), 1)
            tensors.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
            self.assertEqual(len(pool.snapshot()), 1, "two of 1 MiB share a segment of 2")
            tensors.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
            self.assertEqual(len(pool.snapshot()), 2)
        self.assertEqual(pool.use_count(), 1)
        self.assertEqual(accounts(), (2, 4 * MIB))

    def test_as_a_pluggable_allocator_of_the_librarys_file(self):
        # Without the Python package: by the library's file and the functions' names.
        plug = torch.cuda.memory.CUDAPluggableAllocator(
            LIBRARY, "forebay_torch_segment_alloc", "forebay_torch_segment_free"
        )
        pool = torch.cuda.MemPool(plug.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((MIB,), 3, dtype=torch.uint8, device="cuda")
        self.assertTrue(forebay.owns(tensor.data_ptr()))
        self.assertEqual(int(tensor.cpu().sum()), 3 * MIB)

    def test_a_tensor_outlives_its_pool_and_its_allocator(self):
        plug = torch.cuda.memory.CUDAPluggableAllocator(
            LIBRARY, "forebay_torch_segment_alloc", "forebay_torch_segment_free"
        )
        pool = torch.cuda.MemPool(plug.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((100,), 3.0, device="cuda")
        del pool, plug
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(accounts()[0], 1)
        self.assertEqual(float(tensor.cpu().sum()), 300)
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(accounts(), (0, 0))

    def test_a_pool_that_is_gone_gives_back_what_its_last_tensor_held(self):
        def inside():
            with torch.cuda.use_mem_pool(ft.make_pool()):
                return empty(16)

        tensor = inside()
        gc.collect()
        self.assertEqual(accounts(), (1, 16 * MIB))
        del tensor
        torch.cuda.empty_cache()
        self.assertEqual(accounts(), (0, 0))

    def test_only_pools_that_may_serve_when_memory_is_short(self):
        closed, open_ = ft.make_pool(), ft.make_pool(use_on_oom=True)
        self.limited(80)
        with torch.cuda.use_mem_pool(closed):
            first = empty(40)
        with torch.cuda.use_mem_pool(open_):
            second = empty(40)
        place = second.data_ptr()
        with self.assertRaises(torch.OutOfMemoryError):
            empty(40)
        del first, second
        third = empty(30)
        self.assertEqual(third.data_ptr(), place)
        with self.assertRaises(torch.OutOfMemoryError):
            empty(30)
        del third
        with torch.cuda.use_mem_pool(open_):
            fourth = empty(20)
        self.assertEqual(fourth.data_ptr(), place)

    def test_pools_that_are_gone_serve_no_more(self):
        self.limited(40)
        for _ in range(10):
            pool = ft.make_pool(use_on_oom=True)
            with torch.cuda.use_mem_pool(pool):
                empty(40)
            del pool
        last = ft.make_pool(use_on_oom=True)
        with torch.cuda.use_mem_pool(last):
            tensor = empty(40)
            place = range(tensor.data_ptr(), tensor.data_ptr() + 40 * MIB)
            del tensor
        halves = [empty(20), empty(20)]
        self.assertTrue(all(half.data_ptr() in place for half in halves))

    def test_blocks_that_are_not_split_have_a_segment_each(self):
        split, whole = ft.make_pool(), ft.make_pool(no_split=True)
        kept = []
        for pool in (split, whole, split, whole):
            with torch.cuda.use_mem_pool(pool):
                kept.append(empty(4))
        self.assertEqual([len(pool.snapshot()) for pool in (split, whole)], [1, 2])
        self.assertEqual([len(s["blocks"]) for s in whole.snapshot()], [1, 1])
        self.assertEqual(len(split.snapshot()[0]["blocks"]), 3)

    def test_pools_within_pools(self):
        pools = [ft.make_pool() for _ in range(3)]
        kept = []
        with torch.cuda.use_mem_pool(pools[0]):
            kept.append(empty(20))
            with torch.cuda.use_mem_pool(pools[1]):
                kept.append(empty(20))
                with torch.cuda.use_mem_pool(pools[2]):
                    kept.append(empty(20))
                kept.append(empty(20))
            kept.append(empty(20))
        counts = [len(torch.cuda.memory.memory_snapshot(pool.id)) for pool in pools]
        self.assertEqual(counts, [2, 2, 1])
        self.assertEqual(accounts(), (5, 100 * MIB))

    def test_threads_that_empty_the_cache_inside_keep_their_segments(self):
        def work(pool):
            with torch.cuda.use_mem_pool(pool):
                torch.empty(4, device="cuda")
                torch.cuda.empty_cache()

        pools = [ft.make_pool() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([len(pool.snapshot()) for pool in pools], [1, 1, 1, 1])

    def test_a_thread_beside_is_not_inside(self):
        inside, beside = threading.Event(), threading.Event()
        seen = []

        def work():
            inside.wait(60)
            tensor = empty(1)
            seen.append((forebay.owns(tensor.data_ptr()), torch.cuda.memory_snapshot()))
            del tensor
            beside.set()

        thread = threading.Thread(target=work)
        thread.start()
        outer = empty(1)
        with ft.pool() as pool:
            tensor = empty(1)
            self.assertTrue(forebay.owns(tensor.data_ptr()))
            del tensor
            inside.set()
            self.assertTrue(beside.wait(60))
        thread.join()
        owned, segments = seen[0]
        self.assertFalse(owned)
        active = {tuple(s["segment_pool_id"]): s["active_size"] for s in segments}
        self.assertEqual(active, {(0, 0): 2 * MIB, tuple(pool.id): 0})
        del outer

    def test_beside_segments_that_grow(self):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        self.addCleanup(torch.cuda.memory._set_allocator_settings, "expandable_segments:False")
        with ft.pool() as pool:
            inside = empty(1)
        outside = empty(1)
        segments = torch.cuda.memory_snapshot()
        told = sorted((s["is_expandable"], tuple(s["segment_pool_id"])) for s in segments)
        self.assertEqual(told, [(False, tuple(pool.id)), (True, (0, 0))])
        self.assertTrue(forebay.owns(inside.data_ptr()))
        self.assertFalse(forebay.owns(outside.data_ptr()))

    def test_a_captures_memory_is_used_again_once_its_streams_have_joined(self):
        torch.cuda.memory._set_allocator_settings("graph_capture_record_stream_reuse:True")
        self.addCleanup(
            torch.cuda.memory._set_allocator_settings, "graph_capture_record_stream_reuse:False"
        )
        for count in (1, 3):
            streams = [torch.cuda.Stream() for _ in range(count)]
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            torch.cuda.synchronize()
            main_stream = torch.cuda.Stream()
            pool = ft.make_pool()
            with torch.cuda.stream(main_stream):
                graph.capture_begin(pool=pool.id)
                end, source = torch.empty(8, device="cuda"), torch.empty(8, device="cuda")
                place = source.data_ptr()
                self.assertTrue(forebay.owns(place))
                for stream in streams:
                    stream.wait_stream(main_stream)
                    with torch.cuda.stream(stream):
                        torch.empty_like(source).fill_(2.0)
                        source.record_stream(stream)
                del source
                early = torch.empty(8, device="cuda").data_ptr()
                for stream in streams:
                    main_stream.wait_stream(stream)
                end.fill_(1.0)
                late = torch.empty(8, device="cuda").data_ptr()
                graph.capture_end()
            torch.cuda.synchronize()
            self.assertNotEqual(early, place)
            self.assertEqual(late, place)
            del graph, end, pool

    def test_a_plain_program_by_the_librarys_file(self):
        code = f"""
import torch
plug = torch.cuda.memory.CUDAPluggableAllocator(
    {LIBRARY!r}, "forebay_torch_alloc", "forebay_torch_free")
torch.cuda.memory.change_current_allocator(plug)
assert torch.cuda.get_allocator_backend() == "pluggable"
kept = torch.full((1000,), 2.0, device="cuda")
assert float(kept.cpu().sum()) == 2000
print("well")
"""
        run = run_python(code)
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0))
        self.assertTrue(ctypes.CDLL(LIBRARY).forebay_version)


if __name__ == "__main__":
    main()
