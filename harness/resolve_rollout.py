"""The decoder of an algorithm's rollouts: its own, or the training section's, and whether the algorithm can use it."""

from __future__ import annotations

from typing import Any

from dare_bench.dare.algorithms.registry import AlgorithmEntry
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.trajectory import unreplayable
from dare_bench.dare.families import registry as family_registry
from dare_bench.dare.training import denoise_settings
from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest import AlgorithmItem, Manifest
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_decoding import resolve_decoder
from dare_bench.harness.resolved import Decoding


def resolve_rollout(
    report: Reporter, manifest: Manifest, path: KeyPath, item: AlgorithmItem, entry: AlgorithmEntry, settings: Any
) -> Decoding | None:
    """The decoder of an algorithm's rollouts; null without rollouts, or where it is wrong.

    Args:
        report: collects problems.
        manifest: checked for shape.
        path: of the item.
        item: of the manifest.
        entry: of the algorithm.
        settings: its options.
    """
    if entry.needs.rollout == "none":
        if item.decoder is not None:
            message = f"{entry.name} samples no responses"
            report.add((*path, "decoder"), message, given=shorten(item.decoder.name), allowed="no decoder")
        return None
    shared = manifest.train.decoder if manifest.train else None
    if item.decoder is None and shared is None:
        return Decoding(DecoderConfig(name="rollout"))
    at, chosen = ((*path, "decoder"), item.decoder) if item.decoder is not None else (("train", "decoder"), shared)
    assert chosen is not None
    if "temperature" in chosen.model_fields_set:
        message = "the temperature of rollouts is a setting of the algorithm"
        allowed = "{name: ALGORITHM, temperature: VALUE} under `algorithms`"
        report.add((*at, "temperature"), message, given=shorten(chosen.temperature), allowed=allowed)
        return None
    decoding = resolve_decoder(report, at, chosen)
    if decoding is None:
        return None
    for field, (said, allowed) in _unusable(entry, settings, decoding.config).items():
        where = (*at, field) if field in decoding.given else at
        own = "" if item.decoder is not None else f"; or a decoder of its own: {{name: {entry.name}, decoder: {{...}}}}"
        report.add(where, said, given=shorten(getattr(decoding.config, field)), allowed=f"{allowed}{own}")
    honoured = [family_registry.get_family(name).decoder_fields for name in entry.families]
    if None in honoured or not honoured:
        return decoding
    # The section serves all algorithms; what only other decoders know does not reach this one.
    fields = frozenset().union(*(names for names in honoured if names is not None))
    config = DecoderConfig(**{name: getattr(decoding.config, name) for name in fields})
    return Decoding(config, given=tuple(name for name in decoding.given if name in fields))


def _unusable(entry: AlgorithmEntry, settings: Any, decoder: DecoderConfig) -> dict[str, tuple[str, str]]:
    """Fields that the algorithm's rollouts cannot honour: field -> (why, what is allowed)."""
    needs = entry.needs
    if needs.trace == "states" or needs.rollout == "tree":
        remask = bool(getattr(settings, "remask", False))
        why = f"rollouts of {entry.name} denoise whole canvases in a fixed number of steps"
        found = denoise_settings.problems(decoder, remask=remask)
        return {field: (why, ", ".join(map(repr, allowed))) for field, allowed in found.items()}
    if needs.trace == "step_map":
        why = f"{entry.name} replays its rollouts, which this decoder does not allow"
        # Rollouts from left to right edit nothing, whatever the section says.
        left = {"editor"} if needs.rollout == "ar" else set()
        return {field: (why, allowed) for field, allowed in unreplayable(decoder).items() if field not in left}
    return {}
