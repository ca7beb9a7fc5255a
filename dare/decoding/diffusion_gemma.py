"""Decoding of DiffusionGemma by the `generate` of its transformers class, watched from outside.

The class refines a canvas of random tokens: each step predicts every position, keeps the candidates of lowest entropy
and replaces the others by fresh random tokens. Nothing is fixed before the canvas ends; its most likely tokens at the
last step are the result. So the step map says since when a position has shown its final token (`SETTLED`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

import torch
from dare_bench.dare.decoding import request
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Cost, Generation
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.canvas import CanvasDims
from dare_bench.dare.families.diffusion_gemma import DEFAULT_DECODER
from dare_bench.dare.randomness import stream_seed
from torch import Tensor

#: Step maps hold the 0-based index of the forward (of this row, encoder forwards counted) since which the position's
#: most likely token was the final one.
SETTLED = "row-forward-0-settled"

#: Temperature at the end of the published schedule (0.4), as a share of its start (0.8).
COOLED = 0.5

OnFinish = Callable[[int, Generation], None]


@torch.inference_mode()
def generate(
    lm: DiffusionLM,
    prompts: Sequence[Sequence[int]],
    decoder: DecoderConfig,
    seeds: Sequence[int],
    *,
    batch_size: int = 64,
    on_finish: OnFinish | None = None,
) -> list[Generation]:
    """Decode prompts one at a time, each under a generator of its own.

    The class draws canvases and candidates from torch's global generator, in an order that depends on the batch, and
    runs a batch until its slowest row is done. A row by itself depends on (prompt, seed, decoder) only; the global
    generators are left as they were. CPU and CUDA generators give different draws for one seed.

    Args:
        lm: model of the family in evaluation mode.
        prompts: token ids, each at least one token.
        decoder: `gen_length`, `steps_per_block` (steps of a canvas at most), `temperature` (of the first step, falling
            linearly to half of it), `early_stop` and the options of the selector ``entropy_bound`` are honoured.
        seeds: one per prompt.
        batch_size: of no effect.
        on_finish: called with (index, generation) when a row is done.

    Returns:
        Generations in the order of `prompts`: `token_ids` are whole canvases, `text_ids` end at the first stop token and
        never exceed `gen_length`.

    Raises:
        ValueError: for an empty prompt, or settings that the class does not honour or that are outside their range.

    Source:
        `DiffusionGemmaGenerationMixin.generate` of transformers; its sampler is that of arXiv 2505.24857.
    """
    limit = request.check(prompts, decoder, seeds)
    arguments = _arguments(lm, decoder)
    found = []
    for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        generation = _row(lm, prompt, seed, limit, arguments)
        found.append(generation)
        if on_finish is not None:
            on_finish(index, generation)
    return found


def _arguments(lm: DiffusionLM, decoder: DecoderConfig) -> dict[str, Any]:
    """Arguments of the class's `generate`, all of them: it fills what is left out from its own defaults."""
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

    options = _options(lm, decoder)
    return {
        "max_new_tokens": decoder.gen_length,
        "max_length": None,
        "max_denoising_steps": decoder.steps_per_block or DEFAULT_DECODER["steps_per_block"],
        "sampler_config": EntropyBoundSamplerConfig(entropy_bound=options["entropy_bound"]),
        "t_max": decoder.temperature,
        "t_min": decoder.temperature * COOLED,
        "stability_threshold": int(options["stability_threshold"]),
        "confidence_threshold": options["confidence_threshold"],
        "cache_implementation": None,
        "cache_config": None,
        # None: what follows a stop token stays as it was decoded, for the record.
        "pad_token_id": None,
        "eos_token_id": sorted(lm.stop_token_ids) if decoder.early_stop else None,
        "bos_token_id": None,
        "return_dict_in_generate": True,
    }


def _options(lm: DiffusionLM, decoder: DecoderConfig) -> dict[str, float]:
    """Options of the sampler, after a look at everything the class would silently ignore."""
    honoured, ours = lm.family.decoder_fields or frozenset(), DEFAULT_DECODER
    plain = DecoderConfig()
    for field in fields(decoder):
        given = getattr(decoder, field.name)
        if field.name not in honoured | set(ours) and given != getattr(plain, field.name):
            allowed = ", ".join(sorted(honoured - {"name"}))
            raise ValueError(
                f"decoder.{field.name} is {given!r}, which {lm.family.name} does not honour: it decodes by its own "
                f"procedure. Leave it out; allowed: {allowed}"
            )
    if decoder.selector != ours["selector"]:
        raise ValueError(
            f"decoder.selector is {decoder.selector!r}; allowed for {lm.family.name}: {ours['selector']!r}, with "
            f"temperature {ours['temperature']} as published"
        )
    if not decoder.temperature > 0:
        raise ValueError(
            f"decoder.temperature is {decoder.temperature!r}; allowed for {lm.family.name}: a positive number, "
            f"{ours['temperature']} as published (candidates are drawn; the result is the most likely token anyway)"
        )
    known = ours["selector_options"]
    options = {**known, **decoder.selector_options}
    for name, value in options.items():
        if name not in known or isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(
                f"decoder.selector_options holds {name}: {value!r}; allowed: positive numbers for {', '.join(known)}"
            )
    return {name: float(value) for name, value in options.items()}


