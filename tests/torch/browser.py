"""A Chromium without a screen, spoken to over two pipes in its protocol for developers' tools.

The flags ``--dump-dom`` and ``--screenshot`` would do for one page, but not every build of its
shell has them.
"""

import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time

SECONDS = 120
# The browser reads at descriptor 3 and writes at 4, whatever the pipes' numbers are here.
START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One browser with one page, which :meth:`close` ends."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory()
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--window-size=1400,900", "--remote-debugging-pipe",
            f"--user-data-dir={self.profile.name}", "about:blank",
        ]  # fmt: skip
        read, self.to = os.pipe()
        self.back, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(read), str(write), program, *flags],
            pass_fds=(read, write), stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY", "LD_"))},
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self.calls, self.left, self.session = 0, b"", None
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        page = pages[0]["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]

    def call(self, method: str, **params):
        """What the browser answers; what it tells unasked is passed over."""
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            one, end, rest = self.left.partition(b"\0")
            if not end:
                self.left += self.more(until)
                continue
            self.left = rest
            answer = json.loads(one)
            if answer.get("id") == self.calls:
                if "result" not in answer:
                    raise RuntimeError(f"{method}: {answer.get('error')}")
                return answer["result"]

    def more(self, until: float) -> bytes:
        ready, _, _ = select.select([self.back], [], [], max(0.0, until - time.monotonic()))
        read = os.read(self.back, 1 << 16) if ready else b""
        if not read:
            raise RuntimeError("the browser is gone" if ready else "the browser does not answer")
        return read

    def value(self, expression: str):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def waited(self, expression: str):
        """Its value once it has one."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            value = self.value(expression)
            if value is not None:
                return value
            time.sleep(0.05)
        raise RuntimeError(f"no value after {SECONDS} s: {expression}")

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.profile.cleanup()
