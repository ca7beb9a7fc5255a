"""Published samplers as loops over single forwards of `plain_network.py`, written from their description: no batches, no
engine. Each returns what a case.json holds. Forwards that the published loops waste are made here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Scores = dict[int, tuple[int, float, Tensor]]


class Record:
    """A canvas, and what happens on it.

    Args:
        net: `PlainNetwork`.
        sees: its attention.
        prompt: token ids.
        total: length of the canvas.
        mask: mask id.
        shift: row of the network that scores a token, counted back.
    """

    def __init__(self, net: Any, sees: Any, prompt: list[int], total: int, mask: int, shift: int = 0) -> None:
        self.net, self.sees, self.prompt, self.mask, self.shift = net, sees, prompt, mask, shift
        self.canvas = [*prompt, *[mask] * (total - len(prompt))]
        self.steps: dict[int, int] = {}
        self.probs: dict[int, float] = {}
        self.forwards: list[list[Any]] = []

    def forward(self, kind: str, begin: int, end: int, memory: Any = None) -> Scores:
        """Token, probability and distribution of every masked position that the window scores."""
        places = range(begin, end)
        logits = self.net.forward(self.canvas[begin:end], self.sees, places=places, memory=memory)
        self.forwards.append([kind, begin, end])
        found = {}
        for place in places:
            if self.canvas[place] == self.mask and place - self.shift >= begin:
                row = logits[place - self.shift - begin]
                spread = row.softmax(0)
                row[self.mask] = -torch.inf
                token = int(row.argmax())
                found[place] = (token, float(spread[token]), spread)
        return found

    def masks(self, begin: int, end: int) -> list[int]:
        return [place for place in range(begin, end) if self.canvas[place] == self.mask]

    def commit(self, scores: Scores, places: Iterable[int]) -> None:
        """Write positions; the last forward was theirs."""
        for place in places:
            assert self.canvas[place] == self.mask
            self.canvas[place] = scores[place][0]
            self.steps[place], self.probs[place] = len(self.forwards) - 1, scores[place][1]

    def case(
        self, source: dict[str, str], settings: dict[str, Any], block: int, gen: int, **more: Any
    ) -> dict[str, Any]:
        first = len(self.prompt)
        places = range(first, min(first + gen, len(self.canvas)) if "total_length" not in more else len(self.canvas))
        return {
            "case": "made", "family": "made", "model": "../network", "source": source, "settings": settings,
            "mask_id": self.mask, "eos_id": 62, "prompt_ids": [self.prompt], "gen_length": gen, "block_length": block,
            "output_ids": [[self.canvas[place] for place in places]],
            "step_map": [[self.steps.get(place, -1) for place in places]],
            "commit_prob": [[self.probs.get(place) for place in places]],
            "nfe": len(self.forwards), "forwards": self.forwards, **more,
        }  # fmt: skip


def spread_evenly(count: int, steps: int) -> list[int]:
    return [count // steps + (step < count % steps) for step in range(steps)]


def best(scores: Scores, places: list[int], count: int) -> list[int]:
    return sorted(places, key=lambda place: -scores[place][1])[:count]


def above(scores: Scores, places: list[int], threshold: float) -> list[int]:
    """Those at or above the threshold, and the best one."""
    return [place for place in places if scores[place][1] >= threshold or place in best(scores, places, 1)]


def factor_rule(scores: Scores, places: list[int], factor: float, *, published: bool) -> list[int]:
    ranked = best(scores, places, len(places))
    count = 1
    while count < len(ranked) and scores[ranked[count]][1] >= 1 - factor / (count + 2):
        count += 1
    if published and count == len(ranked) - 1:
        count += 1  # the loop ends one late when the last candidate is the one that fails
    return ranked[:count]


def fast_dllm(
    net: Any, plain: Any, mask: int, prompt: list[int], *, gen: int, block: int, steps: int, cache: str, **rule: Any
) -> dict[str, Any]:
    """Fast-dLLM for LLaDA; the copy in dInfer for the factor rule, whose loop looks before it goes on."""
    total, copied = len(prompt) + gen, "factor" in rule
    run = Record(net, plain.everything, prompt, total, mask)
    for begin in range(len(prompt), total, block):
        end, memory = begin + block, [{} for _ in range(net.sizes.layers)]
        quota = spread_evenly(block, steps // (gen // block))
        step = 0
        while step == 0 or run.masks(begin, end) or (step == 1 and cache != "nocache" and not copied):
            if step == 0 or cache == "nocache":
                scores = run.forward("full", 0, total, memory)
            elif cache == "prefix":
                scores = run.forward("suffix", begin, total, memory)
            else:
                scores = run.forward("block", begin, end, memory)
            places = run.masks(begin, end)
            if copied:
                run.commit(scores, factor_rule(scores, places, rule["factor"], published="rule" not in rule))
            elif places:
                chosen = best(scores, places, quota[step]) if rule.get("threshold") is None else None
                run.commit(scores, above(scores, places, rule["threshold"]) if chosen is None else chosen)
            step += 1
    source = {"repo": "NVlabs/Fast-dLLM", "file": "llada/generate.py", "function": cache}
    if copied:
        source = {
            "repo": "inclusionAI/dInfer",
            "file": "python/dinfer/decoding/generate_fastdllm.py",
            "function": cache,
        }
    return run.case(source, {"cache": cache, "steps": steps, **rule}, block, gen)


def unrolled(net: Any, plain: Any, mask: int, prompt: list[int], *, gen: int, block: int, threshold: float) -> Any:
    """dInfer without a cache: groups of forwards without a look at the block."""
    total = len(prompt) + gen
    run = Record(net, plain.everything, prompt, total, mask)
    for begin in range(len(prompt), total, block):
        while run.masks(begin, begin + block):
            for _ in range(min(max(len(run.masks(begin, begin + block)) // 2, 1), 4)):
                scores = run.forward("full", 0, total)
                places = run.masks(begin, begin + block)
                run.commit(scores, above(scores, places, threshold) if places else [])
    source = {
        "repo": "inclusionAI/dInfer",
        "file": "python/dinfer/decoding/generate_uniform.py",
        "function": "generate",
    }
    settings = {
        "decoder": "ThresholdParallelDecoder", "threshold": threshold, "cache": None, "early_stop": False,
        "maximum_unroll": 4, "expected_tpf": 2,
    }  # fmt: skip
    return run.case(source, settings, block, gen)


def sdar(
    net: Any, plain: Any, mask: int, prompt: list[int], *, gen: int, block: int, steps: int,
    threshold: float | None, stop_ids: list[int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """SDAR, greedy: static without a threshold, dynamic with one; prefill and stores are forwards of their own."""
    total = -(-(len(prompt) + gen) // block) * block
    run = Record(net, plain.blocks(block), prompt, total, mask)
    memory = [{} for _ in range(net.sizes.layers)]
    first = len(prompt) // block * block
    if first:
        run.forward("store", 0, first, memory)
    for begin in range(first, total, block):
        end = begin + block
        for quota in [*spread_evenly(block, steps), 0]:
            places = run.masks(begin, end)
            if not places:
                break
            # Keys and values of a block that is not finished are not kept.
            scores = run.forward("denoise", begin, end, [dict(layer) for layer in memory])
            sure = [place for place in places if threshold is not None and scores[place][1] > threshold]
            run.commit(scores, sure if len(sure) >= max(quota, 1) else best(scores, places, quota))
        run.forward("store", begin, end, memory)
        if set(stop_ids or []) & set(run.canvas[len(prompt) :]):
            break
    settings = {
        "gen_length": gen, "denoising_steps": steps, "confidence_threshold": threshold, "stop_ids": stop_ids,
        "remasking_strategy": "low_confidence_static" if threshold is None else "low_confidence_dynamic",
        "temperature": 1.0, "greedy": True,
    }  # fmt: skip
    source = {"repo": "JetAstra/SDAR", "file": "generate.py", "function": "block_diffusion_generate"}
    return run.case(source, settings, block, gen, total_length=total)


def dream(net: Any, plain: Any, mask: int, prompt: list[int], *, gen: int, steps: int, alg: str) -> dict[str, Any]:
    """Dream at temperature 0."""
    total = len(prompt) + gen
    run = Record(net, plain.everything, prompt, total, mask, shift=1)
    times = torch.linspace(1, 1e-3, steps + 1)
    measures: dict[str, Callable[[tuple[int, float, Tensor]], float]] = {
        "maskgit_plus": lambda score: score[1],
        "topk_margin": lambda score: float(score[2].topk(2).values[0] - score[2].topk(2).values[1]),
        "entropy": lambda score: float((score[2] * (score[2] + 1e-10).log()).sum()),
    }
    for step in range(steps):
        scores = run.forward("full", 0, total)
        places = run.masks(len(prompt), total)
        share = 1 - times[step + 1] / times[step]
        count = len(places) if step == steps - 1 else int(torch.tensor(float(len(places))) * share)
        run.commit(scores, sorted(places, key=lambda place: -measures[alg](scores[place]))[:count])
    settings = {"alg": alg, "steps": steps, "max_new_tokens": gen, "eps": 1e-3, "temperature": 0.0}
    return run.case({"repo": "Dream-org/Dream-v0-Instruct-7B (hub code)", "function": "_sample"}, settings, gen, gen)


def dream_blocks(
    net: Any, plain: Any, mask: int, prompt: list[int], *, gen: int, block: int, cache: str, threshold: float
) -> dict[str, Any]:
    """Fast-dLLM for Dream: the refreshing forward commits the first position of a block, windows the others."""
    total = len(prompt) + gen
    run = Record(net, plain.everything, prompt, total, mask, shift=1)
    for begin in range(len(prompt), total, block):
        end, memory = begin + block, [{} for _ in range(net.sizes.layers)]
        run.commit(run.forward("full", 0, total, memory), [begin])
        while places := run.masks(begin, end):
            is_dual = cache == "dual"
            scores = run.forward("block" if is_dual else "suffix", begin, end if is_dual else total, memory)
            run.commit(scores, above(scores, places, threshold))
    settings = {
        "alg": "confidence_threshold", "cache": cache, "threshold": threshold, "temperature": 0.0, "steps": gen,
        "max_new_tokens": gen,
    }  # fmt: skip
    source = {"repo": "NVlabs/Fast-dLLM", "file": "dream/model/generation_utils_block.py", "function": "_sample"}
    return run.case(source, settings, block, gen)
