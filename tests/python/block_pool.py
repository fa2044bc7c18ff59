"""Random calls on a ``BlockPool``, and all that can be seen of it after each: for Forebay's and for
vLLM's own, which must look alike."""

import hashlib
import json
import random

BLOCKS = 24
STEPS = 400
SEEDS = range(6)
CALLS = ("get", "get", "hit", "hit", "free", "free", "cache", "cache", "reset")


def hash_of(number):
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


class Request:
    """What a pool asks of a request: its blocks' hashes, some for each block, of which the last is
    the block's."""

    def __init__(self, numbers, units=1):
        before = [hash_of((1 << 40) + unit) for unit in range(units - 1)]
        runs = [[*before, hash_of(number)] for number in numbers]
        self.block_hashes = [one for run in runs for one in run]


class Player:
    """Makes the calls. ``held`` are lists of blocks with the numbers of their contents and how many
    of them are cached; ``known`` the runs of numbers that were ever cached."""

    def __init__(self, pool, seed, units):
        self.pool, self.draw, self.units = pool, random.Random(seed), units
        self.held, self.known, self.fresh = [], [], 0

    def get(self):
        count = self.draw.randint(1, 6)
        try:
            blocks = self.pool.get_new_blocks(count)
        except ValueError:
            return "none"
        self.held.append([blocks, list(range(self.fresh, self.fresh + count)), 0])
        self.fresh += count
        return count

    def hit(self):
        numbers = self.draw.choice(self.known) if self.known else []
        found = []
        for number in numbers:
            blocks = self.pool.get_cached_block(hash_of(number), [0])
            if blocks is None:
                break
            found += blocks
        self.pool.touch(found)
        if found:
            self.held.append([found, numbers[: len(found)], len(found)])
        return len(found)

    def free(self):
        if not self.held:
            return 0
        blocks, _, _ = self.held.pop(self.draw.randrange(len(self.held)))
        self.pool.free_blocks(reversed(blocks))
        return len(blocks)

    def cache(self):
        if not self.held:
            return 0
        entry = self.draw.choice(self.held)
        blocks, numbers, cached = entry
        full = self.draw.randint(cached, len(blocks))
        request = Request(numbers, self.units)
        self.pool.cache_full_blocks(request, blocks, cached, full, 16 * self.units, 0)
        entry[2] = full
        if full > 0 and numbers[:full] not in self.known:
            self.known.append(numbers[:full])
        return full

    def reset(self):
        return self.pool.reset_prefix_cache() if self.draw.random() < 0.3 else "not asked"

    def step(self):
        kind = self.draw.choice(CALLS)
        told = getattr(self, kind)()
        states = [[[b.ref_cnt, b.block_hash is not None] for b in held[0]] for held in self.held]
        there = [[self.is_there(number) for number in run] for run in self.known]
        usage = round(self.pool.get_usage(), 9)
        return [kind, told, self.pool.get_num_free_blocks(), usage, states, there]

    def is_there(self, number):
        return self.pool.get_cached_block(hash_of(number), [0]) is not None


def short(state):
    """A step's state in eight digits."""
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:8]


def play(make, seed, units=1):
    """The states after each step, the same for any number of hashes a block."""
    player = Player(make(BLOCKS, True, 16), seed, units)
    return [player.step() for _ in range(STEPS)]
