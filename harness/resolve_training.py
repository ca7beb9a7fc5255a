"""Look up algorithms and their settings: defaults, then preset, `train:` section and the entry's own overrides."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from dare_bench.dare.algorithms import registry as algorithm_registry
from dare_bench.dare.algorithms.registry import AlgorithmEntry
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.dare.training.progress import BEST_ON
from dare_bench.harness.errors import nearest, shorten
from dare_bench.harness.manifest import AlgorithmItem, LoraItem, Manifest
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_engine import check_used, resolve_engine
from dare_bench.harness.resolve_rewards import resolve_rewards
from dare_bench.harness.resolve_rollout import resolve_rollout
from dare_bench.harness.resolve_support import check_experts, check_pairs, check_validation, used_entries
from dare_bench.harness.resolved import BASE, Recipe, source_names
from dare_bench.harness.settings import build, check_fields, field_types, plain
from dare_bench.suites.benchmarks import registry as benchmark_registry


def resolve_recipes(report: Reporter, manifest: Manifest) -> list[Recipe | None]:
    """All algorithm entries with their settings; problems are added to `report`.

    Args:
        report: collects problems.
        manifest: checked for shape.
    """
    needs_training = [item for item in manifest.algorithms if item.name != BASE]
    if needs_training and manifest.train is None:
        names = ", ".join(item.name for item in needs_training)
        report.add(
            ("train",), "a required key is missing", given="nothing",
            allowed=f"train: {{data: {{BENCHMARK: SPLIT}}, steps: N}} for the algorithms {names}",
        )  # fmt: skip
    shared = _shared(report, manifest)
    data = _data(report, manifest)
    phases = _phases(report, manifest, data)
    rewards = resolve_rewards(report, manifest, data)
    recipes: list[Recipe | None] = []
    for index, item in enumerate(manifest.algorithms):
        for recipe in _recipes(report, manifest, ("algorithms", index), item, shared):
            is_trained = recipe is not None and not recipe.is_base
            if is_trained:
                judged = rewards if recipe.rollout is not None else ()
                recipe = dataclasses.replace(recipe, data=data, phases=phases, rewards=judged)
            recipes.append(recipe)
    check_used(report, manifest, recipes)
    return recipes


def _shared(report: Reporter, manifest: Manifest) -> dict[str, Any]:
    """Settings of the `train:` section: fields of TrainConfig only."""
    if manifest.train is None:
        return {}
    known = [name for name in field_types(TrainConfig) if name != "peft"]
    values = {}
    for key, value in (manifest.train.model_extra or {}).items():
        if key not in known:
            allowed = ", ".join(["data", "decoder", "engine", "peft", "phases", "rewards", *known])
            report.add(
                ("train", key), "unknown key", given=shorten(value), allowed=allowed, nearest=nearest(key, known)
            )
        else:
            values[key] = value
    checked, errors = check_fields(TrainConfig, values)
    for error in errors:
        report.add(("train", error.field), error.message, given=error.given, allowed=error.allowed)
    return checked


def _data(report: Reporter, manifest: Manifest) -> tuple[tuple[str, str], ...]:
    if manifest.train is None:
        return ()
    evaluated = {(item.name, item.split or "test") for item in manifest.benchmarks}
    found = []
    for name, wanted in manifest.train.data.items():
        path: KeyPath = ("train", "data", name)
        if name not in benchmark_registry.names():
            report.unknown(path, "benchmark", name, benchmark_registry.names())
            continue
        splits = benchmark_registry.get(name).splits
        for split in wanted if isinstance(wanted, list) else [wanted]:
            if split not in splits:
                report.unknown(path, f"split of {name}", split, splits)
            elif (name, split) in evaluated or split == "test":
                rest = ", ".join(other for other in splits if other != "test" and (name, other) not in evaluated)
                report.add(path, "the suite would train on rows it is evaluated on", given=shorten(split), allowed=rest)
            else:
                found.append((name, split))
    return tuple(found)


def _phases(
    report: Reporter, manifest: Manifest, data: tuple[tuple[str, str], ...]
) -> tuple[tuple[float, Mapping[str, float]], ...]:
    items = manifest.train.phases if manifest.train else []
    known, before = source_names(data), 0.0
    for index, item in enumerate(items):
        path: KeyPath = ("train", "phases", index)
        if item.until <= before:
            report.add(
                (*path, "until"), "phases must rise", given=shorten(item.until), allowed=f"a number > {before:g}"
            )
        before = item.until
        for name in item.mix:
            if name not in known:
                report.unknown((*path, "mix", name), "source of training data", name, known)
        if not any(item.mix.values()):
            report.add((*path, "mix"), "all weights are 0", given=shorten(item.mix), allowed="at least one weight > 0")
    if items and before != 1:
        report.add(
            ("train", "phases"), "the last phase must end with the run", given=shorten(before), allowed="until: 1"
        )
    return tuple((item.until, dict(item.mix)) for item in items)


def _recipes(
    report: Reporter,
    manifest: Manifest,
    path: KeyPath,
    item: AlgorithmItem,
    shared: Mapping[str, Any],
) -> list[Recipe | None]:
    """One recipe per entry of the algorithm that the suite's models use: all under the item's label."""
    known = algorithm_registry.algorithms()
    if item.name == BASE:
        return [_base(report, path, item, dict(item.model_extra or {}))]
    if item.name not in known:
        report.unknown((*path, "name"), "algorithm", item.name, [BASE, *known])
        return []
    used = used_entries(report, manifest, path, item, known[item.name])
    if any(entry.needs.pairs for entry in used):
        check_pairs(report, manifest, path, item)
    return [_recipe(report, manifest, path, item, shared, entry, used) for entry in used]


def _recipe(
    report: Reporter,
    manifest: Manifest,
    path: KeyPath,
    item: AlgorithmItem,
    shared: Mapping[str, Any],
    entry: AlgorithmEntry,
    used: list[AlgorithmEntry],
) -> Recipe | None:
    presets = {*entry.presets, *entry.train_presets}
    if item.preset is not None and item.preset not in presets:
        whose = f"preset of {item.name}" + (f" for {', '.join(sorted(entry.families))}" if len(used) > 1 else "")
        report.unknown((*path, "preset"), whose, item.preset, presets)
        return None
    preset = {**entry.presets.get(item.preset, {}), **entry.train_presets.get(item.preset, {})}
    train_fields = [name for name in field_types(TrainConfig) if name != "peft"]
    own_fields = list(field_types(entry.config_class))
    origin: dict[str, KeyPath] = {key: ("train", key) for key in shared}
    values = {**preset, **shared}
    for key, value in (item.model_extra or {}).items():
        if key not in train_fields and key not in own_fields:
            _unknown_option(report, path, key, value, entry, used)
            return None
        values[key], origin[key] = value, (*path, key)
    train_values = {key: value for key, value in values.items() if key in train_fields}
    own_values = {key: value for key, value in values.items() if key in own_fields}
    train, train_errors = build(TrainConfig, train_values)
    settings, own_errors = build(entry.config_class, own_values)
    for error in [*train_errors, *own_errors]:
        at = origin.get(error.field, path)
        report.add(at, f"{error.message} ({item.label or item.name})", given=error.given, allowed=error.allowed)
    if train is None or settings is None:
        return None
    if not _check_train(report, manifest, origin, path, train):
        return None
    for key, allowed in (entry.check(train, settings) if entry.check else {}).items():
        message = f"cannot be honoured ({item.label or item.name})"
        given = getattr(train if hasattr(train, key) else settings, key)
        report.add(origin.get(key, path), message, given=shorten(given), allowed=allowed)
    peft = item.peft if "peft" in item.model_fields_set else manifest.train.peft if manifest.train else None
    lora = LoraConfig() if peft == "lora" else LoraConfig(**peft.model_dump()) if isinstance(peft, LoraItem) else None
    if lora is not None:
        at = (*path, "peft") if "peft" in item.model_fields_set else ("train", "peft")
        check_experts(report, manifest, at, item, lora)
    rollout = resolve_rollout(report, manifest, path, item, entry, settings)
    return Recipe(
        name=item.name,
        label=item.label or item.name,
        preset=item.preset,
        settings=plain(settings),
        train=dataclasses.replace(train, peft=lora),
        rollout=rollout,
        engine=resolve_engine(report, manifest, path, item, entry, rollout, adapted=lora is not None),
        families=tuple(sorted(entry.families)),
    )


def _unknown_option(
    report: Reporter, path: KeyPath, key: str, value: Any, entry: AlgorithmEntry, used: list[AlgorithmEntry]
) -> None:
    train_fields = [name for name in field_types(TrainConfig) if name != "peft"]
    own_fields = list(field_types(entry.config_class))
    others = [other for other in used if key in field_types(other.config_class)]
    if others:
        families = [", ".join(sorted(each.families)) for each in (others[0], entry)]
        message = f"{entry.name} has this option for {families[0]}, not for {families[1]}"
        allowed = "entries of their own (as: LABEL), each with `exclude` for the other's models"
        report.add((*path, key), message, given=shorten(value), allowed=allowed)
        return
    allowed = ", ".join(dict.fromkeys(["name", "as", "preset", "peft", *own_fields, *train_fields]))
    near = nearest(key, [*own_fields, *train_fields])
    report.add((*path, key), "unknown key", given=shorten(value), allowed=allowed, nearest=near)


def _base(report: Reporter, path: KeyPath, item: AlgorithmItem, extra: Mapping[str, Any]) -> Recipe | None:
    given = {"as": item.label, "preset": item.preset, "peft": item.peft, **extra}
    wrong = {key: value for key, value in given.items() if value is not None}
    for key, value in wrong.items():
        message = "`base` is the model as it is: nothing is trained, so nothing can be set"
        shown = value.model_dump() if isinstance(value, LoraItem) else value
        report.add((*path, key), message, given=shorten(shown), allowed="base, without further keys")
    return None if wrong else Recipe(BASE, BASE)


def _check_train(
    report: Reporter, manifest: Manifest, origin: Mapping[str, KeyPath], path: KeyPath, train: TrainConfig
) -> bool:
    before = len(report.problems)
    positive = {"steps": train.steps, "batch_size": train.batch_size, "max_length": train.max_length}
    positive |= {"micro_batch_size": train.micro_batch_size or 1, "log_every": train.log_every}
    positive |= {"validation_rows": train.validation_rows}
    for key, value in positive.items():
        if value < 1:
            report.add(origin.get(key, path), "out of range", given=shorten(value), allowed="a whole number >= 1")
    if not train.lr > 0:
        report.add(origin.get("lr", path), "out of range", given=shorten(train.lr), allowed="a number > 0")
    at = origin.get("select", path)
    step = re.fullmatch(r"step:([0-9]{1,9})", train.select)
    if train.select.startswith(BEST_ON):
        check_validation(report, manifest, at, train)
    elif train.select != "last" and not step:
        report.add(at, "wrong value", given=shorten(train.select), allowed="last, step:N, or best_on:SPLIT")
    elif step and not 1 <= int(step[1]) <= train.steps:
        report.add(at, "no such step", given=shorten(train.select), allowed=f"step:1 to step:{train.steps}")
    return len(report.problems) == before
