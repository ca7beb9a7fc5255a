"""Which rollout an algorithm gets: a table from what it needs to a function, and the checks made before the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.dare.algorithms.base import Needs
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training import denoise
from dare_bench.dare.training.data import Encoded
from dare_bench.dare.training.rollout import Rollout, rollout
from dare_bench.dare.training.rollout_states import rollout_states
from dare_bench.dare.training.rollout_tree import rollout_tree

Messages = Sequence[Sequence[dict[str, str]]]


@dataclass(frozen=True)
class Kind:
    """A kind of rollout.

    Attributes:
        roll: (lm, prompts, messages, decoder, options of the algorithm, further arguments of `rollout`) -> rollout.
        check: (lm, decoder, options) raises ValueError for settings that it does not honour.
    """

    roll: Callable[..., Rollout]
    check: Callable[[DiffusionLM, DecoderConfig, Any], None]


def _plain(
    lm: DiffusionLM, prompts: Sequence[Encoded], messages: Messages, decoder: DecoderConfig, options: Any, **common: Any
) -> Rollout:
    return rollout(lm, prompts, messages, decoder, group_size=int(options.group_size), **common)


def _states(
    lm: DiffusionLM, prompts: Sequence[Encoded], messages: Messages, decoder: DecoderConfig, options: Any, **common: Any
) -> Rollout:
    return rollout_states(
        lm, prompts, messages, decoder, group_size=int(options.group_size), remask=options.remask, **common
    )


def _tree(
    lm: DiffusionLM, prompts: Sequence[Encoded], messages: Messages, decoder: DecoderConfig, options: Any, **common: Any
) -> Rollout:
    return rollout_tree(lm, prompts, messages, decoder, shape=options.shape, **common)


def _accept(lm: DiffusionLM, decoder: DecoderConfig, options: Any) -> None:
    """Whatever the engine takes: it checks a decoder itself."""


def _check_states(lm: DiffusionLM, decoder: DecoderConfig, options: Any) -> None:
    denoise.Denoiser(lm, decoder, remask=options.remask, everywhere=True)


def _check_tree(lm: DiffusionLM, decoder: DecoderConfig, options: Any) -> None:
    denoise.Denoiser(lm, decoder).check_levels(options.shape.levels)


_ENGINE = Kind(_plain, _accept)
KINDS = {
    "policy": _ENGINE,
    "ar": _ENGINE,
    "states": Kind(_states, _check_states),
    "tree": Kind(_tree, _check_tree),
}


def kind_of(needs: Needs) -> Kind:
    """The kind of rollout that answers some needs; a trace of all states decides before the rest."""
    return KINDS["states" if needs.trace == "states" else needs.rollout]
