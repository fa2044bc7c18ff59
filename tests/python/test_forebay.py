"""The Python package on the host backend. Needs nothing but the standard library."""

import ctypes
import gc
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import forebay
from forebay import _library

MIB = 1 << 20


class Blocks(unittest.TestCase):
    def test_a_block_is_memory_and_is_freed_at_the_end_of_the_with(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            with pool.alloc(1000) as block:
                ctypes.memset(block.address, 0x5A, 1000)
                self.assertEqual(ctypes.string_at(block.address, 1000), b"\x5a" * 1000)
                self.assertEqual(block.address % 256, 0)
                self.assertEqual(block.usable(), 1024)
                self.assertTrue(forebay.owns(block.address))
                self.assertEqual(pool.stats().live_bytes, 1024)
            self.assertEqual(pool.stats().live_bytes, 0)
            self.assertEqual(block.address, 0)

    def test_a_dropped_block_is_freed(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            block = pool.alloc(MIB)
            self.assertEqual(pool.stats().live_blocks, 1)
            del block
            gc.collect()
            self.assertEqual(pool.stats().live_blocks, 0)

    def test_alignment_is_kept_and_a_bad_one_refused(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            self.assertEqual(pool.alloc(4096, alignment=2 * MIB).address % (2 * MIB), 0)
            with self.assertRaises(forebay.Error) as caught:
                pool.alloc(4096, alignment=3)
            self.assertEqual(caught.exception.name, "FOREBAY_ERROR_INVALID_ARGUMENT")

    def test_zero_bytes_and_malloc(self):
        self.assertEqual(forebay.malloc(0).address, 0)
        with forebay.malloc(4096) as block:
            self.assertEqual(forebay.default_pool().stats().live_bytes, 4096)
            block.free()
            block.free()
        self.assertEqual(forebay.default_pool().stats().live_bytes, 0)

    def test_sizes_that_are_none(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            for bytes in (-1, 1 << 64):
                with self.assertRaises(ValueError):
                    pool.alloc(bytes)


class Pools(unittest.TestCase):
    def test_the_limit_holds_and_the_report_is_the_message(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            with self.assertRaises(forebay.OutOfMemoryError) as caught:
                pool.alloc(65 * MIB)
            self.assertEqual(caught.exception.status, 2)
            self.assertIn(str(65 * MIB), str(caught.exception))
            self.assertEqual(pool.stats().oom_count, 1)
            pool.set_limits(hard=128 * MIB)
            self.assertEqual(pool.alloc(65 * MIB).bytes, 65 * MIB)

    def test_a_tags_memory_goes_and_comes_back(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            pool.declare("sleepy")
            with forebay.tag("sleepy"):
                block, gone = pool.alloc(20 * MIB), pool.alloc(5000)
            ctypes.memset(block.address, 0x5A, block.bytes)
            told = pool.suspend("sleepy")
            self.assertTrue(pool.is_suspended("sleepy"))
            self.assertEqual((told.device_bytes, told.blocks), (22 * MIB, 2))
            self.assertEqual(pool.stats().suspended_host_bytes, told.host_bytes)
            gone.free()
            hoard = pool.alloc(60 * MIB)
            with self.assertRaises(forebay.OutOfMemoryError) as caught:
                pool.resume("sleepy")
            self.assertIn(f"{16 * MIB} bytes missing", str(caught.exception))
            hoard.free()
            self.assertEqual(pool.resume("sleepy").device_bytes, 20 * MIB)
            self.assertEqual(ctypes.string_at(block.address, MIB), b"\x5a" * MIB)
            self.assertEqual(pool.suspend("sleepy", level="discard").host_bytes, 0)
            with self.assertRaises(forebay.Error), forebay.tag("sleepy"):
                pool.alloc(100)
            for wrong in (lambda: pool.suspend("sleepy", level="x"), lambda: pool.suspend("none")):
                with self.assertRaises((ValueError, forebay.Error)):
                    wrong()

    def test_the_callback_before_an_allocation_fails_may_free(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            held = [pool.alloc(60 * MIB)]
            asked = []

            def give_up(bytes):
                asked.append(bytes)
                held.clear()
                return True

            pool.on_out_of_memory(give_up)
            pool.alloc(50 * MIB)
            self.assertEqual(asked, [50 * MIB])

    def test_accounts_sum_to_what_is_mapped_and_trim_gives_back(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            blocks = [pool.alloc(MIB) for _ in range(20)]
            del blocks[::2]
            stats = pool.stats()
            self.assertEqual(stats.live_bytes, 10 * MIB)
            parts = ("live", "cached", "pending", "trapped", "idle", "region", "other")
            total = sum(getattr(stats, f"{part}_bytes") for part in parts)
            self.assertEqual(total, stats.mapped_bytes)
            blocks.clear()
            mapped = pool.stats().mapped_bytes
            self.assertEqual(pool.trim(), mapped)
            self.assertEqual(pool.stats().mapped_bytes, 0)

    def test_tags_leaks_and_the_report(self):
        with forebay.Pool(limit=64 * MIB) as pool:
            with forebay.tag("kv") as number:
                block = pool.alloc(3 * MIB)
            other = pool.alloc(MIB)
            self.assertEqual(pool.tag_bytes(number), 3 * MIB)
            leaks = {leak.address: leak for leak in pool.leaks()}
            self.assertEqual(leaks.keys(), {block.address, other.address})
            self.assertEqual(leaks[block.address].bytes, 3 * MIB)
            self.assertEqual(leaks[block.address].tag, forebay.tag_number("kv"))
            self.assertNotEqual(leaks[other.address].tag, number)
            self.assertIn("kv", str(pool.report()))

    def test_options_by_name(self):
        with self.assertRaisesRegex(TypeError, "no option 'limits'"):
            forebay.Pool(limits=MIB)
        with self.assertRaisesRegex(ValueError, "free is one of"):
            forebay.Pool(free="later")
        with forebay.Pool(limit=64 * MIB, reserve=32 * MIB, free="sync", keeper=False) as pool:
            self.assertEqual(pool.stats().mapped_bytes, 32 * MIB)

    def test_a_closed_pool_is_not_the_default_pool(self):
        pool = forebay.Pool(limit=64 * MIB)
        pool.close()
        pool.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            pool.alloc(4096)


class Structures(unittest.TestCase):
    def test_they_are_those_of_the_header(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        header = (root / "include/forebay.h").read_text()
        types = {
            "size_t": ctypes.c_size_t,
            "uint64_t": ctypes.c_uint64,
            "uint32_t": ctypes.c_uint32,
            "int32_t": ctypes.c_int32,
            "const void *": ctypes.c_void_p,
            "const char *": ctypes.c_char_p,
        }
        for name, ours in [
            ("forebay_stats", _library.CStats),
            ("forebay_leak", _library.CLeak),
            ("forebay_pool_options", _library.COptions),
        ]:
            body = re.search(rf"typedef struct {name} {{(.*?)^}}", header, re.S | re.M).group(1)
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
            fields = re.findall(r"^  ([a-z0-9_ ]+?[ *])(\w+);", body, re.M)
            theirs = [(field, types[kind.strip()]) for kind, field in fields]
            self.assertEqual(list(ours._fields_), theirs, name)


class Process(unittest.TestCase):
    def run_python(self, code, **env):
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def test_without_a_gpu_the_error_names_the_variable(self):
        code = "import forebay\ntry: forebay.malloc(1)\nexcept forebay.Error as e: print(e)"
        run = self.run_python(code, FOREBAY_BACKEND="auto", LD_LIBRARY_PATH="")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("FOREBAY_BACKEND", run.stdout)

    def test_blocks_alive_at_exit_do_no_harm(self):
        code = "import forebay\np = forebay.Pool(limit=1 << 26)\nb = p.alloc(4096)\nc = [b]"
        run = self.run_python(code)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))

    def test_another_library_can_be_named(self):
        run = self.run_python("import forebay", FOREBAY_LIBRARY="/none/libforebay.so.0")
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("FOREBAY_LIBRARY names another file", run.stderr)


# A CUDA program of Python's: every function looked up by hand, as a binding would.
CUDA_PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for mib in (1, 2, 4):
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(mib << 20)) == 0
    assert cuda.cuMemsetD8_v2(at, ctypes.c_ubyte(7), ctypes.c_size_t(mib << 20)) == 0
    if mib < 4:
        assert cuda.cuMemFree_v2(at) == 0
pool, served = ctypes.CDLL("libforebay.so.0"), (ctypes.c_size_t * 31)()
served[0] = ctypes.sizeof(served)
assert pool.forebay_pool_stats(None, served) == 0
print("live", served[1])
assert cuda.cuMemFree_v2(at) == 0
"""
SIMULATED = os.environ.get("FOREBAY_SIMULATED_DRIVER")


class Preload(unittest.TestCase):
    def run_preloaded(self, command, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
        env.update(more)
        env.update(FOREBAY_STATS="1", FOREBAY_HEADROOM="0", FOREBAY_SIM_MEMORY="256MiB")
        # The driver's folder alone: the pool's library is found beside the preload library.
        env["LD_LIBRARY_PATH"] = os.path.dirname(SIMULATED or "")
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    def judge(self, run):
        self.assertEqual((run.returncode, run.stdout), (0, f"live {4 * MIB}\n"), run.stderr)
        self.assertEqual(
            run.stderr,
            "forebay: cuMemAlloc_v2: 3 served, 0 passed on\n"
            "forebay: cuMemFree_v2: 3 served, 0 passed on\n",
        )

    def test_the_library_lies_beside_the_pools(self):
        path = forebay.preload_path()
        self.assertTrue(path.is_absolute() and path.is_file(), path)
        self.assertEqual(path.parent, forebay.lib_path().absolute().parent)
        self.assertEqual(path.name, "libforebay_preload.so")

    @unittest.skipUnless(SIMULATED, "FOREBAY_SIMULATED_DRIVER names no libcuda.so.1")
    def test_a_program_under_it_is_served_by_the_pool(self):
        command = [sys.executable, "-c", CUDA_PROGRAM]
        self.judge(self.run_preloaded(command, LD_PRELOAD=str(forebay.preload_path())))

    @unittest.skipUnless(SIMULATED, "FOREBAY_SIMULATED_DRIVER names no libcuda.so.1")
    def test_run_replaces_itself_by_the_program_with_the_library(self):
        run = [sys.executable, "-m", "forebay.run", "--"]
        self.judge(self.run_preloaded([*run, sys.executable, "-c", CUDA_PROGRAM]))
        ended = self.run_preloaded([*run, "sh", "-c", "echo $0 $1; exit 37", "zero", "--one"])
        self.assertEqual((ended.returncode, ended.stdout), (37, "zero --one\n"), ended.stderr)

    def test_run_tells_why_there_is_nothing_to_run(self):
        run = [sys.executable, "-m", "forebay.run"]
        for words, status, why in [
            ([], 2, "no program"),
            (["/none/such"], 127, "/none/such: No such file"),
            (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        ]:
            ended = self.run_preloaded([*run, *words])
            self.assertEqual(ended.returncode, status, ended.stderr)
            self.assertIn(why, ended.stderr)

    def test_a_library_without_a_neighbour_is_told(self):
        alone = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, alone)
        copy = shutil.copy(forebay.lib_path(), alone)
        code = (
            "import forebay\ntry: forebay.preload_path()\n"
            "except FileNotFoundError as e: print(e)"
        )
        run = self.run_preloaded([sys.executable, "-c", code], FOREBAY_LIBRARY=copy)
        self.assertIn("libforebay_preload.so is missing", run.stdout)


if __name__ == "__main__":
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2)
    unittest.main(testRunner=runner)
