"""vLLM's own ``KVCacheManager``, what its scheduler calls, under the loads of ``benches/kv.rs``:
thread CPU time, medians.

``python vllm_manager.py FOLDER [--quick]``: the folder is where vLLM's source is fetched to. One
group of full attention, prefixes on; events and statistics off, which the cache's own rows have on.
A request and its blocks' hashes are made before the clock starts; the cache's own rows include
them. Prints one JSON object, a load's name to its figure in the unit that the cache's own row has.
"""

import gc
import hashlib
import json
import pathlib
import pickle
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/python"))
import vllm_source

BLOCKS = 100_000
BLOCK_TOKENS = 16
BATCH = 256
PROMPT = 8192


def digest(value):
    """vLLM's default hash of a block's tokens."""
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


class Engine:
    """A manager and what makes its requests."""

    def __init__(self, folder):
        read = vllm_source.modules(folder, vllm_source.MANAGER)
        interface, self.request_type = read["kv_cache_interface"], read["request"].Request
        # Of the stand-ins, the one whose answer is counted with.
        read["request"].length_from_prompt_token_ids_or_embeds = lambda tokens, _: len(tokens)
        read["kv_cache_utils"].init_none_hash(digest)
        self.hasher = read["kv_cache_utils"].get_request_block_hasher(BLOCK_TOKENS, digest)
        spec = interface.FullAttentionSpec(
            block_size=BLOCK_TOKENS, num_kv_heads=8, head_size=128, head_size_v=128, dtype=None
        )
        group = interface.KVCacheGroupSpec([f"layer {at}" for at in range(32)], spec)
        config = interface.KVCacheConfig(BLOCKS, [], [group])
        self.manager = read["kv_cache_manager"].KVCacheManager(
            config, 1 << 20, BLOCK_TOKENS, BLOCK_TOKENS
        )
        self.running = read["request"].RequestStatus.RUNNING
        self.count = 0

    def request(self, tokens):
        """A request for these tokens, their hashes computed."""
        self.count += 1
        asked = types.SimpleNamespace(
            max_tokens=1 << 20, extra_args=None, skip_reading_prefix_cache=None
        )
        made = self.request_type(str(self.count), tokens, asked, None, block_hasher=self.hasher)
        made.status = self.running
        return made

    def prefill(self, request):
        """As its scheduler does for a request that waits."""
        found, computed, _ = self.manager.get_computed_blocks(request)
        blocks = self.manager.allocate_slots(
            request, request.num_tokens - computed, computed, found
        )
        assert blocks is not None
        return computed


def ns(load):
    start = time.thread_time_ns()
    load()
    return time.thread_time_ns() - start


def median(figures):
    return sorted(figures)[len(figures) // 2]


def prompt(salt, length=PROMPT):
    return [at * 31 + salt * 7919 for at in range(length)]


def prompts(engine, rounds):
    """A prompt that is not there, the same once it is, and its end, in microseconds."""
    manager = engine.manager
    prefill, hit, end = [], [], []
    for salt in range(rounds):
        request, computed = engine.request(prompt(salt)), []
        prefill.append(ns(lambda: computed.append(engine.prefill(request))) / 1e3)
        assert computed == [0]
        manager.free(request)
        # One token more: the last is never hit.
        again = engine.request(prompt(salt, PROMPT + 1))
        hit.append(ns(lambda: computed.append(engine.prefill(again))) / 1e3)
        assert computed == [0, PROMPT]
        end.append(ns(lambda: manager.free(again)) / 1e3)
    return map(median, (prefill, hit, end))


def decode(engine, rounds):
    """Steps of 256 requests of about 1,000 tokens, of which each gets one more, in microseconds."""
    manager = engine.manager
    requests = [engine.request(prompt(at + 10_000, 1000 + at)) for at in range(BATCH)]
    for request in requests:
        engine.prefill(request)
        request.num_computed_tokens = request.num_tokens
    spent = []
    for token in range(rounds * 16):
        for request in requests:
            request.append_output_token_ids(token)

        def step():
            for request in requests:
                assert manager.allocate_slots(request, 1) is not None

        spent.append(ns(step) / 1e3)
        for request in requests:
            request.num_computed_tokens += 1
    held = manager.get_block_ids(requests[0].request_id)
    assert len(held[0]) == (1000 + rounds * 16 + 15) // 16
    for request in requests:
        manager.free(request)
    assert manager.block_pool.get_num_free_blocks() == BLOCKS - 1
    return median(spent)


def main():
    folder, rounds = sys.argv[1], 5 if "--quick" in sys.argv else 15
    vllm_source.fetch(folder, vllm_source.MANAGER)
    engine = Engine(folder)
    gc.disable()
    prefill, hit, end = prompts(engine, rounds)
    step = decode(engine, rounds)
    figures = {
        "prefill of 8192 tokens": prefill,
        "hit of 512 blocks": hit,
        "end of 512 blocks": end,
        "decode step of 256 sequences": step,
        "decode, a sequence of a step": step * 1e3 / BATCH,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
