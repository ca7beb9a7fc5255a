"""The checkpoint that is best on held-out rows: scored at every checkpoint, never on the rows a suite reports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training import checkpoint
from dare_bench.dare.training.data import encode
from dare_bench.dare.training.grading import RewardFunction
from dare_bench.dare.training.rollout import rollout
from dare_bench.dare.training.world import World

BEST = "best"
RECORD = "best.json"


@dataclass(frozen=True)
class Validation:
    """Held-out rows and how they are scored.

    Attributes:
        examples: as for training; disjoint from the rows that are trained on or reported.
        decoder: with gen_length; decodes greedily, whatever its temperature.
        reward: grades the answers.
        batch_size: rows decoded together.
    """

    examples: Sequence[Mapping[str, Any]]
    decoder: DecoderConfig
    reward: RewardFunction
    batch_size: int = 128

    def score(self, lm: DiffusionLM, *, max_length: int, world: World) -> float:
        """Mean reward of one greedy answer per row."""
        rows = encode(lm, self.examples, max_length=max_length)
        answered = rollout(
            lm,
            rows,
            [example["prompt"] for example in self.examples],
            replace(self.decoder, temperature=0.0),
            group_size=1,
            seed=0,
            step=0,
            reward_funcs=[self.reward],
            batch_size=self.batch_size,
            world=world,
        )
        return answered.metrics["reward"]


class Best:
    """The best checkpoint of a run so far, kept in the run's folder.

    Args:
        out_dir: folder of the run.
        write: writes the present weights as a checkpoint into a folder (every process calls it).
        world: its first process writes.
    """

    def __init__(self, out_dir: Path, write: Callable[[Path], None], world: World) -> None:
        self.folder, self.write, self.world = out_dir / BEST, write, world
        self.path = out_dir / RECORD

    def record(self) -> dict[str, Any] | None:
        """Step and score of the kept checkpoint, or null."""
        return json.loads(self.path.read_text("utf-8")) if self.path.is_file() else None

    def offer(self, step: int, score: float) -> None:
        """Keep the present weights if they score better than any before; of equals the earlier stays.

        A continuation repeats the steps behind its state: a record of a later step is then made again.
        """
        held = self.record()
        if held is not None and held["step"] < step and held["score"] >= score:
            return
        self.write(self.folder)
        if self.world.leads:
            beside = self.path.with_name(f".{RECORD}.{os.getpid()}.tmp")
            beside.write_text(json.dumps({"step": step, "score": score}), "utf-8")
            os.replace(beside, self.path)
        self.world.wait()

    def take(self, final: Path) -> int:
        """Move the kept checkpoint into place; returns its step."""
        held = self.record()
        assert held is not None, "no checkpoint was offered"
        # A run that was killed right behind this move finds it done.
        if self.world.leads and self.folder.is_dir():
            checkpoint.publish(self.folder, final)
        self.world.wait()
        return int(held["step"])
