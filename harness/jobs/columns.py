"""Columns of job rows that follow from the job alone. Imports no torch."""

from __future__ import annotations

from typing import Any


def training_columns(spec: dict[str, Any]) -> dict[str, Any]:
    """Columns of a training run."""
    config = {key: spec[key] for key in ("settings", "train", "rollout", "data", "data_identity", "phases")}
    if spec.get("engine"):
        config["engine"] = {"kind": spec["engine"]["kind"]}
    if spec.get("rewards"):
        config["rewards"] = spec["rewards"]
    return {
        "model": spec["model"]["name"],
        "family": spec["model"]["family"],
        "algorithm": spec["algorithm"],
        "label": spec["label"],
        "preset": spec["preset"],
        "seed": spec["seed"],
        "config": config | {"base": checkpoint_record(spec["model"])},
    }


def checkpoint_record(model: dict[str, Any]) -> dict[str, Any]:
    """What is recorded of an untrained checkpoint: its identity, the revision that was asked for, the facts given."""
    given = {"revision": model["revision"], "facts": model["facts"]}
    return {**{key: value for key, value in given.items() if value}, **model["identity"]}


def evaluation_columns(spec: dict[str, Any]) -> dict[str, Any]:
    """Columns of an evaluation; the comparability key is added when the prompts are rendered."""
    return {
        "model": spec["model"]["name"],
        "family": spec["model"]["family"],
        "benchmark": spec["task"]["name"],
        "protocol": spec["task"]["protocol"],
        "decoder": spec["decoder"],
        "seed": spec["seed"],
        "data": {**spec["rows"], "limit": spec["task"]["limit"]},
        "n_expected": spec["n_rows"],
        "hard_key": "",
        "hard_fields": {},
        "numerics": {},
    }
