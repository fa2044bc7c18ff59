"""A snapshot in PyTorch's viewer, in a browser.

``TEST_VIEWER`` is PyTorch's ``MemoryViz.js``, which its wheel does not have and no registry either,
or a folder with it; without it the tests are skipped. ``TEST_D3`` is ``d3.js`` of d3 5 and
``TEST_BROWSER`` a Chromium that runs without a screen; ``cargo xtask test torch`` fetches both.
Pictures are left beside the simulated driver's report.
"""

import gc
import http.server
import json
import os
import pathlib
import re
import threading
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from browser import Browser  # noqa: E402
from support import MIB, main  # noqa: E402
from torch.cuda import _memory_viz  # noqa: E402

VIEWER, D3, BROWSER = (os.environ.get(f"TEST_{name}") for name in ("VIEWER", "D3", "BROWSER"))
PICTURES = pathlib.Path(os.environ.get("FOREBAY_SIM_REPORT", "/tmp/x")).parent
# Goes through every event as a mouse does, and says in the page what was drawn, and what failed.
WALK = """
<script>
const told = {problems: [], drawn: []};
addEventListener("error", e => told.problems.push(e.message));
addEventListener("unhandledrejection", e => told.problems.push(String(e.reason)));
const walk = () => {
  const count = group => group ? group.querySelectorAll(":scope > rect").length : 0;
  told.polygons = document.querySelectorAll("polygon").length;
  const events = [...document.querySelectorAll("div > div > div > pre")];
  told.events = events.map(e => e.textContent);
  for (const event of events) {
    event.dispatchEvent(new MouseEvent("mousedown", {bubbles: true}));
    const groups = document.querySelectorAll("svg > g > g");
    told.drawn.push([count(groups[0]), count(groups[1])]);
  }
  window.told = JSON.stringify(told);
};
addEventListener("load", () => setTimeout(walk, 2000));
</script>
"""


def served(pages):
    """A server of the viewer's file, whose d3 is the one beside it, and of these pages."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            path = {"MemoryViz.js": pathlib.Path(VIEWER), "d3.js": pathlib.Path(D3)}.get(name)
            if name in pages:
                text = pages[name]
            elif name == "d3.mjs":
                text = 'import "./d3.js"; export default self.d3;'
            elif path is not None:
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


@unittest.skipUnless(
    VIEWER and D3 and BROWSER, "TEST_VIEWER names no MemoryViz.js of PyTorch's, or a browser is missing"
)
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
        cls.browser = Browser(BROWSER)
        cls.addClassCleanup(cls.browser.close)

    def shown(self, page):
        url = f"http://127.0.0.1:{self.server.server_address[1]}/{page}"
        self.browser.call("Page.navigate", url=url)
        there = f"location.pathname === '/{page}' ? window.told : null"
        told = json.loads(self.browser.waited(there))
        picture = PICTURES / f"viewer-{page.split('.')[0]}.png"
        picture.write_bytes(self.browser.picture())
        self.assertGreater(picture.stat().st_size, 5000)
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
