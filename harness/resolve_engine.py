"""The server that samples a suite's rollouts: whether it can take weights, and which algorithms can use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dare_bench.dare.algorithms.registry import AlgorithmEntry
from dare_bench.dare.families import registry as family_registry
from dare_bench.dare.training import engine as engines
from dare_bench.dare.training.engine import EngineConfig
from dare_bench.harness.errors import nearest, shorten
from dare_bench.harness.manifest import AlgorithmItem, Manifest
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolved import Decoding, Recipe

#: Where the section is.
AT: KeyPath = ("train", "engine")


def resolve_engine(
    report: Reporter,
    manifest: Manifest,
    path: KeyPath,
    item: AlgorithmItem,
    entry: AlgorithmEntry,
    rollout: Decoding | None,
    *,
    adapted: bool,
) -> EngineConfig | None:
    """The server of an algorithm's rollouts; null without one, for an algorithm without rollouts, or where it is wrong.

    Args:
        report: collects problems.
        manifest: checked for shape.
        path: of the item.
        item: of the manifest.
        entry: of the algorithm.
        rollout: decoder of its rollouts.
        adapted: it trains adapters.
    """
    config = _config(manifest)
    if config is None:
        return None
    before = len(report.problems)
    for field, (said, allowed) in engines.problems(config).items():
        value: Any = getattr(config, field)
        near = nearest(value, engines.updatable()) if field == "kind" else None
        report.add((*AT, field), said, given=shorten(value), allowed=allowed, nearest=near)
    if entry.needs.rollout == "none":
        return None
    label = item.label or item.name
    why = engines.refusal(entry.needs)
    trained_elsewhere = [name for name in sorted(entry.families) if _trainer(name) != "loop"]
    if why is not None:
        message = f"a server cannot sample for {entry.name}: {why}"
        report.add((*path, "name"), message, given=label, allowed="a suite of its own for it, without train.engine")
    elif trained_elsewhere:
        message = f"{entry.name} trains the family {trained_elsewhere[0]} with a trainer that samples in process"
        report.add((*path, "name"), message, given=label, allowed="a suite of its own for it, without train.engine")
    if adapted:
        own = "peft" in item.model_fields_set
        allowed = f"no peft, or no train.engine ({label})"
        report.add((*path, "peft") if own else ("train", "peft"), engines.ADAPTERS, given="peft", allowed=allowed)
    if rollout is not None:
        _check_decoder(report, path, item, rollout)
    return config if len(report.problems) == before else None


def check_used(report: Reporter, manifest: Manifest, recipes: Sequence[Recipe | None]) -> None:
    """A server that no algorithm would ask is a mistake."""
    config = _config(manifest)
    if config is None or any(recipe is None or recipe.rollout is not None for recipe in recipes):
        return
    allowed = "no engine, or an algorithm that samples (dare-bench list algorithms)"
    report.add(AT, "no algorithm of this suite samples responses", given=shorten(config.kind), allowed=allowed)


def _config(manifest: Manifest) -> EngineConfig | None:
    given = manifest.train.engine if manifest.train else None
    return None if given is None else EngineConfig(**given.model_dump())


def _trainer(family: str) -> str | None:
    return family_registry.get_family(family).trainer


def _check_decoder(report: Reporter, path: KeyPath, item: AlgorithmItem, rollout: Decoding) -> None:
    """Only what travels with a request can be set here; the rest was set where the server was started."""
    at: KeyPath = (*path, "decoder") if item.decoder is not None else ("train", "decoder")
    for field in rollout.given:
        if field in engines.REQUESTED or field.endswith("_options"):
            continue
        allowed = ", ".join(sorted(engines.REQUESTED - {"name", "temperature"}))
        said = f"with train.engine the server decides this ({field}), not the request"
        report.add((*at, field), said, given=shorten(getattr(rollout.config, field)), allowed=allowed)
