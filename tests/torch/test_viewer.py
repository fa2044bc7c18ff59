"""A snapshot in PyTorch's viewer, in a browser.

Neither is fetched: ``TEST_VIEWER`` is a folder with PyTorch's ``MemoryViz.js`` (with the files that
it imports) and ``d3.js`` of d3 5, ``TEST_BROWSER`` a Chromium that runs without a screen. Without
them the test is skipped. Pictures are left beside the simulated driver's report.
"""

import gc
import http.server
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, main  # noqa: E402
from torch.cuda import _memory_viz  # noqa: E402

VIEWER, BROWSER = os.environ.get("TEST_VIEWER"), os.environ.get("TEST_BROWSER")
PICTURES = pathlib.Path(os.environ.get("FOREBAY_SIM_REPORT", "/tmp/x")).parent
# Goes through every event as a mouse does, and says in the page what was drawn, and what failed.
WALK = """
<script>
const told = {problems: [], drawn: []};
addEventListener("error", e => told.problems.push(e.message));
addEventListener("unhandledrejection", e => told.problems.push(String(e.reason)));
addEventListener("load", () => setTimeout(() => {
  const count = group => group ? group.querySelectorAll(":scope > rect").length : 0;
  told.polygons = document.querySelectorAll("polygon").length;
  const events = [...document.querySelectorAll("div > div > div > pre")];
  told.events = events.map(e => e.textContent);
  for (const event of events) {
    event.dispatchEvent(new MouseEvent("mousedown", {bubbles: true}));
    const groups = document.querySelectorAll("svg > g > g");
    told.drawn.push([count(groups[0]), count(groups[1])]);
  }
  const output = document.createElement("output");
  output.textContent = JSON.stringify(told);
  document.body.append(output);
}, 2000));
</script>
"""


def served(pages):
    """A server of the viewer's files, whose d3 is the one beside them, and of these pages."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            path = pathlib.Path(VIEWER) / name
            if name in pages:
                text = pages[name]
            elif name == "d3.mjs":
                text = 'import "./d3.js"; export default self.d3;'
            elif path.is_file():
                text = path.read_text()
                here = r'import \* as d3 from "[^"]+"'
                text = re.sub(here, 'import d3 from "./d3.mjs"', text)
                text = re.sub(r'import \{([^}]+)\} from "https:[^"]+"', r"const {\1} = d3", text)
            else:
                self.send_error(404)
                return
            self.send_response(200)
            kind = "text/html" if name in pages else "text/javascript"
            self.send_header("Content-Type", kind + "; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def browse(url, *flags):
    with tempfile.TemporaryDirectory() as profile:
        run = subprocess.run(
            [
                BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--virtual-time-budget=30000", "--window-size=1400,900",
                f"--user-data-dir={profile}", *flags, url,
            ],
            capture_output=True, text=True, timeout=120,
            env={k: v for k, v in os.environ.items() if not k.startswith("FOREBAY")},
        )  # fmt: skip
    if run.returncode != 0:
        raise RuntimeError(run.stderr[-2000:])
    return run.stdout


def history():
    """Blocks of two streams that come and go, one too many, and pages that are given back."""
    ft.record_memory_history()
    kept = [torch.empty(300_000 * (i + 1), dtype=torch.uint8, device="cuda") for i in range(12)]
    with torch.cuda.stream(torch.cuda.Stream()):
        kept += [torch.empty(1000, device="cuda") for _ in range(5)]
    del kept[::3]
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    try:
        torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    kept.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
    return kept


@unittest.skipUnless(VIEWER and BROWSER, "TEST_VIEWER and TEST_BROWSER name no viewer, no browser")
class Viewer(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        ft.replace()
        kept = history()
        cls.taken = ft.snapshot()
        del kept
        gc.collect()
        ft.record_memory_history(None)
        made = {
            "states.html": _memory_viz.segment_plot(cls.taken),
            "timeline.html": _memory_viz.trace_plot(cls.taken),
        }
        link = r'https://[^"]*/MemoryViz\.js'
        pages = {
            name: re.sub(link, "./MemoryViz.js", text).replace("<body>", "<body>" + WALK)
            for name, text in made.items()
        }
        cls.server = served(pages)
        cls.addClassCleanup(cls.server.shutdown)

    def shown(self, page):
        url = f"http://127.0.0.1:{self.server.server_address[1]}/{page}"
        text = browse(url, "--dump-dom")
        told = re.search(r"<output>(.*?)</output>", text, re.DOTALL)
        self.assertIsNotNone(told, text[:2000])
        picture = PICTURES / f"viewer-{page.split('.')[0]}.png"
        picture.unlink(missing_ok=True)
        browse(url, f"--screenshot={picture}")
        self.assertGreater(picture.stat().st_size, 5000)
        told = json.loads(told[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
        self.assertEqual(told["problems"], [])
        return told

    def test_each_moments_segments_and_blocks_are_drawn(self):
        told = self.shown("states.html")
        events = [
            e["action"] for e in self.taken["device_traces"][0] if e["action"] != "free_completed"
        ]
        self.assertEqual(len(told["events"]), len(events))
        segments = self.taken["segments"]
        blocks = [
            b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"
        ]  # fmt: skip
        self.assertGreater(len(blocks), 10)
        self.assertEqual(len(told["drawn"]), len(events))
        self.assertEqual(told["drawn"][-1], [len(segments), len(blocks)])
        live = 0
        for action, (_, drawn) in zip(events, told["drawn"]):
            live += {"alloc": 1, "free_requested": -1}.get(action, 0)
            self.assertEqual(drawn, live)

    def test_the_timeline_has_every_block(self):
        told = self.shown("timeline.html")
        count = sum(e["action"] == "alloc" for e in self.taken["device_traces"][0])
        # One more is for what is too small to be drawn by itself, one for the overview below.
        self.assertEqual(told["polygons"], count + 2)


if __name__ == "__main__":
    main()
