"""What determines a job's result, and nothing else, as one hash.

Not in any fingerprint: labels, paths, device, worker count, batch size of decoding (rows are independent), logging.
A base checkpoint does not depend on the seed, a greedy evaluation neither: such cells share their evaluation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training.config import TrainConfig, base_dtype
from dare_bench.dare.training.progress import BEST_ON
from dare_bench.harness.resolved import Model
from dare_bench.harness.settings import plain
from dare_bench.results.keys import fingerprint
from dare_bench.suites.rewards import Choice
from dare_bench.suites.rewards import registry as rewards_registry
from dare_bench.suites.rewards.building import EXACT

#: Raised when a change of the code changes what the same settings produce.
TRAIN_VERSION = 1
GENERATE_VERSION = 1
SCORE_VERSION = 1

#: Settings of training that do not change its result: how often a resumable state is written.
_NOT_DETERMINING = ("checkpoint_every",)

#: Facts of a checkpoint that decoding it does not depend on.
NOT_DECODING = ("lora_targets", "reply_end")


def checkpoint_identity(
    model: Model, weights: Mapping[str, Any], *, unused: Collection[str] = NOT_DECODING
) -> dict[str, Any]:
    """What identifies an untrained checkpoint: family, weights and the facts given for it, not its name or place.

    Args:
        model: the model.
        weights: `Weights.identity` (content digest, or hub id and revision).
        unused: facts without effect on the job; the default decoder never counts, since its fields are the decoder's.
    """
    facts = {name: value for name, value in model.overrides.values().items() if name not in {*unused, "decoder"}}
    return {"family": model.family, "weights": dict(weights)} | ({"facts": facts} if facts else {})


def train_values(train: TrainConfig) -> dict[str, Any]:
    """Optimisation settings as JSON values; a switch that is younger than stored fingerprints appears when it is on."""
    values = plain(train)
    if not train.select.startswith(BEST_ON):
        values.pop("validation_rows")
    if train.peft is not None and not train.peft.experts:
        values["peft"].pop("experts")
    if train.peft is not None and train.peft.quantize is None:
        values["peft"].pop("quantize")
    if base_dtype(train) != "float32":
        values["base_dtype"] = base_dtype(train)  # frozen weights were float32 once, whatever computed
    return values


def train_fingerprint(
    *,
    base: Mapping[str, Any],
    algorithm: str,
    algorithm_version: int,
    settings: Mapping[str, Any],
    train: TrainConfig,
    rollout: DecoderConfig | None,
    data: list[dict[str, Any]],
    phases: list[Any],
    seed: int,
    rewards: Sequence[Choice] = (),
    validation: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> str:
    """Fingerprint of a training run.

    Args:
        base: `checkpoint_identity` of the starting model.
        algorithm: registry name.
        algorithm_version: of its code.
        settings: the algorithm's own config.
        train: optimisation settings.
        rollout: decoder of rollouts, or null.
        data: per training benchmark: identity of rows, protocol, and reward version.
        phases: curriculum over the data; empty = none.
        seed: of the run.
        rewards: what rollouts are paid; they appear only where they differ from the default.
        validation: identity of the held-out rows and the decoder that answers them, where they choose the checkpoint; then
            the steps between checkpoints matter too.
        engine: kind of the server that samples the rollouts; null = no server.
    """
    paid = paid_rewards(rewards)
    free = () if validation else _NOT_DETERMINING
    optimisation = {key: value for key, value in train_values(train).items() if key not in free}
    return fingerprint(
        {
            "kind": "train",
            "version": TRAIN_VERSION,
            "base": dict(base),
            "algorithm": algorithm,
            "algorithm_version": algorithm_version,
            "settings": dict(settings),
            "train": optimisation,
            "rollout": None if rollout is None else rollout.determinants(),
            "data": data,
            "phases": phases,
            "seed": seed,
            **({"rewards": paid} if paid else {}),
            **({"validation": dict(validation)} if validation else {}),
            **({"engine": engine} if engine else {}),
        }
    )


def paid_rewards(choices: Sequence[Choice]) -> list[list[Any]]:
    """What of the chosen rewards determines the weights: [name, version, weight, options], those of weight 0 left out.

    Empty for the default, whether it was written out or not.
    """
    paid = [choice for choice in choices if choice.weight]
    if len(paid) == 1 and paid[0] == Choice(EXACT, 1.0, plain(rewards_registry.get(EXACT).options_class())):
        return []
    return sorted([one.name, rewards_registry.get(one.name).version, one.weight, dict(one.options)] for one in paid)


def generate_fingerprint(
    *, checkpoint: Mapping[str, Any] | str, task: Mapping[str, Any], decoder: DecoderConfig, dtype: str, seed: int
) -> tuple[str, int | None]:
    """Fingerprint of an evaluation's generations.

    Args:
        checkpoint: `checkpoint_identity`, or the training fingerprint.
        task: identity of rows and protocol.
        decoder: with `gen_length` filled in.
        dtype: of the weights when decoding.
        seed: used only when the decoder draws.

    Returns:
        (fingerprint, seed or null when nothing is drawn).
    """
    used = seed if decoder.draws else None
    key = fingerprint(
        {
            "kind": "generate",
            "version": GENERATE_VERSION,
            "checkpoint": checkpoint if isinstance(checkpoint, str) else dict(checkpoint),
            "task": dict(task),
            "decoder": decoder.determinants(),
            "dtype": dtype,
            "seed": used,
        }
    )
    return key, used


def score_fingerprint(evaluation: str, scorer: str, scorer_version: int) -> str:
    """Fingerprint of one scorer version on one evaluation."""
    return fingerprint(
        {
            "kind": "score",
            "version": SCORE_VERSION,
            "evaluation": evaluation,
            "scorer": scorer,
            "scorer_version": scorer_version,
        }
    )


def with_length(decoder: DecoderConfig, gen_length: int) -> DecoderConfig:
    """The decoder with the protocol's generation length where the manifest gives none."""
    return decoder if decoder.gen_length is not None else dataclasses.replace(decoder, gen_length=gen_length)
