"""The paged KV cache through C: its tables against builders that know sequences only, and the
stand-in for vLLM's ``BlockPool`` against the real one. Needs nothing but the standard library."""

import ctypes as c
import json
import os
import pathlib
import random
import sys
import unittest

import forebay
from forebay import vllm
from forebay._library import LIB

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import block_pool
import vllm_source

SEED = int(os.environ.get("TEST_SEED", random.randrange(1 << 32)))
TOKENS = 16
WIDTH = 64
NO_BLOCKS = 22

I32, I64, SEQ = c.c_int32, c.c_int64, c.c_uint64


class Delta(c.Structure):
    _fields_ = [("from_", c.c_uint32), ("to", c.c_uint32)]


class Copy(c.Structure):
    _fields_ = [(name, c.c_uint32) for name in ("group", "from_", "to", "tokens")]


class Cache:
    """A cache of one group through the C functions; sequences are numbers."""

    def __init__(self, blocks):
        group = vllm.CGroup(layers=1, heads=1, key_size=1, value_size=1)
        group.block_tokens, group.element, group.blocks = TOKENS, 3, blocks
        options = vllm.COptions()
        self.call("options_init", c.byref(options))
        options.groups, options.group_count = c.pointer(group), 1
        self.kv = c.c_void_p()
        self.call("create", c.byref(options), c.byref(self.kv))

    @staticmethod
    def call(name, *arguments):
        function = getattr(LIB, f"forebay_kv_{name}")
        if name not in vllm._ARGUMENTS:
            function.argtypes, function.restype = None, I32
        forebay._errors.check(function(*arguments))

    def open(self):
        seq = SEQ()
        self.call("open", self.kv, SEQ(0), c.c_uint32(0), c.byref(seq))
        return seq

    def append(self, seq, tokens):
        """Whether there were blocks."""
        values = (I32 * len(tokens))(*tokens)
        try:
            self.call("append", self.kv, seq, values, c.c_uint32(len(tokens)), None)
        except forebay.Error as error:
            if error.status != NO_BLOCKS:
                raise
            return False
        self.make_copies()
        return True

    def make_copies(self):
        jobs, count, batch = (Copy * 64)(), c.c_size_t(), c.c_uint64()
        self.call("take_copies", self.kv, jobs, c.c_size_t(64), c.byref(count), c.byref(batch))
        if batch.value:
            self.call("copied", self.kv, batch, c.c_uint64(0))

    def fork(self, seq, tokens):
        made = SEQ()
        self.call(
            "fork", self.kv, seq, c.c_uint32(tokens), c.byref(made), c.c_size_t(1), None
        )
        return made

    def row(self, seq, row, whole):
        delta = Delta()
        args = (c.c_uint32(0), seq, row, c.c_size_t(WIDTH), c.c_uint32(whole), c.byref(delta))
        self.call("row", self.kv, *args)
        return delta


