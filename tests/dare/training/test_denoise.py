"""The denoiser with a fixed number of steps: as the engine decodes, rows alone, remasking, what it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.training.denoise import Denoiser, check
from dare_bench.dare.training.denoise_settings import HONOURED, SELECTORS

FULL = ["dream", "llada", "llada_moe"]
PROMPTS = [[5, 6, 7], [8, 9], [11, 12, 13, 14, 15]]


def decoder(**fields):
    return DecoderConfig(**{"gen_length": 10, "block_length": 4, "steps_per_block": 3, **fields})


def denoised(lm, settings, seeds=(1, 2, 3), prompts=PROMPTS, **options):
    denoiser = Denoiser(lm.eval(), settings, **options)
    return denoiser, denoiser.run(denoiser.start(prompts), seeds, 0, denoiser.steps)


@pytest.mark.parametrize("family", FULL)
@pytest.mark.parametrize("selector", ["low_confidence", "entropy", "topk_margin", "sequential"])
def test_greedy_answers_are_those_of_the_engine(tiny, family, selector):
    lm = tiny(family, text=False, dtype=torch.float64)
    settings = decoder(selector=selector, early_stop=False)
    denoiser, canvas = denoised(lm, settings)
    for mine, engine in zip(denoiser.take(canvas), generate(lm, PROMPTS, settings, [1, 2, 3]), strict=True):
        assert mine.token_ids == engine.token_ids
        assert mine.text_ids == engine.text_ids
        assert mine.finish_reason == engine.finish_reason
        assert mine.block_starts == engine.block_starts
        assert mine.step_map == engine.step_map
        assert mine.confidence == pytest.approx(engine.confidence, abs=2e-6)
        assert (mine.cost.nfe, mine.cost.positions_fed) == (engine.cost.nfe, engine.cost.positions_fed)
        assert (mine.cost.kv_read, mine.cost.flops) == (engine.cost.kv_read, engine.cost.flops)
        assert mine.cost.tokens_committed == engine.cost.tokens_committed
        assert mine.cost.tokens_text == engine.cost.tokens_text


@pytest.mark.parametrize("family", FULL)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("everywhere", [False, True])
def test_rows_do_not_depend_on_those_beside_them(tiny, family, selector, everywhere):
    lm = tiny(family, text=False)
    settings = decoder(selector=selector, temperature=1.0)
    denoiser, canvas = denoised(lm, settings, everywhere=everywhere)
    together = denoiser.take(canvas)
    for row, prompt in enumerate(PROMPTS):
        single, alone = denoised(lm, settings, [row + 1], [prompt], everywhere=everywhere)
        (answer,) = single.take(alone)
        assert answer.token_ids == together[row].token_ids
        assert answer.step_map == together[row].step_map
    assert denoiser.take(denoised(lm, settings, (4, 5, 6))[1])[0].token_ids != together[0].token_ids


def test_stopping_half_way_changes_nothing(tiny):
    lm = tiny("llada", text=False).eval()
    denoiser = Denoiser(lm, decoder(temperature=1.0), remask=True)
    start = denoiser.start(PROMPTS)
    once = denoiser.run(start, [1, 2, 3], 0, denoiser.steps)
    half = denoiser.run(start, [1, 2, 3], 0, 4)
    twice = denoiser.run(half, [1, 2, 3], 4, denoiser.steps)
    assert (start.ids == lm.mask_token_id).sum() == 30
    for name in ("ids", "step_map", "confidence", "nfe", "outputs"):
        assert torch.equal(getattr(once, name), getattr(twice, name)), name
    other = denoiser.run(half, [7, 8, 9], 4, denoiser.steps)
    assert not torch.equal(other.ids, once.ids)


@pytest.mark.parametrize("schedule", ["quota", "linear", "cosine"])
@pytest.mark.parametrize("selector", ["low_confidence", "entropy", "topk_margin"])
def test_remasking_follows_the_schedule_and_takes_tokens_back(tiny, schedule, selector):
    lm = tiny("llada", text=False).eval()
    settings = DecoderConfig(
        gen_length=16, block_length=16, steps_per_block=8, temperature=1.5, scheduler=schedule, selector=selector
    )
    plain, remasking = (Denoiser(lm, settings, remask=remask) for remask in (False, True))
    counts, back = [], 0
    for denoiser in (plain, remasking):
        masks = []
        seen = []
        denoiser.run(denoiser.start(PROMPTS * 4), range(12), 0, 8, lambda _, guess, to=seen: to.append(guess.inputs))
        for inputs in seen:
            masks.append((inputs == lm.mask_token_id).sum(1).tolist())
        counts.append(masks)
        if denoiser is remasking:
            for before, after in pairwise(seen):
                back += int(((before != lm.mask_token_id) & (after == lm.mask_token_id)).sum())
    assert counts[0] == counts[1]
    assert back > 0
    canvas = remasking.run(remasking.start(PROMPTS), [1, 2, 3], 0, 8)
    (answer, *_) = remasking.take(canvas)
    assert lm.mask_token_id not in answer.token_ids
    assert min(answer.step_map) >= 0
    assert min(answer.confidence) > 0


def test_guesses_cover_every_mask(tiny):
    lm = tiny("dream", text=False).eval()
    denoiser = Denoiser(lm, decoder(temperature=1.0), everywhere=True)
    seen = []
    canvas = denoiser.run(denoiser.start(PROMPTS), [1, 2, 3], 0, denoiser.steps, lambda _, guess: seen.append(guess))
    for guess in seen:
        masked = guess.inputs == lm.mask_token_id
        assert not (guess.guesses == lm.mask_token_id).any()
        assert torch.equal(guess.guesses[~masked], guess.inputs[~masked])
        assert torch.equal(guess.confidence > 0, masked)
    assert torch.equal(seen[-1].guesses, canvas.ids)
    assert canvas.nfe.tolist() == [len(seen)] * 3
    assert canvas.outputs.tolist() == [
        sum(int((g.inputs[row] == lm.mask_token_id).sum()) for g in seen) for row in range(3)
    ]


def test_guessed_confidence_is_the_probability_at_temperature_one(tiny):
    lm = tiny("llada", text=False, dtype=torch.float64).eval()
    denoiser, seen = Denoiser(lm, decoder(temperature=0.3), everywhere=True), []
    denoiser.run(denoiser.start([PROMPTS[0]]), [1], 0, 1, lambda _, guess: seen.append(guess))
    (guess,) = seen
    expected = lm.logits(guess.inputs).detach().softmax(-1).gather(-1, guess.guesses[..., None])[..., 0]
    masked = guess.inputs == lm.mask_token_id
    torch.testing.assert_close(guess.confidence[masked].double(), expected[masked], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"selector": "threshold", "selector_options": {"threshold": 0.9}}, "selector: 'threshold'; allowed"),
        ({"scheduler": "timesteps"}, "scheduler: 'timesteps'; allowed here: 'cosine', 'linear', 'quota'"),
        ({"cache": "prefix"}, "cache: 'prefix'; allowed here: 'auto', 'none'"),
        ({"early_stop": "now"}, "early_stop: 'now'; allowed here: True, 'block', False"),
        ({"editor": "token_editing"}, "editor: 'token_editing'; allowed here: 'none'"),
        ({"weighting": "eoser"}, "weighting: 'eoser'; allowed here: 'none'"),
        ({"cfg_scale": 1.0}, "cfg_scale: 1.0; allowed here: 0.0"),
        ({"top_p": 0.9}, "top_p: 0.9; allowed here: None"),
        ({"top_k": 5}, "top_k: 5; allowed here: None"),
        ({"confidence": "filtered"}, "confidence: 'filtered'; allowed here: 'plain'"),
        ({"eos_rule": "never"}, "eos_rule: 'never'; allowed here: 'plain'"),
        ({"compat": {"mask_predicted": {}}}, "compat: .*; allowed here: {}"),
    ],
)  # fmt: skip
def test_fields_that_do_nothing_here_are_refused(fields, said):
    with pytest.raises(ValueError, match=f"decoder.{said}"):
        check(DecoderConfig(gen_length=4, **fields))
    assert not set(fields) & set(HONOURED) - {"selector", "selector_options", "scheduler"}


def test_what_cannot_be_denoised_is_refused(tiny):
    with pytest.raises(ValueError, match="'random'; allowed here: 'entropy', 'low_confidence', 'topk_margin'"):
        check(DecoderConfig(gen_length=4, selector="random"), remask=True)
    with pytest.raises(ValueError, match="gen_length is None"):
        Denoiser(tiny("llada", text=False), DecoderConfig())
    with pytest.raises(ValueError, match="family: 'sdar'; allowed here: families with full attention"):
        Denoiser(tiny("sdar", text=False), decoder())
    with pytest.raises(
        ValueError, match=r"3 steps in all for 4 tokens; allowed: at least one step for each .* 5 levels"
    ):
        Denoiser(tiny("llada", text=False), decoder(gen_length=4)).check_levels(5)
