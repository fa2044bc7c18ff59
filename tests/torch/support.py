"""What the tests of PyTorch share: sizes, a run of another process, a gate, the closing of a file."""

import ctypes
import os
import subprocess
import sys
import unittest

MIB = 1 << 20


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs a program of its own, with this process's environment and ``variables``. Its report
    goes nowhere: what it misuses is printed at its end."""
    environment = {**os.environ, **variables}
    environment.pop("FOREBAY_SIM_REPORT", None)
    folder = os.path.dirname(__file__)
    environment["PYTHONPATH"] = folder + os.pathsep + environment.get("PYTHONPATH", "")
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment, capture_output=True, text=True, timeout=150,
    )  # fmt: skip


class Gate:
    """Keeps streams busy until it is opened, however slow the machine is."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None)
        self.semaphore = ctypes.create_string_buffer(64)  # a sem_t has 32 bytes
        assert self.libc.sem_init(self.semaphore, 0, 0) == 0
        self.waiting = 0

    def close(self, stream) -> None:
        """What is queued on this stream from now on waits."""
        runtime = ctypes.CDLL("libcudart.so.13")
        wait = ctypes.cast(self.libc.sem_wait, ctypes.c_void_p)
        to = ctypes.c_void_p(stream.cuda_stream)
        assert runtime.cudaLaunchHostFunc(to, wait, self.semaphore) == 0
        self.waiting += 1

    def open(self) -> None:
        """Lets everything go on."""
        while self.waiting:
            self.waiting -= 1
            assert self.libc.sem_post(self.semaphore) == 0


def main() -> None:
    """Runs the file's tests, one line each."""
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2)
    unittest.main(testRunner=runner)
