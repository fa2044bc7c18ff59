"""What a tensor costs: ``torch.empty`` on the device and on the CPU, taking turns.

``empty.py native|replaced`` prints ``DEVICE BYTES LEAST MEDIAN`` lines: nanoseconds of thread CPU
time for a tensor made and dropped, the loop included. ``replaced`` is Forebay in place of PyTorch's
allocator. The device is the simulated one; nothing touches its memory.
"""

import statistics
import sys
import time
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402

COUNT = 5_000
REPETITIONS = 9
# float32 elements: a small tensor, and one of a block of its own.
ELEMENTS = (1024, 1 << 20)
# Tensors of many sizes that stay alive beside, as a model's do.
BESIDE = 1_000


def once(device, elements):
    empty = torch.empty
    began = time.thread_time_ns()
    for _ in range(COUNT):
        empty(elements, device=device)
    return (time.thread_time_ns() - began) / COUNT


def main():
    if sys.argv[1] == "replaced":
        import forebay.torch

        forebay.torch.replace()
    devices = {"cuda": torch.device("cuda"), "cpu": torch.device("cpu")}
    kept = [torch.empty(64 << (i % 12), device="cuda") for i in range(BESIDE)]
    for elements in ELEMENTS:
        samples = {name: [] for name in devices}
        for repetition in range(REPETITIONS + 1):
            for name, device in devices.items():
                nanoseconds = once(device, elements)
                if repetition > 0:
                    samples[name].append(nanoseconds)
        for name, all_of_it in samples.items():
            least, median = min(all_of_it), statistics.median(all_of_it)
            print(name, elements * 4, f"{least:.1f} {median:.1f}")
    del kept


main()
