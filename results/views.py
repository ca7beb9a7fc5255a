"""What the queries return: frozen records without a database behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class SuiteView:
    """One run of a suite.

    Attributes:
        id: primary key of the run.
        suite: name in the manifest.
        manifest_hash: fingerprint of the resolved manifest.
        resolved: the manifest with all defaults.
        status: running, done or failed.
        command_line: as typed.
        environment: see `dare_bench.results.provenance.environment`.
        started_at: UTC.
        finished_at: UTC, None while running.
        n_cells: size of the grid.
    """

    id: int
    suite: str
    manifest_hash: str
    resolved: dict[str, Any]
    status: str
    command_line: str
    environment: dict[str, Any] | None
    started_at: datetime
    finished_at: datetime | None
    n_cells: int


@dataclass(frozen=True)
class TrainingView:
    """A training run with its final checkpoint.

    Attributes:
        id: primary key.
        fingerprint: sha256 hex.
        model: base model.
        family: its family.
        algorithm: name of the algorithm.
        label: name of the row in the suite.
        preset: paper, repo, dare or None.
        seed: training seed.
        config: resolved recipe.
        status: running, done or failed.
        error: message of a failure.
        log_path: log of the job, relative to the runs folder.
        totals: compute spent (train_tokens, train_flops, updates, ...).
        wall_s: seconds of the job.
        started_at: UTC.
        finished_at: UTC.
        environment: machine and software.
        checkpoint: {"step", "path", "sha256"} of the weights that are evaluated.
    """

    id: int
    fingerprint: str
    model: str
    family: str
    algorithm: str
    label: str
    preset: str | None
    seed: int
    config: dict[str, Any]
    status: str
    error: str | None
    log_path: str | None
    totals: dict[str, Any]
    wall_s: float | None
    started_at: datetime
    finished_at: datetime | None
    environment: dict[str, Any] | None
    checkpoint: dict[str, Any] | None


@dataclass(frozen=True)
class CostTotals:
    """Sums over the stored samples of one evaluation, recomputed from rows.

    Attributes:
        n: samples.
        n_length: samples that ended at the length limit (finish_reason "length").
        nfe: network calls.
        row_forwards: calls times rows fed.
        positions_fed: query positions.
        kv_read: query-key pairs.
        tokens_committed: positions that left the mask state.
        tokens_text: tokens before the first stop token.
        edits: rewritten tokens.
        flops: floating point operations.
        wall_s: sum of the samples' own latencies in seconds (not the wall time of decoding: batches overlap).
    """

    n: int = 0
    n_length: int = 0
    nfe: int = 0
    row_forwards: int = 0
    positions_fed: int = 0
    kv_read: int = 0
    tokens_committed: int = 0
    tokens_text: int = 0
    edits: int = 0
    flops: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True)
class EvaluationView:
    """Generations of one checkpoint on one benchmark protocol.

    Attributes:
        id: primary key.
        fingerprint: sha256 hex.
        model: base model.
        family: its family.
        benchmark: name.
        protocol: protocol id.
        decoder: resolved decoder.
        seed: seed of the draws, None when nothing is drawn.
        hard_key: rows are ranked inside one hard key.
        hard_fields: what it was made of.
        numerics: device, dtype, engine, batch size, ...
        data: dataset id, revision, split, limit.
        n_expected: samples (rows times repeats) of a complete evaluation.
        status: running, done or failed.
        error: message of a failure.
        log_path: log of the job, relative to the runs folder.
        decode_wall_s: seconds of decoding, summed over batches.
        wall_s: seconds of the whole job.
        started_at: UTC.
        finished_at: UTC.
        environment: machine and software.
        costs: sums over samples.
    """

    id: int
    fingerprint: str
    model: str
    family: str
    benchmark: str
    protocol: str
    decoder: dict[str, Any]
    seed: int | None
    hard_key: str
    hard_fields: dict[str, Any]
    numerics: dict[str, Any]
    data: dict[str, Any]
    n_expected: int
    status: str
    error: str | None
    log_path: str | None
    decode_wall_s: float | None
    wall_s: float | None
    started_at: datetime
    finished_at: datetime | None
    environment: dict[str, Any] | None
    costs: CostTotals


@dataclass(frozen=True)
class ScoringView:
    """One scorer version applied to an evaluation, aggregated over its score rows.

    Attributes:
        fingerprint: sha256 hex.
        scorer: name.
        scorer_version: version.
        status: done or failed.
        error: message of a failure.
        n: score rows, all statuses.
        statuses: {scored | no_answer | truncated | timeout | error: rows}; only statuses that occur.
        score: mean of the headline value over all rows, in [0, 1]; None without rows.
        metrics: {metric: mean over all rows}, a row without the metric counts 0.
    """

    fingerprint: str
    scorer: str
    scorer_version: int
    status: str
    error: str | None
    n: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    score: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CellView:
    """A cell of a suite's grid with everything that answers it.

    Attributes:
        suite: name of the suite.
        suite_run_id: run of the suite.
        name: model/label/benchmark/decoder/seed.
        model: base model.
        label: name of the training in the suite, "base" for the untrained model.
        algorithm: name of the algorithm.
        benchmark: name.
        decoder: name of the decoder in the suite.
        seed: training seed of the cell.
        training_fingerprint: None for the untrained model.
        evaluation_fingerprint: sha256 hex.
        scoring_fingerprint: sha256 hex.
        training: None when untrained or not begun.
        evaluation: None when not begun.
        scoring: None when not done.
    """

    suite: str
    suite_run_id: int
    name: str
    model: str
    label: str
    algorithm: str
    benchmark: str
    decoder: str
    seed: int
    training_fingerprint: str | None
    evaluation_fingerprint: str
    scoring_fingerprint: str
    training: TrainingView | None
    evaluation: EvaluationView | None
    scoring: ScoringView | None

    @property
    def status(self) -> str:
        """One word for the cell.

        Returns:
            "failed" (a job of it failed), "done", "incomplete" (all jobs are done, but a sample is missing or its
            scoring is an error: no accuracy, no rank), "running" (a job is at work) or "pending".
        """
        jobs = [job for job in (self.training, self.evaluation, self.scoring) if job is not None]
        if any(job.status == "failed" for job in jobs):
            return "failed"
        if any(job.status == "running" for job in jobs):
            return "running"
        if self.evaluation is None or self.scoring is None:
            return "pending"
        whole = self.evaluation.costs.n == self.evaluation.n_expected == self.scoring.n
        return "done" if whole and not self.scoring.statuses.get("error") else "incomplete"

    @property
    def error(self) -> str | None:
        """Message of the first job of the cell that failed.

        Returns:
            Text, None when none failed.
        """
        jobs = (self.training, self.evaluation, self.scoring)
        return next((job.error for job in jobs if job is not None and job.status == "failed"), None)


@dataclass(frozen=True)
class CellDetail:
    """An evaluation from all sides.

    Attributes:
        evaluation: the evaluation.
        training: its training run, None for an untrained model.
        scorings: every scoring, newest last.
        cells: (suite, cell name) of the cells it answers, over all suite runs.
    """

    evaluation: EvaluationView
    training: TrainingView | None
    scorings: list[ScoringView]
    cells: list[tuple[str, str]]
