"""A small Llama at work, in one of three ways: ``native`` is PyTorch's own allocator, ``pool``
Forebay behind it, ``replace`` Forebay in its place. Prints what PyTorch's counts say, as JSON.

The products compute nothing and most kernels do nothing, so every value on the device is arbitrary:
none is read back, and what decides about the course of the run (masks, positions, the next token)
is made on the CPU.
"""

import gc
import itertools
import json
import sys

import forebay
import forebay.torch as ft
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

PROMPT, STEPS, VOCABULARY = 24, 50, 256
COUNTED = ("requested_bytes", "allocated_bytes", "allocation")
PARTS = ("current", "peak", "allocated", "freed")


def model():
    """With random weights of a fixed seed. Attention is spelled out: masks are not looked at."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=128,
        attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).cuda()


def mask(queries, keys):
    """What each query may look at, in the form that is used as it is."""
    shape = torch.full((queries, keys), float("-inf")).triu(keys - queries + 1)
    return shape.reshape(1, 1, queries, keys).cuda()


def decode(llama, seen):
    """A prompt, then a token a step, with a cache of keys and values that grows."""
    draw = torch.Generator().manual_seed(11)
    cache = DynamicCache()
    done = 0
    with torch.no_grad():
        for step in range(STEPS + 1):
            count = 1 if step else PROMPT
            tokens = torch.randint(VOCABULARY, (1, count), generator=draw).cuda()
            at = torch.arange(done, done + count)
            out = llama(
                input_ids=tokens, attention_mask=mask(count, done + count),
                position_ids=at.unsqueeze(0).cuda(), cache_position=at.cuda(),
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            done += count
            assert out.logits.shape == (1, count, VOCABULARY)
            seen(out.logits)
    keys, values = cache[0][:2]
    assert keys.shape == values.shape == (1, 4, PROMPT + STEPS, 16)
    seen(keys, values)


def train(llama, seen):
    """Forward, backward, AdamW, three times."""
    draw = torch.Generator().manual_seed(13)
    llama.train()
    optimizer = torch.optim.AdamW(llama.parameters(), lr=1e-3)
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (2, 32), generator=draw).cuda()
        at = torch.arange(32)
        loss = llama(
            input_ids=tokens, labels=tokens, attention_mask=mask(32, 32),
            position_ids=at.unsqueeze(0).cuda(), cache_position=at.cuda(),
        ).loss  # fmt: skip
        loss.backward()
        gradients = [p.grad for p in llama.parameters()]
        assert all(g is not None for g in gradients)
        seen(loss, *gradients)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    moments = [m for state in optimizer.state.values() for m in state.values() if m.is_cuda]
    assert len(moments) == 2 * len(list(llama.parameters()))
    seen(*moments)


def run(way, work):
    """What PyTorch counts over one piece of work, and what is left of it."""
    kept = {"tensors": 0, "forebays": 0}

    def seen(*tensors):
        kept["tensors"] += len(tensors)
        kept["forebays"] += sum(forebay.owns(t.data_ptr()) for t in tensors)

    ft.reset_peak_memory_stats()
    before = ft.memory_stats()
    llama = model()
    seen(*llama.parameters())
    {"decode": decode, "train": train}[work](llama, seen)
    told = ft.memory_stats()
    del llama
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    after = ft.memory_stats()
    counts = {}
    for name, part in itertools.product(COUNTED, PARTS):
        key = f"{name}.all.{part}"
        whole = part in ("current", "peak")
        counts[f"{name}.{part}"] = told[key] - (0 if whole else before.get(key, 0))
    ends = {name: after[f"{name}.all.current"] for name in COUNTED}
    left = len(ft.device_pool(0).leaks()) if way == "replace" else 0
    return {"counts": counts, "ends": ends, "leaks": left, **kept}


def main(way):
    if way == "replace":
        ft.replace()
    elif way == "pool":
        ft.use()
    told = {work: run(way, work) for work in ("decode", "train")}
    if way == "pool":
        # PyTorch gives nothing back while a pool is in use.
        ft._hooks._end()
    torch.cuda.empty_cache()
    stats = ft.device_pool(0).stats()
    told["left"] = [stats.live_blocks, stats.mapped_bytes]
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
