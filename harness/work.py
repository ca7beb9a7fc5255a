"""From cells to jobs: fingerprints, dependencies, and what is missing on this machine. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.dare.algorithms import registry as algorithm_registry
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.training.progress import BEST_ON
from dare_bench.harness import fingerprint as prints
from dare_bench.harness.grid import Cell
from dare_bench.harness.jobs.spec import Job
from dare_bench.harness.resolve_decoding import effective, stored
from dare_bench.harness.resolved import Decoding, Model, Recipe, Task
from dare_bench.harness.settings import plain
from dare_bench.harness.weights import Weights, locate, stay_offline
from dare_bench.suites.benchmarks import registry as benchmark_registry
from dare_bench.suites.errors import DataError
from dare_bench.suites.rewards import registry as reward_registry
from dare_bench.suites.scoring import registry as scorer_registry


@dataclass(frozen=True)
class PlannedCell:
    """A cell and the jobs that answer it; `train` is null for the untrained model."""

    cell: Cell
    train: str | None
    evaluation: str
    scoring: str

    def columns(self) -> dict[str, Any]:
        """Columns of the cell table."""
        cell = self.cell
        return {
            "name": cell.name,
            "model": cell.model.name,
            "label": cell.recipe.label,
            "algorithm": cell.recipe.name,
            "benchmark": cell.task.name,
            "decoder": cell.decoder.name,
            "seed": cell.seed,
            "training_fingerprint": self.train,
            "evaluation_fingerprint": self.evaluation,
            "scoring_fingerprint": self.scoring,
        }


@dataclass
class Work:
    """All cells and jobs of a suite.

    Attributes:
        cells: in grid order.
        jobs: by fingerprint; parents before children.
        weights: located checkpoints by model name.
        missing: (``model``, name) or (``data``, benchmark/split) -> what is not on this machine and how to get it.
    """

    cells: list[PlannedCell] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    weights: dict[str, Weights] = field(default_factory=dict)
    missing: dict[tuple[str, str], str] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[Job]:
        """Jobs of one kind."""
        return [job for job in self.jobs.values() if job.kind == kind]


@dataclass(frozen=True)
class Rows:
    """Identity and number of a benchmark split's rows; `identity` is what enters fingerprints."""

    identity: dict[str, Any]
    count: int


