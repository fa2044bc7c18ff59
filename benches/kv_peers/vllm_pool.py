"""vLLM's own ``BlockPool`` under the loads of ``benches/kv.rs``: thread CPU time, medians.

``python vllm_pool.py FOLDER [--quick]``: the folder is where vLLM's source is fetched to. Prints one
JSON object, a load's name to its figure in the unit that the cache's own row has. A prompt's hashes
are given to it; the cache's own row includes them.
"""

import gc
import hashlib
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/python"))
import vllm_source

BLOCKS = 100_000
PROMPT = 512


class Request:
    """What the pool asks of a request."""

    def __init__(self, salt):
        text = [f"{salt} {at}".encode() for at in range(PROMPT)]
        self.block_hashes = [hashlib.sha256(one).digest() for one in text]


def ns(load):
    start = time.thread_time_ns()
    load()
    return time.thread_time_ns() - start


def median(figures):
    return sorted(figures)[len(figures) // 2]


def take_and_release(pool, count, rounds):
    turns = 20_000 // count

    def load():
        for _ in range(turns):
            pool.free_blocks(pool.get_new_blocks(count))

    return median([ns(load) / (turns * count) for _ in range(rounds)])


def prompts(pool, rounds):
    prefill, hit, end = [], [], []
    for salt in range(rounds):
        request, held = Request(salt), []

        def compute():
            held.extend(pool.get_new_blocks(PROMPT))
            pool.cache_full_blocks(request, held, 0, PROMPT, 16, 0)

        def find():
            for block_hash in request.block_hashes:
                held.extend(pool.get_cached_block(block_hash, [0]))
            pool.touch(held)

        prefill.append(ns(compute) / 1e3)
        pool.free_blocks(reversed(held))
        held.clear()
        hit.append(ns(find) / 1e3)
        assert len(held) == PROMPT
        end.append(ns(lambda: pool.free_blocks(reversed(held))) / 1e3)
    return map(median, (prefill, hit, end))


def main():
    folder, rounds = sys.argv[1], 5 if "--quick" in sys.argv else 15
    vllm_source.fetch(folder)
    pool = vllm_source.block_pool(folder)(BLOCKS, True, 16)
    gc.disable()
    prefill, hit, end = prompts(pool, rounds)
    figures = {
        "take and release a block": take_and_release(pool, 1, rounds),
        "take and release 128, a block": take_and_release(pool, 128, rounds),
        "prefill of 8192 tokens": prefill,
        "hit of 512 blocks": hit,
        "end of 512 blocks": end,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
