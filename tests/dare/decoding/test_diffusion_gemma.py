"""DiffusionGemma's own generate, watched: the record is true, rows are independent, settings are honoured or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.diffusion_gemma import COOLED, SETTLED, generate
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.registry import get_family
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training.tokenizer import SPECIALS, train_tokenizer
from torch.utils.flop_counter import FlopCounterMode

CANVAS, WINDOW = 8, 6
PROMPTS = [[2, 5, 9], [2, 7, 7, 30, 31, 32, 33, 34, 35, 36], [2]]
SEEDS = [11, 12, 13]


@pytest.fixture(scope="module")
def lm(tiny: Callable[..., DiffusionLM]) -> DiffusionLM:
    """A random model that no token stops by chance."""
    found = tiny("diffusion_gemma", dtype=torch.float32)
    return _stopping_at(found, set())


def _stopping_at(lm: DiffusionLM, stops: set[int]) -> DiffusionLM:
    other = DiffusionLM(lm.family, lm.config, lm.model, lm.tokenizer)
    other.stop_token_ids = stops or {63}
    return other


def settings(**changes: Any) -> DecoderConfig:
    published = dict(get_family("diffusion_gemma").default_decoder)
    return DecoderConfig(**{**published, "steps_per_block": 5, "gen_length": 20, **changes})


def test_tokens_are_those_of_the_class_loaded_by_transformers(lm: DiffusionLM, tmp_path: Path) -> None:
    from transformers import DiffusionGemmaForBlockDiffusion
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

    network = DiffusionGemmaForBlockDiffusion.from_pretrained(loading.save(lm, tmp_path), dtype=torch.float32)
    for prompt, seed in zip(PROMPTS, SEEDS, strict=True):
        ours = generate(lm, [prompt], settings(), [seed])[0]
        with torch.random.fork_rng():
            torch.manual_seed(stream_seed(seed, "decode"))
            theirs = network.generate(
                torch.tensor([prompt]),
                max_new_tokens=20,
                max_denoising_steps=5,
                sampler_config=EntropyBoundSamplerConfig(0.1),
                t_max=0.8,
                t_min=0.8 * COOLED,
                stability_threshold=1,
                confidence_threshold=0.005,
            )
        assert ours.token_ids == theirs.sequences[0, len(prompt) :].tolist()


def test_a_row_depends_on_prompt_and_seed_only(lm: DiffusionLM) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    together = generate(lm, PROMPTS, settings(), SEEDS, batch_size=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    order = [2, 0, 1]
    shuffled = generate(lm, [PROMPTS[i] for i in order], settings(), [SEEDS[i] for i in order], batch_size=1)
    for place, index in enumerate(order):
        assert _without_clock(shuffled[place]) == _without_clock(together[index])
    other = generate(lm, PROMPTS[:1], settings(), [99])[0]
    assert other.token_ids != together[0].token_ids


def _without_clock(found: Any) -> dict[str, Any]:
    assert found.cost.wall_s > 0
    return vars(replace(found, cost=replace(found.cost, wall_s=0.0)))


@pytest.mark.parametrize(("length", "canvases"), [(1, 1), (8, 1), (9, 2), (20, 3)])
def test_the_text_never_exceeds_gen_length(lm: DiffusionLM, length: int, canvases: int) -> None:
    found = generate(lm, PROMPTS[:1], settings(gen_length=length), SEEDS[:1])[0]
    assert len(found.token_ids) == canvases * CANVAS == found.cost.tokens_committed
    assert found.block_starts == [CANVAS * index for index in range(canvases)]
    assert found.text_ids == found.token_ids[:length]
    assert found.cost.tokens_text == length
    assert found.finish_reason == "length"


def test_a_stop_token_ends_the_row_after_its_canvas(lm: DiffusionLM) -> None:
    free = generate(lm, PROMPTS[:1], settings(gen_length=24), SEEDS[:1])[0]
    place = CANVAS + 2
    stops = {free.token_ids[place]}
    place = free.token_ids.index(free.token_ids[place])
    stopping = _stopping_at(lm, stops)
    found = generate(stopping, PROMPTS[:1], settings(gen_length=24), SEEDS[:1])[0]
    ends = (place // CANVAS + 1) * CANVAS
    assert found.token_ids == free.token_ids[:ends]
    assert found.text_ids == free.token_ids[:place]
    assert (found.finish_reason, found.cost.tokens_text) == ("stop", place)
    patient = generate(stopping, PROMPTS[:1], settings(gen_length=24, early_stop=False), SEEDS[:1])[0]
    assert patient.token_ids == free.token_ids
    assert (patient.text_ids, patient.finish_reason) == (found.text_ids, "stop")
    beyond = generate(stopping, PROMPTS[:1], settings(gen_length=place), SEEDS[:1])[0] if place else None
    assert beyond is None or (beyond.finish_reason, len(beyond.text_ids)) == ("length", place)


def test_forwards_and_what_they_see_are_counted_as_hooks_count_them(lm: DiffusionLM) -> None:
    seen: list[tuple[str, int, list[int]]] = []

    def encoder(module: Any, args: Any, given: dict[str, Any], output: Any) -> None:
        seen.append(("encoder", given["input_ids"].shape[1], [layer.keys.shape[2] for layer in output.cache.layers]))

    def decoder(module: Any, args: Any, given: dict[str, Any], output: Any) -> None:
        stored = [layer.keys.shape[2] for layer in given["cache"].layers]
        seen.append(("decoder", given["decoder_input_ids"].shape[1], stored))

    hooks = [
        lm.model.model.encoder.register_forward_hook(encoder, with_kwargs=True),
        lm.model.model.decoder.register_forward_hook(decoder, with_kwargs=True),
    ]
    found = generate(lm, PROMPTS[1:2], settings(), SEEDS[:1])[0]
    for hook in hooks:
        hook.remove()
    assert found.cost.nfe == found.cost.row_forwards == len(found.kinds) == len(seen)
    assert found.cost.positions_fed == sum(fed for _, fed, _ in seen)
    names = {"prefill": "encoder", "store": "encoder", "denoise": "decoder"}
    assert [names[kind] for kind in found.kinds] == [side for side, _, _ in seen]
    assert found.kinds.count("prefill") == 1
    assert found.kinds.count("store") == 2
    prompt, pairs = len(PROMPTS[1]), 0
    for side, fed, stored in seen:
        assert stored[0] == WINDOW - 1  # what a sliding layer keeps of a longer prefix
        full = stored[1]
        pairs += fed * (full + fed) if side == "decoder" else sum(full - i for i in range(fed))
    assert prompt > WINDOW
    assert found.cost.kv_read == pairs


def test_operations_agree_with_a_counter(lm: DiffusionLM) -> None:
    implementation = lm.model.config._attn_implementation
    # The counter knows plain products only.
    lm.model.set_attn_implementation("eager")
    lm.model.set_experts_implementation("eager")
    # A prompt of one token: of a longer one the counter sees the closed half of the causal square, too.
    with FlopCounterMode(display=False) as counter:
        found = generate(lm, PROMPTS[2:], settings(gen_length=8), SEEDS[:1])[0]
    lm.model.set_attn_implementation(implementation)
    lm.model.set_experts_implementation("grouped_mm")
    assert found.kinds == ["prefill", *["denoise"] * 5]
    assert found.cost.flops == counter.get_total_flops()


def test_the_step_map_says_since_when_a_draft_shows_the_token(lm: DiffusionLM, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[list[int]] = []
    inner = lm.model._denoising_step

    def recording(**given: Any) -> Any:
        result = inner(**given)
        drafts.append(result[1][0].tolist())
        return result

    monkeypatch.setattr(lm.model, "_denoising_step", recording)
    found = generate(lm, PROMPTS[:1], settings(gen_length=16, steps_per_block=12), SEEDS[:1])[0]
    forwards = [index for index, kind in enumerate(found.kinds) if kind == "denoise"]
    assert len(forwards) == len(drafts)
    blocks = [*found.block_starts, len(found.token_ids)]
    second = found.kinds.index("store")
    for begin, end in pairwise(blocks):
        own = [(at, draft) for at, draft in zip(forwards, drafts, strict=True) if (at > second) == (begin > 0)]
        assert own[-1][1] == found.token_ids[begin:end]
        for place, token in enumerate(found.token_ids[begin:end]):
            since = own[-1][0]
            for at, draft in reversed(own):
                if draft[place] != token:
                    break
                since = at
            assert found.step_map[begin + place] == since
    assert len(set(found.step_map)) > 2
    assert all(0 < value <= 1 for value in found.confidence)
    assert found.convention == SETTLED
    assert len(SETTLED) <= 32


def test_a_confident_canvas_ends_before_its_last_step(lm: DiffusionLM) -> None:
    eager = {"entropy_bound": 0.1, "stability_threshold": 1, "confidence_threshold": 50.0}
    found = generate(lm, PROMPTS[:1], settings(gen_length=8, steps_per_block=40, selector_options=eager), SEEDS[:1])[0]
    assert found.cost.nfe < 41


def test_rows_are_reported_as_they_finish(lm: DiffusionLM) -> None:
    told: list[tuple[int, list[int]]] = []
    found = generate(
        lm, PROMPTS, settings(gen_length=8), SEEDS, on_finish=lambda index, row: told.append((index, row.token_ids))
    )
    assert told == [(index, row.token_ids) for index, row in enumerate(found)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"selector": "low_confidence"}, "'entropy_bound'"),
        ({"temperature": 0.0}, "0.8 as published"),
        ({"block_length": 4}, "decoder.block_length is 4"),
        ({"cache": "none"}, "decoder.cache is 'none'"),
        ({"scheduler": "cosine"}, "decoder.scheduler is 'cosine'"),
        ({"selector_options": {"threshold": 0.9}}, "threshold"),
        ({"selector_options": {"entropy_bound": 0}}, "positive numbers"),
        ({"gen_length": None}, "gen_length"),
    ],
)
def test_what_the_class_does_not_honour_is_refused(lm: DiffusionLM, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        generate(lm, PROMPTS[:1], settings(**changes), SEEDS[:1])


def test_a_checkpoint_with_a_tokenizer_answers_in_a_job(lm: DiffusionLM, tmp_path: Path) -> None:
    from dare_bench.harness.jobs.answer import cost_line
    from dare_bench.harness.jobs.generate import sample
    from dare_bench.suites.benchmarks.base import Row

    names = SPECIALS["diffusion_gemma"]
    size = 256 + len(names)
    tokenizer = train_tokenizer(
        ["0 1"],
        "diffusion_gemma",
        vocab_size=size,
        chat_template=lm.family.chat_template,
    )
    text = {**lm.config["text_config"], "vocab_size": size}
    eos = tokenizer.convert_tokens_to_ids("<eos>")
    made = loading.from_config("diffusion_gemma", lm.config | {"text_config": text, "eos_token_id": eos}, seed=3)
    made.tokenizer = tokenizer
    loaded = loading.load(loading.save(made, tmp_path), device="cpu")
    assert loaded.stop_token_ids == {tokenizer.convert_tokens_to_ids(name) for name in loaded.family.stop_tokens}
    texts, prompts = loaded.encode_chats([[{"role": "user", "content": "the sum of 2 and 3"}]])
    assert tokenizer.decode(prompts[0]) == texts[0]
    assert prompts[0][0] == tokenizer.convert_tokens_to_ids("<bos>")
    found = generate(loaded, prompts, settings(gen_length=8), SEEDS[:1])[0]
    columns, trajectory = sample(loaded, Row(id="1", question="q", gold="5"), texts[0], found)
    assert columns["text"] == loaded.decode(found.text_ids)
    assert "".join(trajectory["pieces"]) == tokenizer.decode(found.token_ids)
    assert (columns["nfe"], trajectory["convention"]) == (found.cost.nfe, SETTLED)
    assert f"{found.cost.nfe} forwards" in cost_line(found)
