"""What the tests of PyTorch share: sizes, a run of another process, the closing of a file."""

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


def main() -> None:
    """Runs the file's tests, one line each."""
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2)
    unittest.main(testRunner=runner)