class Tables(unittest.TestCase):
    """Random sequences; after each step every table is built anew from what a sequence is, its
    length and its blocks, by the rules of who reads it."""

    def setUp(self):
        self.draw = random.Random(SEED)
        self.cache = Cache(200)
        # Sequence, length, and the row that deltas alone keep up to date.
        self.live = []

    def step(self):
        draw, cache = self.draw, self.cache
        kind = draw.choice(("open", "append", "append", "append", "fork", "rollback", "free"))
        if kind == "open" or not self.live:
            seq, row = cache.open(), (I32 * WIDTH)(*[-1] * WIDTH)
            count = draw.randint(1, 100)
            if cache.append(seq, [draw.randrange(50) for _ in range(count)]):
                cache.row(seq, row, True)
                self.live.append([seq, count, row])
            else:
                cache.call("free", cache.kv, c.byref(seq), c.c_size_t(1), c.c_uint64(0))
            return
        entry = draw.choice(self.live)
        seq, length, _ = entry
        if kind == "append":
            count = draw.randint(1, 20)
            if length + count <= WIDTH * TOKENS and cache.append(seq, [1] * count):
                entry[1] += count
        elif kind == "fork":
            tokens = draw.randint(1, length)
            made, row = cache.fork(seq, tokens), (I32 * WIDTH)(*[-1] * WIDTH)
            cache.row(made, row, True)
            self.live.append([made, tokens, row])
        elif kind == "rollback":
            count = draw.randint(0, length - 1)
            cache.call("rollback", cache.kv, seq, c.c_uint32(count), c.c_uint64(0))
            entry[1] -= count
        else:
            self.live.remove(entry)
            cache.call("free", cache.kv, c.byref(seq), c.c_size_t(1), c.c_uint64(0))

    def judge(self):
        cache = self.cache
        blocks = []
        for seq, length, row in self.live:
            cache.row(seq, row, False)
            slots = (I64 * length)()
            args = (c.c_uint32(0), seq, c.c_uint32(0), slots, c.c_size_t(length))
            cache.call("slots", cache.kv, *args)
            # What the slots say of blocks is what all tables must say.
            mine = [slots[at] // TOKENS for at in range(0, length, TOKENS)]
            blocks.append(mine)
            # vLLM: slot = block * block_size + offset, rows padded with the null block 0.
            self.assertEqual(
                list(slots), [mine[at // TOKENS] * TOKENS + at % TOKENS for at in range(length)]
            )
            self.assertEqual(list(row), mine + [0] * (WIDTH - len(mine)))
            self.assertTrue(all(0 < block < 200 for block in mine))
        self.judge_csr(blocks)

    def judge_csr(self, blocks):
        """FlashInfer: len = page_size * (pages - 1) + last_page_len, which is 1 to page_size."""
        count = len(self.live)
        seqs = (SEQ * count)(*[entry[0].value for entry in self.live])
        indptr, last = (I32 * (count + 1))(), (I32 * count)()
        total = sum(map(len, blocks))
        indices, needed = (I32 * total)(), c.c_size_t()
        args = (c.c_uint32(0), seqs, c.c_size_t(count), indptr, indices, c.c_size_t(total), last)
        self.cache.call("csr", self.cache.kv, *args, c.byref(needed))
        ends = [0]
        for mine in blocks:
            ends.append(ends[-1] + len(mine))
        self.assertEqual(list(indptr), ends)
        self.assertEqual(list(indices), [block for mine in blocks for block in mine])
        lengths = [entry[1] for entry in self.live]
        self.assertEqual(list(last), [(length - 1) % TOKENS + 1 for length in lengths])
        for mine, length, tail in zip(blocks, lengths, last):
            self.assertEqual(TOKENS * (len(mine) - 1) + tail, length)
        self.assertEqual(needed.value, total)

    def test_they_are_what_the_readers_expect(self):
        print(f"TEST_SEED={SEED}")
        for _ in range(400):
            self.step()
            self.judge()
        self.cache.call("check", self.cache.kv, None, c.c_size_t(0))
        self.cache.call("destroy", self.cache.kv, None)


class BlockPools(unittest.TestCase):
    def test_the_stand_in_shows_what_vllms_pool_showed(self):
        recorded = json.loads(
            (pathlib.Path(__file__).parent / "vllm_block_pool.json").read_text()
        )
        self.assertEqual(len(recorded), len(block_pool.SEEDS))
        for seed in block_pool.SEEDS:
            for units in (1, 3):
                seen = block_pool.play(vllm.BlockPool, seed, units)
                both = zip(seen, recorded[str(seed)], strict=True)
                for step, (state, wanted) in enumerate(both):
                    told = f"{seed} {units} {step} {state}"
                    self.assertEqual(block_pool.short(state), wanted, told)

    def test_the_stand_in_shows_what_vllms_pool_shows(self):
        folder = os.environ.get("VLLM_SOURCE")
        if not folder:
            self.skipTest("vLLM's source is fetched under --full only")
        try:
            vllm_source.fetch(folder)
        except OSError as error:
            self.skipTest(f"the package index cannot be reached: {error}")
        real = vllm_source.block_pool(folder)
        for seed in range(100, 140):
            units = seed % 3 + 1
            seen = block_pool.play(vllm.BlockPool, seed, units)
            wanted = block_pool.play(real, seed, units)
            for step, (ours, theirs) in enumerate(zip(seen, wanted, strict=True)):
                self.assertEqual(ours, theirs, f"{seed} {step}")

    def test_events_tell_what_became_of_hashes(self):
        pool = vllm.BlockPool(4, True, 16, enable_kv_cache_events=True)
        blocks = pool.get_new_blocks(3)
        hashes = [block_pool.hash_of(number) for number in range(3)]
        pool.cache_full_blocks(block_pool.Request(range(3)), blocks, 0, 2, 16, 7)
        self.assertEqual(pool.take_events(), [("stored", h, 7) for h in hashes[:2]])
        self.assertEqual(pool.get_cached_prefix(hashes, 7), blocks[:2])
        self.assertEqual(pool.get_cached_prefix(hashes, 6), [])
        pool.free_blocks(blocks)
        self.assertEqual(pool.get_num_free_blocks(), 3)
        again = pool.get_new_blocks(2)
        self.assertEqual(again[0], blocks[2])
        self.assertEqual(pool.take_events(), [("removed", hashes[0], 7)])
        self.assertIsNone(blocks[0].block_hash)
        pool.evict_blocks({blocks[1].block_id})
        self.assertEqual(pool.take_events(), [("removed", hashes[1], 7)])
        pool.free_blocks(again)
        self.assertTrue(pool.reset_prefix_cache())
        self.assertEqual(pool.take_events(), [("cleared",)])
        self.assertEqual(pool.take_events(), [])
        pool.close()
        pool.close()

    def test_wrong_use_is_refused(self):
        pool = vllm.BlockPool(4, True, 16)
        with self.assertRaisesRegex(ValueError, "4 free blocks"):
            pool.get_new_blocks(4)
        (block,) = pool.get_new_blocks(1)
        pool.free_blocks([block, pool.null_block])
        with self.assertRaises(forebay.Error):
            pool.free_blocks([block])
        with self.assertRaises(forebay.Error):
            pool.touch([block])
        self.assertEqual((block.ref_cnt, pool.get_usage()), (0, 0.0))
        with self.assertRaisesRegex(ValueError, "no block 4294967297"):
            pool.evict_blocks({2**32 + 1})
        other = vllm.BlockPool(4, True, 16, metrics_collector=None)
        theirs = other.get_new_blocks(2)
        for call in (pool.free_blocks, pool.touch):
            with self.assertRaisesRegex(ValueError, "another pool's"):
                call(theirs)
        other.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            other.free_blocks(theirs)
        with self.assertRaises(NotImplementedError):
            vllm.BlockPool(4, True, 16, num_hash_lookahead_tokens=1)
        for size in (8, 24):
            with self.assertRaisesRegex(ValueError, "no multiple"):
                pool.cache_full_blocks(block_pool.Request([1]), [block], 0, 1, size, 0)

    def test_a_view_at_the_blocks_size_is_taken_as_it_is(self):
        class View(list):
            scale_factor = 2

        pool = vllm.BlockPool(4, True, 16)
        blocks = pool.get_new_blocks(2)
        hashes = [block_pool.hash_of(number) for number in range(2)]
        request = block_pool.Request([])
        request.block_hashes = View(hashes)
        pool.cache_full_blocks(request, blocks, 0, 2, 32, 0)
        self.assertEqual(pool.get_cached_prefix(hashes, 0), blocks)
        pool.close()


if __name__ == "__main__":
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2)
    unittest.main(testRunner=runner)
