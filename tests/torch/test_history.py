"""Snapshots and histories of a replaced allocator, judged by PyTorch's own viewer."""

import gc
import os
import pickle
import pickletools
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

warnings.simplefilter("ignore")

import forebay.torch as ft  # noqa: E402
import torch  # noqa: E402
from support import MIB, main  # noqa: E402

ft.replace()
VIEWER = os.path.join(os.path.dirname(torch.__file__), "cuda", "_memory_viz.py")
# What the viewer's unpickler knows (torch/utils/viz/MemoryViz.js).
OPCODES = set(
    "PROTO MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT "
    "SHORT_BINUNICODE BINUNICODE EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "APPEND APPENDS SETITEM SETITEMS BINPUT LONG_BINPUT BINGET LONG_BINGET".split()
)


def allocate_here(bytes):
    return torch.empty(bytes, dtype=torch.uint8, device="cuda")


def actions(taken):
    return [event["action"] for event in taken["device_traces"][0]]


class History(unittest.TestCase):
    def setUp(self):
        ft.record_memory_history()

    def tearDown(self):
        ft.record_memory_history(None)
        gc.collect()

    def test_events_have_the_calling_codes_stack(self):
        tensor = allocate_here(3 * MIB)
        address = tensor.data_ptr()
        del tensor
        taken = ft.snapshot()
        events = [e for e in taken["device_traces"][0] if not e["action"].startswith("segment")]
        self.assertEqual(
            [(e["action"], e["addr"], e["size"]) for e in events],
            [(a, address, 3 * MIB) for a in ("alloc", "free_requested", "free_completed")],
        )
        frames = events[0]["frames"]
        self.assertEqual(frames[0]["name"], "allocate_here")
        self.assertEqual(frames[0]["filename"], __file__)
        self.assertEqual(frames[1]["name"], self._testMethodName)
        self.assertLessEqual(events[0]["time_us"], events[2]["time_us"])

    def test_segments_are_tiled_by_blocks(self):
        kept = [allocate_here(n) for n in (100, 70_000, 3 * MIB, 5 * MIB + 1)]
        self.assertIs(ft.snapshot()["allocator_settings"]["expandable_segments"], False)
        for segment in ft.snapshot()["segments"]:
            at = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], at)
                at += block["size"]
            self.assertEqual(at, segment["address"] + segment["total_size"])
        live = {
            b["address"]: b
            for s in ft.snapshot()["segments"]
            for b in s["blocks"]
            if b["state"] == "active_allocated"
        }
        for tensor in kept:
            block = live[tensor.data_ptr()]
            self.assertEqual(block["requested_size"], tensor.numel())
            self.assertEqual(block["frames"][0]["name"], "allocate_here")

    def test_the_viewer_reads_what_is_written(self):
        kept = [allocate_here(100_000 * (i + 1)) for i in range(20)]
        del kept[::2]
        gone = allocate_here(64 * MIB)
        del gone
        torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "taken.pickle")
            ft.dump_snapshot(path)
            with open(path, "rb") as file:
                text = file.read()
            known = {op.name for op, _, _ in pickletools.genops(text)}
            self.assertEqual(known - OPCODES, set())
            taken = pickle.loads(text)
            self.judge_lookups(taken)
            environment = {**os.environ, "PYTHONPATH": ""}
            for command in ("stats", "trace"):
                run = subprocess.run(
                    [sys.executable, VIEWER, command, path], capture_output=True, text=True,
                    env=environment,
                )  # fmt: skip
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertTrue(run.stdout)
            for command in ("trace_plot", "segment_plot"):
                run = subprocess.run(
                    [sys.executable, VIEWER, command, path, "-o", os.path.join(folder, "p.html")],
                    capture_output=True, text=True, env=environment,
                )  # fmt: skip
                self.assertEqual(run.returncode, 0, run.stderr)

    def judge_lookups(self, taken):
        """Backwards, as the viewer goes: each block lies in a segment that is there then."""
        there = {(s["address"], s["total_size"]) for s in taken["segments"]}
        for event in reversed(taken["device_traces"][0]):
            place = (event.get("addr"), event["size"])
            if event["action"] == "segment_free":
                there.add(place)
            elif event["action"] == "segment_alloc":
                there.remove(place)
            elif event["action"] in ("alloc", "free_requested", "free_completed"):
                first, last = event["addr"], event["addr"] + event["size"]
                inside = any(a <= first and last <= a + n for a, n in there)
                self.assertTrue(inside, event)
        self.assertEqual(there, {(s["address"], s["total_size"]) for s in taken["segments"]})

    def test_a_failure_is_an_event(self):
        with self.assertRaises(torch.OutOfMemoryError):
            allocate_here(200 << 30)
        event = ft.snapshot()["device_traces"][0][-1]
        self.assertEqual((event["action"], event["size"]), ("oom", 200 << 30))
        self.assertGreater(event["device_free"], 0)

    def test_the_newest_events_are_kept(self):
        ft.record_memory_history(max_entries=10)
        for _ in range(20):
            allocate_here(1000)
        plain = [a for a in actions(ft.snapshot()) if not a.startswith("segment")]
        self.assertEqual(len(plain), 10)
        self.assertEqual(plain[-1], "free_completed")

    def test_only_live_blocks_where_only_the_state_is_wanted(self):
        ft.record_memory_history("state")
        kept = allocate_here(3 * MIB)
        taken = ft.snapshot()
        self.assertEqual(actions(taken), [])
        frames = [
            b["frames"] for s in taken["segments"] for b in s["blocks"]
            if b["address"] == kept.data_ptr()
        ]  # fmt: skip
        self.assertEqual(frames[0][0]["name"], "allocate_here")

    def test_a_history_that_ended_names_no_later_blocks(self):
        first = allocate_here(600_000)
        address = first.data_ptr()
        ft.record_memory_history(None)
        del first
        later = torch.empty(590_000, dtype=torch.uint8, device="cuda")
        self.assertEqual(later.data_ptr(), address)
        taken = ft.snapshot()
        self.assertEqual(actions(taken).count("alloc"), 1, "what was recorded stays")
        (block,) = [
            b for s in taken["segments"] for b in s["blocks"] if b["address"] == address
        ]  # fmt: skip
        self.assertEqual(block["frames"], [])
        self.assertGreaterEqual(block["size"], 590_000)
        self.assertNotEqual(block["requested_size"], 600_000)

    def test_stacks_are_kept_with_what_is_wished(self):
        def made_and_dropped(context):
            ft.record_memory_history(context=context, clear_history=True)
            kept = allocate_here(3 * MIB)

            def drop_here():
                nonlocal kept
                del kept

            taken = ft.snapshot()
            block = [
                b for s in taken["segments"] for b in s["blocks"]
                if b["address"] == kept.data_ptr()
            ][0]  # fmt: skip
            drop_here()
            events = ft.snapshot()["device_traces"][0]
            with_names = {
                e["action"]: [f["name"] for f in e["frames"]] for e in events if e["size"] == 3 * MIB
            }
            return block["frames"] != [], [
                "allocate_here" in with_names["alloc"],
                "allocate_here" in with_names["free_completed"],
                "drop_here" in with_names["free_completed"],
            ]

        self.assertEqual(made_and_dropped("all"), (True, [True, False, True]))
        self.assertEqual(made_and_dropped("alloc"), (True, [True, True, False]))
        self.assertEqual(made_and_dropped("state"), (True, [False, False, False]))
        self.assertEqual(made_and_dropped(None), (False, [False, False, False]))

    def test_events_that_are_not_wished_are_left_out(self):
        for skipped in (["free_requested"], ["alloc"], ["segment_alloc", "segment_free"], []):
            ft.record_memory_history(skip_actions=skipped, clear_history=True)
            allocate_here(3 * MIB)
            wanted = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}
            torch.cuda.empty_cache()
            self.assertEqual(set(actions(ft.snapshot())), wanted - set(skipped))

    def test_a_history_goes_on_when_it_is_asked_for_again(self):
        allocate_here(3 * MIB)
        ft.record_memory_history(context=None)
        allocate_here(3 * MIB)
        self.assertEqual(actions(ft.snapshot()).count("alloc"), 2)
        ft.record_memory_history(clear_history=True)
        self.assertEqual(actions(ft.snapshot()).count("alloc"), 0)

    def test_bad_wishes_are_told(self):
        with self.assertRaises(ValueError):
            ft.record_memory_history(context="everything")
        with self.assertRaises(ValueError):
            ft.record_memory_history("everything")
        with self.assertRaises(ValueError):
            ft.record_memory_history(max_entries=0)

    def test_an_exception_on_its_way_is_kept(self):
        def failing():
            yield allocate_here(1000)
            raise KeyError("on its way")

        # The half-made list dies, and the tensor in it, with the exception pending.
        with self.assertRaisesRegex(KeyError, "on its way"):
            list(failing())
        self.assertEqual(actions(ft.snapshot())[-2:].count("free_completed"), 1)

    def test_threads_are_recorded(self):
        def work():
            for _ in range(100):
                allocate_here(1000)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(actions(ft.snapshot()).count("alloc"), 400)


if __name__ == "__main__":
    main()
