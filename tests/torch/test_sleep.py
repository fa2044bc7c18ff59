"""Tags of tensors put to sleep and woken, on the simulated machine."""

import gc
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, main, run_python  # noqa: E402

ft.replace()
ft.declare(["kv", "weights"])


def free_bytes():
    """What another process could have."""
    return torch.cuda.mem_get_info()[0]


def accounts():
    return ft.device_pool(0).stats()


class Sleeps(unittest.TestCase):
    def setUp(self):
        torch.cuda.empty_cache()
        self.before = accounts()

    def tearDown(self):
        gc.collect()
        for name in ("kv", "weights"):
            if ft.is_asleep(name):
                ft.wake(name)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        after = accounts()
        self.assertEqual(after.live_blocks, self.before.live_blocks)
        self.assertEqual((after.suspended_bytes, after.suspended_host_bytes), (0, 0))

    def test_memory_goes_to_the_device_and_contents_come_back(self):
        with ft.tag("kv"):
            cache = torch.arange(10 * MIB // 4, dtype=torch.float32).cuda()
            small = [torch.full((n,), float(n), device="cuda") for n in (1, 100, 5000)]
        with ft.tag("weights"):
            weights = torch.full((3 * MIB,), 2.5, device="cuda")
        plain = torch.full((1000,), 7.0, device="cuda")
        addresses = [t.data_ptr() for t in (cache, *small, weights)]
        for _ in range(3):
            before = free_bytes()
            told = ft.sleep(["kv"])
            self.assertTrue(ft.is_asleep("kv") and not ft.is_asleep("weights"))
            self.assertGreaterEqual(told.device_bytes, 10 * MIB)
            self.assertEqual((told.kept_bytes, told.stuck_bytes, told.blocks), (0, 0, 4))
            self.assertEqual(free_bytes() - before, told.device_bytes)
            self.assertTrue(bool((weights.cpu() == 2.5).all()) and bool((plain.cpu() == 7).all()))
            both = ft.sleep(["weights", "kv"])
            self.assertGreaterEqual(both.device_bytes, 12 * MIB)
            self.assertTrue(bool((plain.cpu() == 7).all()))
            ft.wake(["kv", "weights"])
            self.assertEqual(free_bytes(), before)
            self.assertEqual(addresses, [t.data_ptr() for t in (cache, *small, weights)])
            expected = torch.arange(10 * MIB // 4, dtype=torch.float32)
            self.assertTrue(torch.equal(cache.cpu(), expected))
            for tensor in small:
                self.assertTrue(bool((tensor.cpu() == tensor.numel()).all()))
            self.assertTrue(bool((weights.cpu() == 2.5).all()))

    def test_discarded_memory_is_there_again_and_costs_no_host_memory(self):
        with ft.tag("kv"):
            cache = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
        told = ft.sleep("kv", level="discard")
        self.assertEqual((told.host_bytes, accounts().suspended_host_bytes), (0, 0))
        ft.wake("kv")
        cache.fill_(9)
        self.assertTrue(bool((cache.cpu() == 9).all()))
        with self.assertRaises(ValueError):
            ft.sleep("kv", level="hibernate")

    def test_work_on_every_stream_goes_first(self):
        stream = torch.cuda.Stream()
        with ft.tag("kv"):
            cache = torch.zeros(MIB, device="cuda")
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            cache.fill_(3.0)
        ft.sleep("kv")
        ft.wake("kv")
        self.assertTrue(bool((cache.cpu() == 3).all()))

    def test_tensors_dropped_asleep_are_gone(self):
        with ft.tag("kv"):
            kept = torch.full((MIB,), 1.0, device="cuda")
            gone = [torch.full((MIB,), 2.0, device="cuda"), torch.ones(10, device="cuda")]
        ft.sleep("kv")
        host = accounts().suspended_host_bytes
        gone.clear()
        self.assertLess(accounts().suspended_host_bytes, host)
        self.assertEqual(accounts().live_blocks, self.before.live_blocks + 1)
        told = ft.wake("kv")
        self.assertEqual((told.device_bytes, told.blocks), (4 * MIB, 1))
        self.assertTrue(bool((kept.cpu() == 1).all()))

    def test_allocating_under_a_sleeping_tag_is_an_error(self):
        with ft.tag("kv"):
            kept = torch.ones(MIB, device="cuda")
            ft.sleep("kv")
            for n in (10, MIB):
                with self.assertRaisesRegex(RuntimeError, '"kv" is suspended'):
                    torch.empty(n, device="cuda")
        plain = torch.ones(10, device="cuda")
        ft.wake("kv")
        with ft.tag("kv"):
            more = torch.ones(10, device="cuda")
        self.assertEqual(kept.cpu().sum() + plain.cpu().sum() + more.cpu().sum(), MIB + 20)

    def test_without_room_everything_sleeps_on(self):
        with ft.tag("kv"):
            cache = torch.full((300 * MIB,), 5, dtype=torch.uint8, device="cuda")
        with ft.tag("weights"):
            weights = torch.full((100 * MIB,), 6, dtype=torch.uint8, device="cuda")
        ft.sleep(["kv", "weights"])
        hoard = torch.empty(800 * MIB, dtype=torch.uint8, device="cuda")
        for _ in range(2):
            with self.assertRaisesRegex(forebay.OutOfMemoryError, "bytes missing"):
                ft.wake(["kv", "weights"])
            self.assertTrue(ft.is_asleep("kv") and ft.is_asleep("weights"))
        ft.wake("weights")
        self.assertTrue(bool((weights.cpu() == 6).all()))
        del hoard
        ft.wake(["kv", "weights"])
        self.assertTrue(bool((cache.cpu() == 5).all()))

    def test_a_graph_is_replayed_after_its_memory_slept(self):
        with ft.tag("kv"):
            source = torch.zeros(3 * MIB, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                source.fill_(4.0)
                scratch = torch.empty_like(source)
                scratch.copy_(source)
                out = torch.empty_like(source)
                out.copy_(scratch)
                del scratch
        plain = torch.zeros(100, device="cuda")
        for round in range(3):
            plain.fill_(float(round))
            told = ft.sleep("kv")
            self.assertGreaterEqual(told.device_bytes, 36 * MIB, "the graph's scratch sleeps too")
            hoard = torch.full((200 * MIB,), 1, dtype=torch.uint8, device="cuda")
            del hoard
            torch.cuda.empty_cache()
            ft.wake("kv")
            if round > 0:
                self.assertEqual(out.cpu().sum(), 12 * MIB)
            source.zero_()
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            self.assertEqual(out.cpu().sum(), 12 * MIB)
        self.assertEqual(plain.cpu().sum(), 200)
        del graph, source, out

    def test_a_capture_is_not_disturbed(self):
        with ft.tag("kv"):
            cache = torch.ones(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cache.fill_(2.0)
            with self.assertRaisesRegex(forebay.Error, "capture"):
                ft.sleep("kv")
        self.assertFalse(ft.is_asleep("kv"))
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((cache.cpu() == 2).all()))

    def test_it_needs_the_replaced_allocator(self):
        code = """
import forebay.torch as ft
try:
    ft.sleep("kv")
except RuntimeError as error:
    assert "replace" in str(error)
    print("well")
"""
        run = run_python(code)
        self.assertEqual((run.stdout, run.returncode), ("well\n", 0), run.stderr)


if __name__ == "__main__":
    main()
