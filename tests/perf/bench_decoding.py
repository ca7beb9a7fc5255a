"""Speed of the decoding engine against a naive loop: one row at a time, everything recomputed. A script, not a test.

Run ``python tests/perf/bench_decoding.py [--device cuda] [--prompt 64] [--gen 64] [--steps 8]``. Tiny random models of
4 layers, width 128, vocabulary 512, float32, blocks of 8. The naive loop feeds the whole canvas (LLaDA) or everything up
to the block's end (SDAR), computes the head at every position and decodes the rows one after the other. Both give the
same tokens; the script says how many rows differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.decoding.schedulers import quota
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.registry import get

BLOCK, MASK, EOS = 8, 511, 510


@torch.inference_mode()
def naive(lm: DiffusionLM, prompt: list[int], gen_length: int, steps: int) -> list[int]:
    """Decode one row greedily, low-confidence order, without cache or batch.

    Args:
        lm: model.
        prompt: token ids; a multiple of the block length, so that both families decode the same blocks.
        gen_length: tokens to generate, a multiple of the block length.
        steps: denoising steps per block.

    Returns:
        The generated ids.
    """
    ids = torch.full((1, len(prompt) + gen_length), lm.mask_token_id, device=lm.device)
    ids[0, : len(prompt)] = torch.tensor(prompt, device=lm.device)
    for start in range(len(prompt), ids.shape[1], BLOCK):
        seen = start + BLOCK if lm.is_block_causal else ids.shape[1]
        for count in quota(BLOCK, steps):
            logits = lm.logits(ids[:, :seen], block_length=BLOCK)[0, start : start + BLOCK]
            probability = logits.softmax(-1)
            logits[:, lm.mask_token_id] = -torch.inf
            token = logits.argmax(-1)
            confidence = probability.gather(1, token[:, None])[:, 0]
            confidence[ids[0, start : start + BLOCK] != lm.mask_token_id] = -1.0
            best = confidence.topk(count).indices
            ids[0, start + best] = token[best]
    return ids[0, len(prompt) :].tolist()


def fastest(call: Callable[[], object], device: str, repeats: int) -> tuple[float, object]:
    """Seconds of the fastest of `repeats` calls after one warm-up, and the last result."""
    result, times = call(), []
    for _ in range(repeats):
        began = time.perf_counter()
        result = call()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times), result


def main() -> None:
    """Print one line per family and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens, a multiple of 8")
    parser.add_argument("--gen", type=int, default=64, help="generated tokens, a multiple of 8")
    parser.add_argument("--steps", type=int, default=BLOCK, help="denoising steps per block of 8")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if options.prompt % BLOCK or options.gen % BLOCK or options.prompt < BLOCK or options.gen < BLOCK:
        parser.error(f"--prompt {options.prompt} --gen {options.gen}: both must be positive multiples of {BLOCK}")
    decoder = DecoderConfig(gen_length=options.gen, block_length=BLOCK, steps_per_block=options.steps, early_stop=False)
    print(f"{'family':8}{'batch':>6}{'naive s':>10}{'ours s':>10}{'ratio':>8}{'tokens/s':>10}{'differ':>8}")
    for family in ("llada", "sdar"):
        config = dict(get(f"tiny-{family}").config, mask_token_id=MASK, eos_token_id=EOS)
        lm = loading.from_config(family, config, seed=0)
        lm.model.to(options.device)
        with torch.no_grad():
            lm.head_weight.mul_(20)  # a random head is nearly flat; ties would be broken by rounding
        for batch in (1, 16):
            prompts = [[(17 * row + 3 * place) % 500 for place in range(options.prompt)] for row in range(batch)]
            slow, wanted = fastest(
                lambda lm=lm, prompts=prompts: [naive(lm, row, options.gen, options.steps) for row in prompts],
                options.device,
                1,
            )
            fast, found = fastest(
                lambda lm=lm, prompts=prompts: generate(lm, prompts, decoder, [0] * len(prompts)),
                options.device,
                options.repeats,
            )
            differ = sum(row.token_ids != ids for row, ids in zip(found, wanted, strict=True))
            rate = batch * options.gen / fast
            print(f"{family:8}{batch:6}{slow:10.3f}{fast:10.3f}{slow / fast:8.2f}{rate:10.0f}{differ:8}")


if __name__ == "__main__":
    main()