def _row(lm: DiffusionLM, prompt: Sequence[int], seed: int, limit: int, arguments: Mapping[str, Any]) -> Generation:
    """One prompt, by itself."""
    from transformers import LogitsProcessorList

    watch = _Watch(lm.dims, tuple(lm.stop_token_ids))
    devices = list(range(torch.cuda.device_count())) if lm.device.type == "cuda" else []
    began = time.perf_counter()
    with torch.random.fork_rng(devices=devices), watch.on(lm.model):
        torch.manual_seed(stream_seed(seed, "decode"))
        lm.model.generate(
            torch.tensor([list(prompt)], device=lm.device),
            streamer=watch,
            logits_processor=LogitsProcessorList([watch]),
            **arguments,
        )
    return watch.generation(limit, time.perf_counter() - began)


class _Watch:
    """What the class does to one row: a streamer sees the drafts, a logits processor the logits, hooks the forwards.

    Args:
        dims: sizes, for operation counts.
        stops: ids that end a reply.
    """

    def __init__(self, dims: CanvasDims, stops: tuple[int, ...]) -> None:
        self.dims, self.stops = dims, frozenset(stops)
        self.cost = Cost()
        self.kinds: list[str] = []
        self.prefix = 0  # tokens in the encoder's cache
        self.logits: Tensor | None = None
        self.draft: Tensor | None = None
        self.settled = self.confidence = torch.zeros(0)
        self.token_ids: list[int] = []
        self.step_map: list[int] = []
        self.confidences: list[float] = []
        self.block_starts: list[int] = []
        self.prompt_seen = False

    def on(self, model: Any) -> ExitStack:
        """Hooks on encoder and decoder, removed when the context ends."""
        stack = ExitStack()
        for module, hook in ((model.model.encoder, self._encode), (model.model.decoder, self._denoise)):
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        return stack

    def _encode(self, module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        queries = given["input_ids"].shape[1]
        self._count("prefill" if not self.kinds else "store", queries, _causal_pairs(self.dims, self.prefix, queries))
        self.prefix += queries

    def _denoise(self, module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        queries, dims = given["decoder_input_ids"].shape[1], self.dims
        self._count("denoise", queries, [queries * keys for keys in _open_keys(dims, self.prefix, queries)])
        # The head, the mean embedding of the previous prediction (a canvas' first step has none), the MLP behind it.
        tables = 1 if given.get("self_conditioning_logits") is None else 2
        self.cost.flops += 2.0 * queries * (tables * dims.hidden * dims.vocab + dims.self_conditioning)

    def _count(self, kind: str, queries: int, pairs: Sequence[int]) -> None:
        dims, cost = self.dims, self.cost
        self.kinds.append(kind)
        cost.nfe += 1
        cost.row_forwards += 1
        cost.positions_fed += queries
        cost.kv_read += max(pairs)  # of a full layer: what the sequence offers, as in the other engines
        cost.flops += 2.0 * dims.linear * queries
        cost.flops += sum(4.0 * dims.heads * at.head_dim * n for at, n in zip(dims.attention, pairs, strict=True))

    def __call__(self, input_ids: Tensor, scores: Tensor, cur_step: Any = None) -> Tensor:
        """Logits processor: remember the logits at temperature 1."""
        self.logits = scores
        return scores

    def put_draft(self, value: Tensor) -> None:
        """Streamer: the most likely tokens after a step."""
        draft, logits = value[0], self.logits[0]
        chosen = logits.gather(1, draft.to(logits.device)[:, None])[:, 0]
        probability = (chosen - logits.logsumexp(-1)).exp().float().cpu()
        if self.draft is None:
            self.settled, self.confidence = torch.zeros_like(draft), torch.zeros_like(probability)
        fresh = torch.ones_like(draft, dtype=torch.bool) if self.draft is None else draft != self.draft
        self.settled[fresh] = len(self.kinds) - 1
        self.confidence[fresh] = probability[fresh]
        self.draft, self.logits = draft, None

    def put(self, value: Tensor) -> None:
        """Streamer: the prompt, then each finished canvas."""
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        self.block_starts.append(len(self.token_ids))
        self.token_ids += value[0].tolist()
        self.step_map += self.settled.tolist()
        self.confidences += [round(probability, 6) for probability in self.confidence.tolist()]
        self.draft = None

    def end(self) -> None:
        """Streamer: nothing is held back."""

    def generation(self, limit: int, wall_s: float) -> Generation:
        """The record of the row; its text ends at the first stop token or after `limit` tokens."""
        stop = next((i for i, token in enumerate(self.token_ids) if token in self.stops), len(self.token_ids))
        self.cost.tokens_committed = len(self.token_ids)
        self.cost.tokens_text = min(stop, limit)
        self.cost.wall_s = wall_s
        return Generation(
            token_ids=self.token_ids,
            text_ids=self.token_ids[: self.cost.tokens_text],
            step_map=self.step_map,
            confidence=self.confidences,
            block_starts=self.block_starts,
            kinds=self.kinds,
            finish_reason="stop" if stop < min(limit, len(self.token_ids)) else "length",
            cost=self.cost,
            convention=SETTLED,
        )


def _causal_pairs(dims: CanvasDims, prefix: int, queries: int) -> list[int]:
    """Query-key pairs of each layer of the encoder."""
    full = queries * prefix + queries * (queries + 1) // 2
    windowed = sum(min(place + 1, dims.window) for place in range(prefix, prefix + queries))
    return [windowed if layer.sliding else full for layer in dims.attention]


def _open_keys(dims: CanvasDims, prefix: int, queries: int) -> list[int]:
    """Keys that every query of the decoder sees in each layer: what the cache holds and the whole canvas."""
    return [(min(prefix, dims.window - 1) if layer.sliding else prefix) + queries for layer in dims.attention]
