"""Where rollouts come from when not from this process: a server that takes new weights. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dare_bench.dare.algorithms.base import Needs
from dare_bench.dare.decoding.remote import BACKENDS
from dare_bench.dare.decoding.remote_backend import Backend

#: Fields of a decoder that travel with a request; all others are settings of the server.
REQUESTED = frozenset({"name", "gen_length", "temperature", "top_p", "top_k"})


@dataclass(frozen=True)
class EngineConfig:
    """A server that samples the rollouts.

    Attributes:
        kind: of its interface, see `updatable`.
        url: for example ``http://127.0.0.1:30000``.
        concurrency: prompts in flight, over all processes of the run.
        timeout_s: for one answer, and for loading weights.
        shared_folder: folder ``engine`` of the run, as the server sees it; null = at the same path.
    """

    kind: str
    url: str
    concurrency: int = 64
    timeout_s: float = 600.0
    shared_folder: str | None = None


def updatable() -> list[str]:
    """Kinds of servers that load weights from a folder while they run."""
    plain = Backend.update_weights_from_disk
    return sorted(kind for kind, cls in BACKENDS.items() if cls.update_weights_from_disk is not plain)


def problems(config: EngineConfig) -> dict[str, tuple[str, str]]:
    """What is wrong with a config: field -> (why, what is allowed)."""
    found = {}
    if config.kind not in BACKENDS:
        found["kind"] = ("unknown kind of server", ", ".join(updatable()))
    elif config.kind not in updatable():
        found["kind"] = ("this server loads no weights from a folder while it runs", ", ".join(updatable()))
    scheme, _, rest = config.url.partition("://")
    if scheme not in ("http", "https") or not rest.strip("/"):
        found["url"] = ("no address of a server", "a URL such as 'http://127.0.0.1:30000'")
    if config.concurrency < 1:
        found["concurrency"] = ("out of range", "a whole number >= 1")
    if not (config.timeout_s > 0 and math.isfinite(config.timeout_s)):
        found["timeout_s"] = ("out of range", "a number of seconds > 0")
    return found


def refusal(needs: Needs) -> str | None:
    """Why rollouts of an algorithm cannot come from a server; null = they can."""
    if needs.rollout == "none":
        return "it samples no responses"
    if needs.trace == "states" or needs.rollout == "tree":
        return "it denoises canvases step by step, which no server does"
    if needs.rollout == "ar":
        return "it decodes strictly left to right, which is a setting of the server"
    return None


#: Why adapters and a server do not go together.
ADAPTERS = "full fine-tuning only: an adapter would have to be merged for every update"


def check(config: EngineConfig, algorithm: str, needs: Needs, *, adapted: bool) -> None:
    """Refuse what cannot work, before anything is loaded.

    Args:
        config: of the server.
        algorithm: name, for the message.
        needs: of the algorithm.
        adapted: adapters are trained.

    Raises:
        ValueError: naming the setting, its value and what is allowed.
    """
    for field, (said, allowed) in problems(config).items():
        raise ValueError(f"engine.{field}: {getattr(config, field)!r}: {said}; allowed: {allowed}")
    why = refusal(needs)
    if why is not None:
        raise ValueError(f"engine: {config.kind!r} cannot sample for {algorithm}: {why}; leave engine out")
    if adapted:
        raise ValueError(f"engine: {config.kind!r} with peft: {ADAPTERS}; leave out one of them")
