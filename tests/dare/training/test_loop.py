"""The training loop: what it counts, what it writes, what it refuses, and what never changes a result."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
import torch
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.sft import SFT, SFTConfig
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families import loading
from dare_bench.dare.training import adapters, checkpoint
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.dare.training.data import TooLong
from dare_bench.dare.training.loop import Diverged
from dare_bench.dare.training.mixture import Phase

FAMILIES = pytest.mark.parametrize("family", ["llada", "sdar"])


def weights(lm):
    return {name: value.clone() for name, value in lm.model.state_dict().items()}


def close(one, two, tolerance):
    return max(float((one[name] - two[name]).abs().max()) for name in one) <= tolerance


class TestMicroBatches:
    @FAMILIES
    @pytest.mark.parametrize(
        ("algorithm", "peft"),
        [(SFT(), None), (SFT(), LoraConfig(r=4)), (D1(D1Config(group_size=3, inner_iterations=2, beta=0.1)), None)],
        ids=["sft", "sft, lora", "d1"],
    )
    def test_never_change_the_result(self, tiny, run, family, algorithm, peft):
        """In float64, plain descent-like steps: rounding is not amplified by Adam's division at tiny gradients."""
        found = []
        for micro in (None, 1, 3):
            lm = tiny(family, dtype=torch.float64)
            config = TrainConfig(steps=2, batch_size=4, micro_batch_size=micro, lr=1e-3, peft=peft)
            done = run(lm, algorithm, config, out=f"micro-{micro}", base="b")
            found.append((weights(lm), done.points, done.result.totals))
        for state, points, totals in found[1:]:
            assert close(state, found[0][0], 1e-6)
            assert {k: v for k, v in totals.items() if not k.endswith("wall_s")} == {
                k: v for k, v in found[0][2].items() if not k.endswith("wall_s")
            }
            for step, metrics in points.items():
                assert metrics == pytest.approx(found[0][1][step], rel=1e-6, abs=1e-9)


