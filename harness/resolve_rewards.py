"""Look up the rewards of rollouts: names, weights, options, and whether each benchmark is paid for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dare_bench.harness.errors import nearest, shorten
from dare_bench.harness.manifest import Manifest
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.settings import build, field_types, plain
from dare_bench.suites import rewards
from dare_bench.suites.benchmarks import registry as benchmark_registry

WEIGHT = "weight"


def resolve_rewards(
    report: Reporter, manifest: Manifest, data: tuple[tuple[str, str], ...]
) -> tuple[rewards.Choice, ...]:
    """The chosen rewards with all their options; problems are added to `report`.

    Args:
        report: collects problems.
        manifest: checked for shape.
        data: (benchmark, split) pairs trained on.

    Returns:
        Rewards in the order of the manifest; empty when it names none.
    """
    if manifest.train is None or manifest.train.rewards is None:
        return ()
    before = len(report.problems)
    found = [_choice(report, name, value) for name, value in manifest.train.rewards.items()]
    choices = tuple(choice for choice in found if choice is not None)
    if len(report.problems) == before:
        _check_fit(report, choices, [name for name, _ in data])
    return choices


def _choice(report: Reporter, name: str, value: Any) -> rewards.Choice | None:
    path: KeyPath = ("train", "rewards", name)
    if name not in rewards.names():
        report.unknown(path, "reward", name, rewards.names())
        return None
    cls = rewards.get(name).options_class
    options = dict(value) if isinstance(value, Mapping) else {}
    weight = options.pop(WEIGHT, 1) if isinstance(value, Mapping) else value
    at = (*path, WEIGHT) if isinstance(value, Mapping) else path
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        allowed = "a weight (a number >= 0; 0 = logged only), or {weight: NUMBER, OPTION: VALUE}"
        report.add(at, "wrong weight of a reward", given=shorten(weight), allowed=allowed)
        return None
    known = [WEIGHT, *field_types(cls)]
    for key in [key for key in options if key not in known]:
        report.add(
            (*path, str(key)), f"unknown option of the reward {name}", given=shorten(options.pop(key)),
            allowed=", ".join(known), nearest=nearest(key, known),
        )  # fmt: skip
    made, errors = build(cls, options)
    for error in errors:
        place = (*path, error.field) if error.field else path
        # Options say "NAME: VALUE; allowed: ..."; name and value are already in the report.
        allowed = error.allowed.rpartition("; allowed: ")[2]
        report.add(place, error.message, given=error.given, allowed=allowed)
    return None if made is None else rewards.Choice(name, float(weight), plain(made))


def _check_fit(report: Reporter, choices: tuple[rewards.Choice, ...], trained: list[str]) -> None:
    """Each reward must be able to grade a benchmark, each benchmark must be paid for."""
    benchmarks = [benchmark_registry.get(name) for name in dict.fromkeys(trained)]
    reasons = {
        (choice.name, bench.name): rewards.misfit(bench, rewards.get(choice.name))
        for choice in choices
        for bench in benchmarks
    }
    for choice in choices:
        why = [reasons[choice.name, bench.name] for bench in benchmarks]
        if why and all(why):
            fitting = [name for name, cls in rewards.rewards().items() if not rewards.misfit(benchmarks[0], cls)]
            report.add(
                ("train", "rewards", choice.name), "this reward can grade nothing that is trained on",
                given="; ".join(filter(None, why)), allowed=", ".join(fitting) or "other training data",
            )  # fmt: skip
    for bench in benchmarks:
        payers = [choice for choice in choices if choice.weight and reasons[choice.name, bench.name] is None]
        if choices and not payers:
            fitting = [name for name, cls in rewards.rewards().items() if not rewards.misfit(bench, cls)]
            report.add(
                ("train", "rewards"), f"no reward pays for {bench.name}",
                given=", ".join(f"{choice.name}: {choice.weight:g}" for choice in choices),
                allowed=f"one of {', '.join(fitting) or 'none'} with a weight above 0",
            )  # fmt: skip
