"""A manifest whose every name has been looked up: what the grid and the jobs are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.facts import Family, Overrides
from dare_bench.dare.families.registry import get_family
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.engine import EngineConfig
from dare_bench.suites.rewards import Choice

BASE = "base"


@dataclass(frozen=True)
class Model:
    """A checkpoint to start from.

    Attributes:
        name: as in cell names.
        family: family name.
        source: ``package:<name>``, a folder, or a hub id.
        revision: hub commit, or null.
        config: official config fields (sizes).
        dtype: of the weights when decoding; null = chosen by device.
        overrides: facts that differ from those of the family or of the config.
    """

    name: str
    family: str
    source: str
    revision: str | None
    config: Mapping[str, Any]
    dtype: str | None = None
    overrides: Overrides = field(default_factory=Overrides)

    @property
    def facts(self) -> tuple[Family, Mapping[str, Any]]:
        """Family and config with the model's own facts."""
        return self.overrides.apply(get_family(self.family), self.config)

    @property
    def default_decoder(self) -> Mapping[str, Any]:
        """Fields of `DecoderConfig` where a manifest's decoder leaves them out."""
        return {**get_family(self.family).default_decoder, **(self.overrides.decoder or {})}


@dataclass(frozen=True)
class Recipe:
    """An algorithm with all its settings.

    Attributes:
        name: registry name.
        label: how the row is called.
        preset: named configuration of the algorithm, or null.
        settings: the algorithm's own config, plain values.
        train: optimisation settings.
        rollout: decoder of rollouts, or null when the algorithm makes none.
        data: (benchmark, split) pairs trained on.
        phases: curriculum, (end as a share of the run, source -> weight) each; empty = all examples shuffled.
        rewards: what rollouts are paid; empty = the score of each benchmark's protocol, or there are no rollouts.
        engine: server that samples the rollouts; null = none, or there are no rollouts.
        families: families of the models it trains; empty = all. Two recipes may share a label with unlike families.
    """

    name: str
    label: str
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)
    rollout: Decoding | None = None
    data: tuple[tuple[str, str], ...] = ()
    phases: tuple[tuple[float, Mapping[str, float]], ...] = ()
    rewards: tuple[Choice, ...] = ()
    engine: EngineConfig | None = None
    families: tuple[str, ...] = ()

    def trains(self, model: Model) -> bool:
        """Whether this recipe is for a model."""
        return not self.families or model.family in self.families

    @property
    def is_base(self) -> bool:
        """Whether this is the untrained model."""
        return self.name == BASE


def source_names(data: Sequence[tuple[str, str]]) -> list[str]:
    """How the parts of the training data are called in a curriculum.

    Args:
        data: (benchmark, split) pairs.

    Returns:
        The split of each pair, or ``benchmark/split`` where the split alone is not unique.
    """
    splits = [split for _, split in data]
    return [split if splits.count(split) == 1 else f"{name}/{split}" for name, split in data]


@dataclass(frozen=True)
class Task:
    """A benchmark with protocol, split, row limit, and the scorer's name."""

    name: str
    protocol: str
    split: str
    limit: int | None
    scorer: str


@dataclass(frozen=True)
class Decoding:
    """A decoder and the batch size it runs with (which does not change results).

    Attributes:
        config: settings; the fields that are not `given` have the defaults of `DecoderConfig` until a model is known.
        batch_size: rows decoded together.
        given: fields that the manifest names.
    """

    config: DecoderConfig
    batch_size: int | None = None
    given: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Label in cell names."""
        return self.config.name


@dataclass(frozen=True)
class Suite:
    """A resolved manifest; `exclude` entries are mappings of cell fields to allowed values."""

    name: str
    description: str
    models: tuple[Model, ...]
    recipes: tuple[Recipe, ...]
    tasks: tuple[Task, ...]
    decoders: tuple[Decoding, ...]
    seeds: tuple[int, ...]
    exclude: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
