"""What people complain of in PyTorch's allocator, as far as a pool can answer it. Each test names
where it was told. ``native`` runs show the complaint itself, where this PyTorch still has it."""

import ctypes
import gc
import itertools
import os
import threading
import unittest
import warnings

# How long a machine may stall is no part of these tests.
os.environ["FOREBAY_OOM_WAIT_MS"] = "60s"
warnings.simplefilter("ignore")

import forebay  # noqa: E402
import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, Gate, main, run_python  # noqa: E402

ft.replace()
BEGIN = "import sys, gc, torch, forebay, forebay.torch as ft\nMIB = 1 << 20\n"


def empty(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def place(tensor):
    """The bytes that a tensor lies on."""
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size())


def meet(a, b):
    return a.start < b.stop and b.start < a.stop


class Replaced(unittest.TestCase):
    def setUp(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual((ft.memory_allocated(), ft.memory_reserved()), (0, 0))
        self.gate = Gate()

    def tearDown(self):
        self.gate.open()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual((ft.memory_allocated(), ft.memory_reserved()), (0, 0))
        self.assertEqual(ft.device_pool().leaks(), [])

    def test_a_block_is_found_once_its_events_are_done(self):
        # https://github.com/pytorch/pytorch/issues/189504
        # https://github.com/pytorch/pytorch/issues/19219
        side = torch.cuda.Stream()
        tensor = empty(700)
        before = place(tensor)
        self.gate.close(side)
        tensor.record_stream(side)
        del tensor
        opener = threading.Timer(0.2, self.gate.open)
        opener.start()
        again = empty(700)
        opener.join()
        self.assertTrue(meet(place(again), before))
        self.assertTrue(side.query(), "handed out while the other stream used it")

    def test_the_first_stream_to_be_done_is_not_held_up_by_the_others(self):
        # https://github.com/pytorch/pytorch/issues/71616
        slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
        first, second, _rest = empty(200), empty(400), empty(300)
        places = place(first), place(second)
        self.gate.close(slow)
        first.record_stream(slow)
        second.record_stream(quick)
        del first, second
        again = empty(400)
        self.assertTrue(meet(place(again), places[1]))
        self.assertFalse(meet(place(again), places[0]))
        self.assertFalse(slow.query())
        self.gate.open()

    def test_memory_used_by_another_stream_is_kept_no_longer_than_it_works(self):
        # https://github.com/pytorch/pytorch/issues/147168
        # https://github.com/pytorch/pytorch/issues/124260
        # https://github.com/pytorch/pytorch/issues/139234
        side = torch.cuda.Stream()
        for _ in range(30):
            tensor = empty(100)
            tensor.record_stream(side)
            with torch.cuda.stream(side):
                tensor[:100].fill_(1)
            del tensor
            side.synchronize()
        self.assertLessEqual(ft.memory_reserved(), 102 * MIB)

    def test_frees_are_seen_without_another_request(self):
        # https://github.com/pytorch/pytorch/issues/181191
        side = torch.cuda.Stream()
        tensor = empty(100)
        self.gate.close(side)
        tensor.record_stream(side)
        del tensor
        self.assertEqual(ft.device_pool().stats().pending_bytes, 100 * MIB)
        self.gate.open()
        side.synchronize()
        torch.cuda.empty_cache()
        self.assertEqual(ft.memory_reserved(), 0)

    def test_steps_that_outrun_the_other_stream_wait_for_it(self):
        # https://github.com/pytorch/torchtitan/issues/735
        side, ooms = torch.cuda.Stream(), ft.memory_stats()["num_ooms"]
        for _ in range(40):
            tensor = empty(100)
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                tensor[:100].fill_(1)
            tensor.record_stream(side)
            del tensor
        self.assertLessEqual(ft.memory_reserved(), 1024 * MIB)
        self.assertEqual(ft.memory_stats()["num_ooms"], ooms)

    def test_a_stream_that_is_gone_does_no_harm(self):
        # https://github.com/pytorch/pytorch/pull/66941
        runtime = ctypes.CDLL("libcudart.so.13")
        handle = ctypes.c_void_p()
        self.assertEqual(runtime.cudaStreamCreate(ctypes.byref(handle)), 0)
        outer = torch.cuda.ExternalStream(handle.value)
        with torch.cuda.stream(outer):
            theirs = empty(100)
            theirs[:100].fill_(3)
        ours = empty(100)
        ours.record_stream(outer)
        torch.cuda.synchronize()
        del theirs
        ft.retire_stream(outer)
        self.assertEqual(runtime.cudaStreamDestroy(handle), 0)
        del ours
        self.assertEqual(int(torch.full((5,), 2.0, device="cuda").cpu().sum()), 10)

    def test_a_map_that_fails_half_way_changes_nothing(self):
        # https://github.com/pytorch/pytorch/issues/188008
        driver = ctypes.CDLL("libcuda.so.1")
        kept = torch.full((3 * MIB,), 5, dtype=torch.uint8, device="cuda")
        places = [("cuMemCreate", at) for at in (1, 3, 6)] + [("cuMemMap", at) for at in (1, 3, 6)]
        for (call, at), code in itertools.product([*places, ("cuMemSetAccess", 1)], (2, 1)):
            torch.cuda.empty_cache()
            before = ft.device_pool().stats()
            script = f"fail {call} with {code} always from #{at}"
            self.assertEqual(driver.forebay_sim_script(script.encode()), 0)
            try:
                error = torch.OutOfMemoryError if code == 2 else RuntimeError
                with self.assertRaises(error, msg=script):
                    empty(64)
            finally:
                self.assertEqual(driver.forebay_sim_script(b""), 0)
            now = ft.device_pool().stats()
            self.assertEqual(now.live_bytes, before.live_bytes, script)
            self.assertTrue(bool((kept.cpu() == 5).all()), script)
            again = empty(64)
            again.fill_(7)
            self.assertEqual(int(again[-1].cpu()), 7, script)
            del again

    def test_no_tensor_without_memory(self):
        # https://github.com/rapidsai/rmm/issues/1362 and the docstring of CUDAPluggableAllocator
        # leave open what NULL means; PyTorch itself takes it for a block.
        before = ft.memory_stats()["num_ooms"]
        for bytes in (2000 * MIB, 1 << 40, (1 << 60) + 1, (1 << 63) - 1):
            with self.assertRaises(torch.OutOfMemoryError):
                torch.empty(bytes, dtype=torch.uint8, device="cuda")
        self.assertEqual(ft.memory_stats()["num_ooms"], before + 4)
        self.assertEqual(torch.empty(0, device="cuda").data_ptr(), 0)

    def test_a_capture_that_fails_keeps_no_memory(self):
        # https://github.com/pytorch/pytorch/issues/188439
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with self.assertRaises(KeyError):
                with torch.cuda.graph(graph):
                    inner = empty(100)
                    inner[:100].fill_(1)
                    del inner
                    raise KeyError
            del graph
            gc.collect()

    def test_gradients_made_by_other_threads_are_the_pools_too(self):
        # https://github.com/vllm-project/vllm/pull/49151 and PyTorch's documentation: a MemPool is
        # for the thread that uses it, and a backward pass has others.
        layer = torch.nn.Linear(64, 32).cuda()
        threads = []
        layer.weight.register_post_accumulate_grad_hook(
            lambda p: threads.append(threading.get_ident())
        )
        layer(torch.zeros(8, 64, device="cuda")).sum().backward()
        self.assertNotEqual(threads, [threading.get_ident()])
        self.assertTrue(forebay.owns(layer.weight.grad.data_ptr()))
        del layer
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()


# On a device of 256 MiB. Of each segment of 20 MiB a quarter is live: 180 MiB are free, in gaps
# of 15.
COMB = """
blocks = [torch.full((5 * MIB,), i, dtype=torch.uint8, device="cuda") for i in range(48)]
blocks = blocks[::4]
wide = torch.empty(160 * MIB, dtype=torch.uint8, device="cuda")
wide.fill_(255)
assert all(bool((b.cpu() == 4 * i).all()) for i, b in enumerate(blocks))
"""
# Of a segment of 224 MiB some 10 are live, a little of it every 30.
SMALL = """
torch.empty(224 * MIB, dtype=torch.uint8, device="cuda")
kept, between = [], []
for i in range(7):
    kept.append(torch.full((3 * MIB // 2,), i, dtype=torch.uint8, device="cuda"))
    between.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
del between
wide = torch.empty(212 * MIB, dtype=torch.uint8, device="cuda")
wide.fill_(255)
assert all(bool((b.cpu() == i).all()) for i, b in enumerate(kept))
"""
# A segment of 150 MiB, idle, and a request for more than the device has besides it.
LARGER = """
torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")
torch.empty(175 * MIB, dtype=torch.uint8, device="cuda")
"""
WAYS = {"native": "", "pool": "ft.use()\n", "replace": "ft.replace()\n"}


class Processes(unittest.TestCase):
    maxDiff = None

    def well(self, code, way="replace", **variables):
        variables.setdefault("FOREBAY_SIM_MEMORY", "256MiB")
        run = run_python(BEGIN + WAYS[way] + code + '\nprint("well")', **variables)
        # PyTorch tells of each refusal of the driver's, even where it goes on.
        told = [line for line in run.stderr.splitlines() if "failed with OOM on device" not in line]
        self.assertEqual((run.stdout, told, run.returncode), ("well\n", [], 0), code)

    def refused(self, code, way):
        run = run_python(BEGIN + WAYS[way] + code, FOREBAY_SIM_MEMORY="256MiB")
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("OutOfMemoryError", run.stderr.splitlines()[-1])

    def test_gaps_between_live_blocks_serve_a_large_one(self):
        # https://github.com/pytorch/pytorch/issues/16417
        # https://github.com/pytorch/pytorch/issues/1529
        # https://github.com/meta-pytorch/torchrec/pull/4584
        self.refused(COMB, "native")
        self.well(COMB)

    def test_small_blocks_do_not_pin_large_memory(self):
        # https://github.com/pytorch/pytorch/issues/35901
        # https://github.com/pytorch/pytorch/pull/44742
        self.refused(SMALL, "native")
        self.well(SMALL)

    def test_idle_memory_serves_a_larger_request(self):
        # https://github.com/pytorch/pytorch/issues/159674
        # https://github.com/vllm-project/vllm/issues/43951
        self.well(LARGER, "native")
        self.well(LARGER)
        # PyTorch releases nothing while a MemPool is in use: no answer of a pool behind it helps.
        self.refused(LARGER, "pool")

    def test_the_cache_is_emptied_with_another_device_current(self):
        # https://github.com/pytorch/pytorch/issues/196258
        for way in ("pool", "replace"):
            self.well("""
side = torch.cuda.Stream(0)
kept = torch.full((MIB,), 5, dtype=torch.uint8, device="cuda:0")
with torch.cuda.device(0), torch.cuda.stream(side):
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:0")
    torch.cuda._sleep(200_000_000)
    tensor.fill_(7)
    del tensor
if ft.is_replaced() is False:
    ft._hooks._end()
torch.cuda.set_device(1)
other = torch.zeros(100, device="cuda:1")
torch.cuda.empty_cache()
assert side.query(), "memory went while its stream worked"
assert torch.cuda.current_device() == 1
assert ft.device_pool(0).stats().mapped_bytes <= 2 * MIB, ft.device_pool(0).stats()
assert bool((kept.cpu() == 5).all()) and float(other.cpu().sum()) == 0
del kept
""", way, FOREBAY_SIM_DEVICES="2")

    def test_an_end_in_any_order(self):
        # https://github.com/vllm-project/vllm/issues/16993
        # https://github.com/vllm-project/vllm/pull/46050
        # https://github.com/vllm-project/vllm/pull/23477
        # https://github.com/pytorch/pytorch/issues/145168
        self.well("""
import itertools
names = ("pool", "tensor", "graph")
for order in itertools.permutations(names):
    made = {"pool": ft.make_pool(), "graph": torch.cuda.CUDAGraph()}
    with torch.cuda.use_mem_pool(made["pool"]):
        made["tensor"] = torch.full((MIB,), 3, dtype=torch.uint8, device="cuda")
    with torch.cuda.graph(made["graph"], pool=ft.make_pool().id):
        made["tensor"].fill_(4)
    for at, name in enumerate(order):
        del made[name]
        gc.collect()
        if at % 2:
            torch.cuda.empty_cache()
    torch.cuda.empty_cache()
    stats = ft.device_pool(0).stats()
    assert (stats.live_blocks, stats.mapped_bytes) == (0, 0), (order, stats)
""", "native")

    def test_what_is_alive_at_the_end_of_the_interpreter(self):
        # As above, and https://github.com/pytorch/pytorch/issues/146431
        alive = """
sys.first = torch.zeros(1000, device="cuda")
class Holder: pass
cycle = Holder()
cycle.itself, cycle.tensor = cycle, torch.zeros(1000, device="cuda")
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    side = torch.zeros(1000, device="cuda")
side.record_stream(torch.cuda.default_stream())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inner = torch.zeros(1000, device="cuda")
"""
        inside = """
pool = ft.make_pool()
sys.pool = ft.make_pool()
with torch.cuda.use_mem_pool(pool):
    sys.second = torch.zeros(1000, device="cuda")
with torch.cuda.use_mem_pool(sys.pool):
    third = torch.zeros(1000, device="cuda")
"""
        self.well(alive + inside, "native")
        self.well(alive, "pool")
        self.well(alive)

    def test_a_history_may_be_asked_for_before_anything_else(self):
        # https://github.com/pytorch/pytorch/issues/102796
        # https://github.com/pytorch/pytorch/issues/174044
        # https://github.com/pytorch/pytorch/issues/153571
        self.well("""
ft.record_memory_history()
assert ft.snapshot()["segments"] == []
torch.zeros(100, device="cuda")
ft.record_memory_history(None)
told = len(ft.snapshot()["device_traces"][0])
assert told > 2
torch.zeros(100, device="cuda")
assert len(ft.snapshot()["device_traces"][0]) == told
""")


if __name__ == "__main__":
    main()
