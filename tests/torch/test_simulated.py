"""PyTorch's own allocator on the simulated machine, without Forebay: what the other files rest on."""

import gc
import unittest
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402
from support import MIB, main, run_python  # noqa: E402


class Simulated(unittest.TestCase):
    maxDiff = None

    def tearDown(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def test_the_device_is_there(self):
        self.assertTrue(torch.cuda.is_available())
        self.assertEqual(torch.cuda.get_device_capability(), (9, 0))
        properties = torch.cuda.get_device_properties(0)
        self.assertEqual(properties.total_memory, torch.cuda.mem_get_info()[1])

    def test_allocations_are_counted_and_given_back(self):
        tensor = torch.empty(MIB, device="cuda")
        self.assertEqual(torch.cuda.memory_allocated(), 4 * MIB)
        del tensor
        self.assertEqual(torch.cuda.memory_allocated(), 0)
        self.assertGreater(torch.cuda.memory_reserved(), 0)
        torch.cuda.empty_cache()
        self.assertEqual(torch.cuda.memory_reserved(), 0)

    def test_copies_and_fills_have_their_contents(self):
        values = torch.arange(1000, dtype=torch.float32)
        self.assertTrue(torch.equal(values.cuda().clone().cpu(), values))
        for dtype, value in [
            (torch.float32, 7.5), (torch.float64, -2.25), (torch.int64, 1 << 40),
            (torch.int16, 515), (torch.bool, True), (torch.bfloat16, 3.0), (torch.uint8, 200),
        ]:  # fmt: skip
            filled = torch.full((1003,), value, dtype=dtype, device="cuda").cpu()
            self.assertTrue(torch.equal(filled, torch.full((1003,), value, dtype=dtype)), dtype)
        pinned = values.pin_memory().to("cuda", non_blocking=True)
        self.assertTrue(torch.equal(pinned.cpu(), values))

    def test_a_spin_keeps_a_stream_busy(self):
        stream = torch.cuda.Stream()
        tensor = torch.empty(MIB, device="cuda")
        address = tensor.data_ptr()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)
            tensor.record_stream(stream)
        del tensor
        other = torch.empty(MIB, device="cuda")
        self.assertNotEqual(other.data_ptr(), address, "reused before the event")
        self.assertFalse(stream.query())
        stream.synchronize()
        self.assertTrue(stream.query())
        again = [torch.empty(MIB, device="cuda") for _ in range(2)]
        self.assertIn(address, [t.data_ptr() for t in again])

    def test_a_captured_graph_is_replayed(self):
        tensor = torch.zeros(100, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.fill_(4.0)
            copy = torch.empty_like(tensor)
            copy.copy_(tensor)
        torch.cuda.synchronize()
        self.assertEqual(tensor.cpu().sum(), 0)
        graph.replay()
        torch.cuda.synchronize()
        self.assertEqual(copy.cpu().sum(), 400)

    def test_products_find_their_memory_and_compute_nothing(self):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            layer = torch.nn.Linear(64, 32, dtype=dtype).cuda()
            out = layer(torch.zeros(8, 64, dtype=dtype, device="cuda"))
            out.sum().backward()
            self.assertEqual(layer.weight.grad.shape, (32, 64))
            torch.zeros(4, 8, 16, dtype=dtype, device="cuda").bmm(
                torch.zeros(4, 16, 8, dtype=dtype, device="cuda")
            )
        torch.cuda.synchronize()

    def test_a_product_of_dead_memory_is_refused(self):
        code = """
import ctypes, torch
def product(*at):
    return blas.cublasSgemm_v2(handle, 0, 0, 64, 64, 64, one, *(
        word for address in at[:2] for word in (ctypes.c_void_p(address), 64)
    ), one, ctypes.c_void_p(at[2]), 64)
blas = ctypes.CDLL("libcublas.so.13")
handle, one = ctypes.c_void_p(), ctypes.byref(ctypes.c_float(1))
assert blas.cublasCreate_v2(ctypes.byref(handle)) == 0
live = torch.empty(64 * 64, device="cuda").data_ptr()
end = live + (2 << 20)
assert product(live, live, live) == 0
assert product(live, end - 64, live) == 7 and product(live, live, 0x1000) == 7
print("well")
"""
        run = run_python(code)
        self.assertEqual((run.stdout, run.returncode), ("well\n", 0), run.stderr)
        self.assertEqual(run.stderr.count("is no live memory"), 2, run.stderr)

    def test_too_much_is_an_out_of_memory_error(self):
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(200 << 30, dtype=torch.uint8, device="cuda")

    def test_expandable_segments_grow(self):
        code = """
import torch
a = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
b = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
assert b.data_ptr() == a.data_ptr() + (30 << 20)
assert any(s["is_expandable"] for s in torch.cuda.memory_snapshot())
del a, b
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0
print("well")
"""
        run = run_python(code, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0))

    def test_two_devices_copy_between_them(self):
        code = """
import torch
a = torch.arange(1000).to("cuda:0")
b = a.to("cuda:1")
assert b.device.index == 1 and torch.equal(b.cpu(), torch.arange(1000))
print("well")
"""
        run = run_python(code, FOREBAY_SIM_DEVICES="2")
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0))


if __name__ == "__main__":
    main()
