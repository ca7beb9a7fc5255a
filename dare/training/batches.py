"""The batch of each cycle: supervised examples, or a graded rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dare_bench.dare.algorithms.base import Algorithm, Batch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.trajectory import check_replayable
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed, uniform
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.data import Encoded, collate, collate_pairs, encode
from dare_bench.dare.training.mixture import Mixture
from dare_bench.dare.training.progress import Run
from dare_bench.dare.training.rollout import RewardFunction, Sampler
from dare_bench.dare.training.rollout_kinds import kind_of
from dare_bench.dare.training.world import ALONE, World


class Batches:
    """Makes the batch of a cycle: examples, or a graded rollout."""

    def __init__(
        self,
        lm: DiffusionLM,
        algorithm: Algorithm,
        examples: Sequence[Mapping[str, Any]],
        encoded: Sequence[Encoded],
        mixture: Mixture,
        config: TrainConfig,
        seed: int,
        world: World = ALONE,
    ) -> None:
        self.world = world
        self.lm, self.algorithm, self.examples, self.encoded = lm, algorithm, examples, encoded
        self.mixture, self.config, self.seed = mixture, config, seed
        self.options = getattr(algorithm, "config", None)
        self.rejected = _rejected(lm, algorithm, examples, config) if algorithm.needs.pairs else []
        self.rolls = algorithm.needs.rollout != "none"
        self.inner_iterations = int(getattr(self.options, "inner_iterations", 1)) if self.rolls else 1

    def configure(
        self,
        reward_funcs: Sequence[RewardFunction],
        reward_weights: Sequence[float] | None,
        decoder: DecoderConfig | None,
        sampler: Sampler | None = None,
    ) -> None:
        """Set what rollouts need; a `sampler` makes them instead of the model in this process."""
        self.sampler = sampler
        self.reward_funcs, self.reward_weights, self.decoder = reward_funcs, reward_weights, decoder
        if self.rolls and (not reward_funcs or decoder is None):
            raise ValueError(f"{self.algorithm.name} samples its own responses: it needs reward_funcs and a decoder")
        if not self.rolls or decoder is None:
            return
        rolled = rollout_decoder(decoder, self.options.temperature, self.algorithm.needs.rollout)
        kind_of(self.algorithm.needs).check(self.lm, rolled, self.options)
        if self.algorithm.needs.trace == "step_map":
            check_replayable(rolled)

    def make(self, cycle: int, run: Run) -> tuple[Batch, dict[str, float]]:
        """The batch of one cycle (= one rollout, or one supervised step) and the metrics of making it."""
        cycles = -(-self.config.steps // self.inner_iterations)
        picked = self.mixture.pick(seed=self.seed, step=cycle, total_steps=cycles, size=self.config.batch_size)
        rows = [self.encoded[index] for index in picked]
        if self.algorithm.needs.pairs:
            return self._pairs(picked), {}
        # An example may come twice in a batch: its slot makes the draws differ.
        rows = [replace(row, id=f"{row.id}#{slot}") for slot, row in enumerate(rows)]
        if not self.rolls:
            extra = None
            if self.config.pad_blocks:
                u = uniform([stream_seed(self.seed, "pad_blocks", cycle)], len(rows))[0]
                extra = (u * (self.config.pad_blocks + 1)).long().tolist()
            return collate(self.lm, rows, extra_blocks=extra), {}
        decoder = rollout_decoder(self.decoder, self.options.temperature, self.algorithm.needs.rollout)
        rolled = kind_of(self.algorithm.needs).roll(
            self.lm,
            rows,
            [self.examples[index]["prompt"] for index in picked],
            decoder,
            self.options,
            seed=self.seed,
            step=cycle,
            reward_funcs=self.reward_funcs,
            reward_weights=self.reward_weights,
            world=self.world,
            **({} if self.sampler is None else {"sampler": self.sampler}),
        )
        run.add(rollout_tokens=rolled.tokens, rollout_nfe=rolled.nfe, rollout_flops=rolled.flops)
        return rolled.batch, rolled.metrics

    def _pairs(self, picked: Sequence[int]) -> Batch:
        named = [[replace(side[index], id=f"{side[index].id}#{slot}") for slot, index in enumerate(picked)]
                 for side in (self.encoded, self.rejected)]  # fmt: skip
        return collate_pairs(self.lm, *named)


def rollout_decoder(decoder: DecoderConfig, temperature: float, kind: str) -> DecoderConfig:
    """The decoder of a rollout.

    Args:
        decoder: of the manifest.
        temperature: of the algorithm.
        kind: `Needs.rollout`; ``ar`` decodes strictly left to right, one token per forward.
    """
    if kind != "ar":
        return replace(decoder, temperature=float(temperature))
    return replace(
        decoder,
        temperature=float(temperature),
        selector="sequential",
        selector_options={},
        scheduler="quota",
        scheduler_options={},
        steps_per_block=None,
        weighting="none",
        weighting_options={},
        editor="none",
        editor_options={},
    )


def _rejected(
    lm: DiffusionLM, algorithm: Algorithm, examples: Sequence[Mapping[str, Any]], config: TrainConfig
) -> list[Encoded]:
    """The rejected answers, tokenised; the chosen ones are the examples' completions."""
    missing = [example.get("id") for example in examples if "rejected" not in example or "completion" not in example]
    if missing:
        raise ValueError(
            f"example {missing[0]!r} has no rejected answer; {algorithm.name} trains on chosen/rejected pairs"
        )
    pairs = [{**example, "completion": example["rejected"]} for example in examples]
    return encode(lm, pairs, max_length=config.max_length)
