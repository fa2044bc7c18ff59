"""PyTorch unchanged under the preload library, on the simulated machine. Each program is a process
of its own; what reached the library is asked of it by its own function."""

import os
import unittest

from support import main, run_python

LIBRARY = os.environ["TEST_PRELOAD_LIBRARY"]
COUNT = """
import ctypes
def count(name):
    served, passed = ctypes.c_uint64(), ctypes.c_uint64()
    found = ctypes.CDLL(None).forebay_preload_count(
        name.encode(), ctypes.byref(served), ctypes.byref(passed))
    assert found == 0, name
    return served.value, passed.value
def allocations():
    names = ("cudaMalloc", "cuMemAlloc_v2")
    return tuple(sum(numbers) for numbers in zip(*map(count, names)))
import torch, forebay
"""


class Preloaded(unittest.TestCase):
    maxDiff = None

    def well(self, code, **variables):
        run = run_python(COUNT + code + '\nprint("well")', LD_PRELOAD=LIBRARY, **variables)
        self.assertEqual((run.stdout, run.stderr, run.returncode), ("well\n", "", 0))

    def test_pytorchs_segments_are_the_pools(self):
        self.well("""
values = torch.arange(1 << 20, dtype=torch.float32)
tensor = values.cuda()
assert torch.equal(tensor.cpu(), values)
assert forebay.owns(tensor.data_ptr())
small = torch.full((100,), 2.5, device="cuda")
assert forebay.owns(small.data_ptr()) and small.cpu().sum() == 250
assert allocations() == (2, 0), allocations()
assert torch.cuda.memory_reserved() == 22 << 20
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    small.fill_(1.0)
graph.replay()
torch.cuda.synchronize()
assert small.cpu().sum() == 100
del tensor, small, graph
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0
""")

    def test_both_at_once_are_refused(self):
        self.well("""
import forebay.torch
for _ in range(2):
    try:
        forebay.torch.replace()
    except RuntimeError as error:
        assert "LD_PRELOAD without replace(), or replace() without LD_PRELOAD" in str(error), error
    else:
        raise AssertionError("not refused")
assert not forebay.torch.is_replaced()
assert torch.full((100,), 2.5, device="cuda").cpu().sum() == 250
""")

    def test_without_pytorchs_cache_every_tensor_is_the_pools(self):
        self.well("""
torch.cuda.init()
start = allocations()[0]
kept = [torch.empty(1000 * (i + 1), device="cuda") for i in range(20)]
assert all(forebay.owns(t.data_ptr()) for t in kept)
assert allocations() == (start + 20, 0), (start, allocations())
""", PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    def test_expandable_segments_do_not_slip_past(self):
        # PyTorch takes their functions from cudaGetDriverEntryPointByVersion.
        self.well("""
before = count("cuMemCreate")[1]
torch.cuda.init()
runtime = ctypes.CDLL("libcudart.so.13")
other = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(other), ctypes.c_size_t(600 << 20)) == 0
assert forebay.owns(other.value) and runtime.cudaFree(other) == 0
torch.cuda.synchronize()
mapped = forebay.default_pool().stats().mapped_bytes
assert mapped >= 600 << 20, mapped
tensor = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
assert any(s["is_expandable"] for s in torch.cuda.memory_snapshot())
assert count("cuMemCreate")[1] > before, "PyTorch's own pages are not counted"
assert not forebay.owns(tensor.data_ptr())
assert forebay.default_pool().stats().mapped_bytes < 324 << 20, "what was idle was not given up"
tensor.fill_(3)
assert int(tensor[-1].cpu()) == 3
""", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


if __name__ == "__main__":
    main()