class WorkBuilder:
    """Makes the jobs of a grid.

    Args:
        data: folder of local data files (``--data``), or null.
        dtype: of the weights when decoding, for models that name none.
        cache_file: where digests of large local weights are remembered.
        is_offline: benchmark rows are looked up on this machine only, not fetched from the hub. Also when weights are
            missing: the run will be refused, so nothing is fetched for it.
    """

    def __init__(
        self, *, data: Path | None, dtype: str, cache_file: Path | None = None, is_offline: bool = False
    ) -> None:
        self.data = data
        self.dtype = dtype
        self.is_offline = is_offline
        self.cache_file = cache_file
        self.work = Work()
        self._rows: dict[tuple[str, str, int | None], Rows] = {}

    def build(self, cells: list[Cell]) -> Work:
        """Fingerprint every cell.

        Args:
            cells: expanded grid.

        Returns:
            Cells with their jobs; anything that is not here is listed in `missing`.
        """
        for model in {cell.model.name: cell.model for cell in cells}.values():
            found = locate(model.name, model.source, model.revision, self.cache_file)
            self.work.weights[model.name] = found
            if found.missing:
                self.work.missing["model", model.name] = found.missing
        if self.is_offline or self.work.missing:
            stay_offline()
        for cell in cells:
            train = None if cell.recipe.is_base else self._train(cell)
            evaluation = self._generate(cell, train)
            scoring = self._score(cell, evaluation)
            self.work.cells.append(PlannedCell(cell, train, evaluation, scoring))
        return self.work

    def _add(self, job: Job) -> str:
        self.work.jobs.setdefault(job.fingerprint, job)
        return job.fingerprint

    def rows(self, name: str, split: str, limit: int | None) -> Rows:
        """Identity of the first `limit` rows of a split; a split that is not here is noted as missing."""
        key = (name, split, limit)
        if key not in self._rows:
            bench = benchmark_registry.get(name)
            try:
                found = dict(bench.data_id(split, self.data))
            except DataError as error:
                self.work.missing["data", f"{name}/{split}"] = str(error)
                found = {"id": name, "split": split, "n": 0, "missing": True}
            total = int(found.get("n") or 0)
            count = total if limit is None else min(limit, total) if total else limit
            self._rows[key] = Rows({**found, "benchmark_version": bench.version, "rows": count}, count)
        return self._rows[key]

    def _train(self, cell: Cell) -> str:
        recipe, model = cell.recipe, cell.model
        entry = algorithm_registry.get(recipe.name, model.family)
        data = []
        for name, split in recipe.data:
            bench = benchmark_registry.get(name)
            identity = {"rows": self.rows(name, split, None).identity, "protocol": bench.default_protocol}
            if recipe.rollout is not None and _pays_by_scorer(recipe) and bench.is_scorable:
                scorer = bench.protocols[bench.default_protocol].scorer
                identity["reward"] = [scorer, scorer_registry.get(scorer).version]
            if entry.needs.pairs:
                identity["pairs"] = bench.pairs_version
            data.append(identity)
        rollout = self._rollout(recipe, model)
        validation = self._validation(recipe, model)
        phases = [[until, dict(mix)] for until, mix in recipe.phases]
        key = prints.train_fingerprint(
            base=prints.checkpoint_identity(
                model,
                self.work.weights[model.name].identity,
                unused=() if recipe.train.peft else ("lora_targets",),
            ),
            algorithm=recipe.name,
            algorithm_version=entry.version,
            settings=recipe.settings,
            train=recipe.train,
            rollout=rollout,
            data=data,
            phases=phases,
            seed=cell.seed,
            rewards=recipe.rewards,
            validation=validation and {**validation, "decoder": validation["decoder"].determinants()},
            engine=recipe.engine and recipe.engine.kind,
        )
        spec = {
            "model": _model_spec(model, self.work.weights[model.name]),
            "algorithm": recipe.name,
            "label": recipe.label,
            "preset": recipe.preset,
            "settings": dict(recipe.settings),
            "train": plain(recipe.train),
            "rollout": None if rollout is None else stored(rollout, model),
            "data": [list(pair) for pair in recipe.data],
            "data_identity": data,
            "phases": phases,
            "rewards": [[choice.name, choice.weight, dict(choice.options)] for choice in recipe.rewards],
            "seed": cell.seed,
        }
        if validation:
            spec["validation"] = {"data": validation["data"], "decoder": stored(validation["decoder"], model)}
        if recipe.engine:
            spec["engine"] = plain(recipe.engine)
        cost = float(recipe.train.steps * recipe.train.batch_size) * (20 if rollout else 1)
        label = f"train {model.name}/{recipe.label}/{cell.seed}"
        return self._add(Job("train", key, label, cost=cost, affinity=key, spec=spec))

    def _rollout(self, recipe: Recipe, model: Model) -> Any:
        if recipe.rollout is None or not recipe.data:
            return None
        bench = benchmark_registry.get(recipe.data[0][0])
        decoder = effective(recipe.rollout, model, keep=("temperature",))  # of rollouts: the algorithm's own
        return prints.with_length(decoder, bench.protocols[bench.default_protocol].gen_length)

    def _validation(self, recipe: Recipe, model: Model) -> dict[str, Any] | None:
        """Held-out rows that choose the checkpoint, and the decoder that answers them; null where none are asked for."""
        kind, _, split = recipe.train.select.partition(":")
        if kind != BEST_ON:
            return None
        names = list(dict.fromkeys(name for name, _ in recipe.data))
        found = [(name, split, self.rows(name, split, recipe.train.validation_rows).identity) for name in names]
        decoder = effective(recipe.rollout or Decoding(DecoderConfig(name="validation")), model)
        bench = benchmark_registry.get(names[0])
        length = bench.protocols[bench.default_protocol].gen_length
        return {"data": [list(each) for each in found], "decoder": prints.with_length(decoder, length)}

    def _generate(self, cell: Cell, train: str | None) -> str:
        model, task, weights = cell.model, cell.task, self.work.weights[cell.model.name]
        rows = self.rows(task.name, task.split, task.limit)
        protocol = benchmark_registry.get(task.name).protocols[task.protocol]
        decoder = prints.with_length(effective(cell.decoder, model), protocol.gen_length)
        dtype = model.dtype or self.dtype
        base = prints.checkpoint_identity(model, weights.identity)
        key, seed = prints.generate_fingerprint(
            checkpoint=train or base,
            task={"rows": rows.identity, "protocol": _protocol_identity(protocol)},
            decoder=decoder,
            dtype=dtype,
            seed=cell.seed,
        )
        spec = {
            "model": _model_spec(model, weights),
            "training": train,
            "task": _task_spec(task),
            "rows": rows.identity,
            "n_rows": rows.count,
            "decoder": stored(decoder, model),
            "batch_size": cell.decoder.batch_size,
            "dtype": dtype,
            "seed": seed,
        }
        steps = decoder.steps_per_block or decoder.gen_length or 1
        label = "generate " + (cell.name if seed is not None or train else cell.name.rsplit("/", 1)[0])
        parents, cost = (train,) if train else (), float(rows.count * steps)
        return self._add(Job("generate", key, label, parents, cost, affinity=train or str(base), spec=spec))

    def _score(self, cell: Cell, evaluation: str) -> str:
        task = cell.task
        scorer = scorer_registry.get(task.scorer)
        key = prints.score_fingerprint(evaluation, scorer.name, scorer.version)
        spec = {"evaluation": evaluation, "task": _task_spec(task), "scorer": scorer.name, "version": scorer.version}
        label = self.work.jobs[evaluation].label.replace("generate", "score", 1)
        return self._add(Job("score", key, label, (evaluation,), spec=spec))


def _model_spec(model: Model, weights: Weights) -> dict[str, Any]:
    return {
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "revision": model.revision,
        "facts": model.overrides.values(),
        "folder": None if weights.folder is None else str(weights.folder),
        "identity": weights.identity,
    }


def _pays_by_scorer(recipe: Recipe) -> bool:
    """Whether the benchmark's scorer has a say in what rollouts are paid."""
    paid = [choice.name for choice in recipe.rewards if choice.weight]
    return not recipe.rewards or any(reward_registry.get(name).uses_scorer for name in paid)


def _task_spec(task: Task) -> dict[str, Any]:
    return plain(task)


def _protocol_identity(protocol: Any) -> dict[str, Any]:
    """What of a protocol determines the prompts (length and scorer are fingerprinted where they are used)."""
    return {key: value for key, value in plain(protocol).items() if key not in ("gen_length", "scorer")}