class TestFinalCheckpoint:
    @FAMILIES
    def test_loads_and_equals(self, tiny, run, family):
        lm = tiny(family)
        start = weights(lm)
        done = run(lm, SFT(), TrainConfig(steps=2, batch_size=4, lr=1e-2, checkpoint_every=1))
        assert not close(weights(lm), start, 1e-4)
        assert done.result.path == done.out / "final"
        assert done.result.step == 2
        again = loading.load(done.result.path, device="cpu")
        assert all(torch.equal(value, weights(again)[name]) for name, value in weights(lm).items())
        assert again.tokenizer.get_vocab() == lm.tokenizer.get_vocab()
        assert done.result.sha256 == checkpoint.folder_sha256(done.result.path)
        assert sorted(path.name for path in done.out.iterdir()) == ["final", "finished.json"]

    @FAMILIES
    def test_of_adapters_loads_merged(self, tiny, run, family, tmp_path):
        base = loading.save(tiny(family), tmp_path / "base")
        lm = loading.load(base, device="cpu")
        config = TrainConfig(steps=3, batch_size=4, lr=1e-2, peft=LoraConfig(r=4))
        done = run(lm, SFT(), config, base=str(base))
        assert {path.name for path in done.result.path.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        ids = torch.arange(12)[None]
        with torch.no_grad():
            live, started = lm.logits(ids), tiny(family).logits(ids)
            again = loading.load(done.result.path, device="cpu").logits(ids)
        assert (live - started).abs().max() > 1e-2
        assert (again - live).abs().max() < 1e-4

    def test_a_finished_run_returns_at_once(self, tiny, run):
        config = TrainConfig(steps=3, batch_size=2, checkpoint_every=1)
        first = run(tiny("llada"), SFT(), config)
        lm = tiny("llada")
        start = weights(lm)
        again = run(lm, SFT(), config)
        assert again.result == first.result
        assert again.points == {}
        assert again.resumed == [3]
        assert close(weights(lm), start, 0)

    def test_a_lost_final_folder_is_made_again(self, tiny, run):
        config = TrainConfig(steps=2, batch_size=2)
        first = run(tiny("llada"), SFT(), config)
        for path in first.result.path.iterdir():
            path.unlink()
        first.result.path.rmdir()
        assert run(tiny("llada"), SFT(), config).result.sha256 == first.result.sha256

    def test_select_step_stops_there_on_the_same_schedule(self, tiny, run):
        options = {"steps": 6, "batch_size": 2, "lr": 1e-2, "schedule": "linear", "log_every": 4}
        whole = run(tiny("sdar"), SFT(), TrainConfig(**options | {"log_every": 1}), out="whole")
        part = run(tiny("sdar"), SFT(), TrainConfig(**options, select="step:3"), out="part")
        assert part.result.step == 3
        assert part.result.totals["updates"] == 3
        assert list(part.points) == [3]
        assert part.points[3] == whole.points[3]


class TestPoints:
    def test_metrics_and_log_every(self, tiny, run):
        config = TrainConfig(steps=5, batch_size=2, log_every=2, lr=2e-3, schedule="linear")
        done = run(tiny("llada"), SFT(), config)
        assert list(done.points) == [2, 4, 5]
        assert done.points[4]["lr"] == pytest.approx(2e-3 * 0.4)
        for metrics in done.points.values():
            assert {"loss", "nll_masked", "grad_norm", "lr", "train_tokens"} <= set(metrics)
            assert all(math.isfinite(value) for value in metrics.values())
            json.dumps(metrics)

    def test_metrics_of_rollouts(self, tiny, run):
        done = run(tiny("sdar"), D1(D1Config(group_size=2, beta=0.1)), TrainConfig(steps=2, batch_size=2))
        assert {
            "reward", "reward/count_ones", "zero_variance_groups", "response_tokens", "rollout_nfe", "clip_fraction",
            "ratio_mean", "kl", "loss",
        } <= set(done.points[1])  # fmt: skip
        assert done.points[1]["kl"] == 0.0  # the policy is still the reference
        assert done.points[2]["kl"] > 0.0

    def test_the_loss_falls(self, tiny, run):
        """Twenty steps on one example each."""
        config = TrainConfig(steps=20, batch_size=8, lr=1e-2)
        for family in ("llada", "sdar"):
            data = [{"id": "x", "prompt": [{"role": "user", "content": "a"}], "completion": "bcd"}]
            done = run(tiny(family), SFT(SFTConfig(noise_low=0.5)), config, data=data, out=family)
            losses = [point["nll_masked"] for point in done.points.values()]
            assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


class TestTotals:
    def test_supervised_tokens_by_hand(self, tiny, run):
        """Full attention: every row as long as the longest; blocks: noisy window + clean sequence."""
        data = [
            {"id": "a", "prompt": [{"role": "user", "content": "123"}], "completion": "45"},
            {"id": "b", "prompt": [{"role": "user", "content": "12345"}], "completion": "6789012"},
        ]
        llada = tiny("llada")
        done = run(llada, SFT(), TrainConfig(steps=3, batch_size=2), data=data, out="llada")
        # 3 + 2 + end = 6; 5 + 7 + end = 13: two rows of 13.
        assert done.result.totals["train_tokens"] == 3 * 26
        assert done.result.totals["train_flops"] == 6 * llada.dims.parameters * 3 * 26
        assert done.result.totals["updates"] == 3
        assert done.result.totals["samples_seen"] == 6
        assert done.points[2]["train_tokens"] == 2 * 26
        blocks = run(tiny("sdar"), SFT(), TrainConfig(steps=3, batch_size=2), data=data, out="sdar")
        # a: 6 -> 8 tokens, window from block 0: 8 + 8. b: 13 -> 16 tokens, window from position 4: 12 + 16.
        assert blocks.result.totals["train_tokens"] == 3 * (16 + 28)
        both = run(tiny("sdar"), SFT(SFTConfig(complementary=True)), TrainConfig(steps=3, batch_size=2), data=data)
        assert both.result.totals["train_tokens"] == 3 * 2 * (16 + 28)

    def test_rollout_budget_by_hand(self, tiny, run):
        lm = tiny("llada")
        data = [{"id": "a", "prompt": [{"role": "user", "content": "123"}]}]
        algorithm = D1(D1Config(group_size=4, inner_iterations=2, beta=0.1))
        decoder = DecoderConfig(gen_length=8, steps_per_block=2, early_stop=False)
        done = run(lm, algorithm, TrainConfig(steps=4, batch_size=1), data=data, decoder=decoder)
        totals = done.result.totals
        assert totals["rollout_tokens"] == 2 * 4 * 8  # rollouts x group x tokens
        assert totals["rollout_nfe"] == 2 * 4 * 4  # two blocks of two steps each
        assert totals["train_tokens"] == 4 * 4 * 11  # updates x rows x (prompt + gen_length)
        # Old and reference policies only score: 2 N per token each. Old is known without scoring in the first pass of two.
        assert totals["train_flops"] == ((6 + 2) * 4 + 2 * 2) * lm.dims.parameters * 4 * 11
        assert totals["rollout_flops"] > 0
        assert totals["train_wall_s"] > 0


class TestReference:
    def test_full_weights_score_a_frozen_copy(self, tiny, run, monkeypatch):
        """KL to the start: computed by hand from the starting weights and those before each step."""
        from dare_bench.dare.training import replay, stepper

        lm, start = tiny("llada"), tiny("llada")
        seen = []
        original = stepper.Stepper._ref

        def spy(self, batch, context):
            (ref,) = original(self, batch, context)
            (rows,) = self.algorithm.rows(batch, context)
            seen.append((ref, replay.score_all(start, rows, None)))
            return [ref]

        monkeypatch.setattr(stepper.Stepper, "_ref", spy)
        run(lm, D1(D1Config(group_size=2, beta=0.5)), TrainConfig(steps=3, batch_size=2, lr=1e-2))
        assert len(seen) == 3
        assert all(torch.equal(ref, expected) for ref, expected in seen)

    def test_adapters_score_themselves_switched_off(self, tiny, run, monkeypatch):
        from dare_bench.dare.training import replay, stepper

        lm, start = tiny("sdar"), tiny("sdar")
        seen = []
        original = stepper.Stepper._ref

        def spy(self, batch, context):
            assert self.reference is None
            (ref,) = original(self, batch, context)
            (rows,) = self.algorithm.rows(batch, context)
            seen.append((ref, replay.score_all(start, rows, None), replay.score_all(self.lm, rows, None)))
            return [ref]

        monkeypatch.setattr(stepper.Stepper, "_ref", spy)
        config = TrainConfig(steps=3, batch_size=2, lr=1e-2, peft=LoraConfig(r=4))
        run(lm, D1(D1Config(group_size=2, beta=0.5)), config, base="b")
        assert all(torch.equal(ref, expected) for ref, expected, _ in seen)
        assert not torch.equal(seen[-1][0], seen[-1][2])

    def test_old_scores_come_from_the_weights_that_rolled_out(self, tiny, run):
        """With two passes per rollout the ratio is exactly 1 in the first only."""
        done = run(
            tiny("llada"),
            D1(D1Config(group_size=3, inner_iterations=2)),
            TrainConfig(steps=4, batch_size=2, lr=1e-2),
        )
        ratios = [done.points[step]["ratio_mean"] for step in (1, 2, 3, 4)]
        assert ratios[0] == ratios[2] == 1.0
        assert ratios[1] != 1.0
        assert ratios[3] != 1.0


class TestDivergence:
    def test_nan_aborts_and_keeps_the_last_good_state(self, tiny, run):
        lm = tiny("llada")
        config = TrainConfig(steps=6, batch_size=2, lr=1e-2, checkpoint_every=2)

        class Broken(SFT):
            def loss(self, new, old, ref, rows, advantages, context):
                loss, metrics = super().loss(new, old, ref, rows, advantages, context)
                return (loss * math.nan, metrics | {"loss": math.nan}) if context.step == 4 else (loss, metrics)

        with pytest.raises(Diverged, match=r"loss is nan at step 5 \(lr 0\.01\); lower lr"):
            run(lm, Broken(), config)
        good = run(tiny("llada"), SFT(), config, out="good", die_at=5)
        state = checkpoint.latest_state(good.out.parent / "run")
        assert state.name == "step-00000004"
        for name in ("weights.safetensors", "optimizer.safetensors"):
            assert (state / name).read_bytes() == (checkpoint.latest_state(good.out) / name).read_bytes()
        assert all(torch.isfinite(value).all() for value in weights(lm).values())
        resumed = run(tiny("llada"), SFT(), config)  # the cause is gone: it goes on from there
        assert resumed.resumed == [4]
        assert resumed.result.sha256 == run(tiny("llada"), SFT(), config, out="straight").result.sha256

    def test_an_infinite_gradient_aborts_too(self, tiny, run):
        lm = tiny("llada")

        class Broken(SFT):
            def loss(self, new, old, ref, rows, advantages, context):
                loss, metrics = super().loss(new, old, ref, rows, advantages, context)
                return loss * 1e30 * 1e30, metrics

        with pytest.raises(Diverged, match=r"grad_norm is (inf|nan) at step 1"):
            run(lm, Broken(), TrainConfig(steps=2, batch_size=2))
        assert all(torch.equal(value, weights(tiny("llada"))[name]) for name, value in weights(lm).items())


class TestRefused:
    @pytest.mark.parametrize("select", ["step:0", "step:4", "step:x", "best", "best_on:test"])
    def test_select(self, tiny, run, select):
        with pytest.raises(ValueError, match=rf"select: '{select}'; allowed: 'last', 'step:N' with N up to steps"):
            run(tiny("llada"), SFT(), TrainConfig(steps=3, select=select))

    def test_rollouts_without_reward_or_decoder(self, tiny, run):
        for missing in ({"reward_funcs": ()}, {"decoder": None}):
            with pytest.raises(ValueError, match="d1 samples its own responses: it needs reward_funcs and a decoder"):
                run(tiny("llada"), D1(), TrainConfig(steps=1), **missing)

    def test_rollout_without_length(self, tiny, run):
        with pytest.raises(ValueError, match="gen_length is None"):
            run(tiny("llada"), D1(), TrainConfig(steps=1, batch_size=1), decoder=DecoderConfig())

    def test_adapters_without_the_name_of_their_base(self, tiny, run):
        with pytest.raises(ValueError, match="give base: a registry name, hub id or folder"):
            run(tiny("llada"), SFT(), TrainConfig(steps=1, peft=LoraConfig()))

    def test_long_examples(self, tiny, run):
        with pytest.raises(TooLong, match="max_length is 4"):
            run(tiny("llada"), SFT(), TrainConfig(steps=1, max_length=4))

    def test_no_examples(self, tiny, run):
        with pytest.raises(ValueError, match="no training examples"):
            run(tiny("llada"), SFT(), TrainConfig(steps=1), data=[])

    def test_an_unknown_schedule(self, tiny, run):
        with pytest.raises(ValueError, match="schedule: 'poly'; allowed"):
            run(tiny("llada"), SFT(), TrainConfig(steps=1, schedule="poly"))

    def test_a_state_of_another_model(self, tiny, run):
        config = TrainConfig(steps=4, batch_size=2, checkpoint_every=1)
        run(tiny("llada"), SFT(), config, die_at=3)
        with pytest.raises(ValueError, match=r"state of 21 tensors, the model trains 28; delete the folder"):
            run(tiny("llada"), SFT(), TrainConfig(steps=4, peft=LoraConfig(r=2)), base="b")


class TestActivationCheckpointing:
    @FAMILIES
    @pytest.mark.parametrize("peft", [None, LoraConfig(r=4, alpha=8)], ids=["full", "lora"])
    @pytest.mark.parametrize("algorithm", [SFT(), D1(D1Config(group_size=2, inner_iterations=2))], ids=["sft", "d1"])
    def test_same_result_with_recomputed_layers(self, tiny, run, family, peft, algorithm, monkeypatch):
        import torch.utils.checkpoint as recompute

        calls = Counter()
        original = recompute.checkpoint

        def counted(*args, **kwargs):
            calls["layers"] += 1
            return original(*args, **kwargs)

        options = {"steps": 2, "batch_size": 3, "lr": 1e-3, "peft": peft}
        plain = run(tiny(family), algorithm, TrainConfig(**options), out="plain", base="b")
        monkeypatch.setattr("transformers.modeling_utils.checkpoint", counted)
        saved = run(tiny(family), algorithm, TrainConfig(**options, gradient_checkpointing=True), out="saved", base="b")
        assert calls["layers"] >= 2 * 2
        assert saved.points == plain.points


class TestPrecision:
    def test_bfloat16_autocast_in_a_process_that_ran_float32(self, tiny, run):
        plain = run(tiny("llada"), SFT(), TrainConfig(steps=2, batch_size=2), out="f32")
        lm = tiny("llada")
        half = run(lm, SFT(), TrainConfig(steps=2, batch_size=2, dtype="bfloat16"), out="bf16")
        assert half.points[1]["loss"] != plain.points[1]["loss"]
        assert half.points[1]["loss"] == pytest.approx(plain.points[1]["loss"], rel=0.05)
        assert lm.dtype == torch.float32  # weights and optimiser stay in float32
        again = run(tiny("llada"), SFT(), TrainConfig(steps=2, batch_size=2), out="again")
        assert again.points == plain.points


class TestDropout:
    def test_adapter_dropout_acts_in_sft_and_not_in_d1(self, tiny, run):
        def points(algorithm, dropout):
            config = TrainConfig(steps=3, batch_size=2, lr=1e-2, peft=LoraConfig(r=4, dropout=dropout))
            name = f"{algorithm.name}-{dropout}"
            return run(tiny("llada"), algorithm, config, base="b", out=name).points

        assert points(SFT(), 0.5) != points(SFT(), 0.0)
        d1 = D1(D1Config(group_size=2, inner_iterations=1))
        assert points(d1, 0.5) == points(d1, 0.0)


def test_phases_pick_sources(tiny, run):
    data = [
        {"id": f"{source}{i}", "prompt": [{"role": "user", "content": source}], "completion": "x" * length,
         "source": source}
        for source, length in (("a", 1), ("b", 10))
        for i in range(3)
    ]  # fmt: skip
    phases = [Phase(0.5, {"a": 1.0}), Phase(1.0, {"b": 1.0})]
    done = run(tiny("llada"), SFT(), TrainConfig(steps=4, batch_size=2), data=data, phases=phases)
    tokens = [done.points[step]["train_tokens"] for step in (1, 2, 3, 4)]
    # 1 + 1 + end = 3 tokens, then 1 + 10 + end = 12, two rows each.
    assert tokens == [6, 12, 36, 60]


def test_the_model_is_adapted_only_with_peft(tiny, run):
    lm = tiny("llada")
    run(lm, SFT(), TrainConfig(steps=1, batch_size=1, peft=LoraConfig(r=2)), base="b")
    assert len(list(adapters.lora_layers(lm.model))) == 14
    plain = tiny("llada")
    run(plain, SFT(), TrainConfig(steps=1, batch_size=1), out="full")
    assert not list(adapters.lora_layers(plain.model))
