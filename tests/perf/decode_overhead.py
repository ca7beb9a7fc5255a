"""Where the time of decoding goes: network, output head, and everything else; what dominates the rest.

Used by ``decode.py --overhead``. The shipped tiny models answer mini_gsm; forwards of the network and of the output head
are timed one by one, the rest is what the engine adds.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.suites.benchmarks import registry as benchmarks

THRESHOLD = {"selector": "threshold", "selector_options": {"threshold": 0.9}}
#: (model, label, decoder settings).
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("tiny-llada", "none", {}),
    ("tiny-llada", "none, 0.9", THRESHOLD),
    ("tiny-llada", "prefix", {"cache": "prefix"}),
    ("tiny-llada", "prefix, 0.9", {"cache": "prefix", **THRESHOLD}),
    ("tiny-llada", "dual", {"cache": "dual"}),
    ("tiny-llada", "dual, 0.9", {"cache": "dual", **THRESHOLD}),
    ("tiny-sdar", "block", {}),
    ("tiny-sdar", "block, 0.9", THRESHOLD),
)


class Clock:
    """Adds up the seconds that wrapped calls take.

    Args:
        lm: its network and head are wrapped until `close`.
    """

    def __init__(self, lm: DiffusionLM) -> None:
        self.seconds = {"network": 0.0, "head": 0.0}
        self.calls = {"network": 0, "head": 0}
        self._undo: list[tuple[object, str]] = []
        self._wrap(lm.model.model, "forward", "network")
        self._wrap(lm, "head", "head")

    def _wrap(self, owner: Any, name: str, label: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            found = inner(*arguments, **options)
            self.seconds[label] += time.perf_counter() - began
            self.calls[label] += 1
            return found

        setattr(owner, name, timed)
        self._undo.append((owner, name))

    def close(self) -> None:
        """Put the plain methods back."""
        for owner, name in self._undo:
            delattr(owner, name)


def report(batch: int, count: int, repeats: int, *, profile: bool, only: str | None = None) -> None:
    """Print one line per case: seconds, and the shares of network, head and rest.

    Args:
        batch: rows decoded together.
        count: questions.
        repeats: the median of so many runs counts.
        profile: also print the functions with the most time of their own, network and head aside.
        only: a model name or label; other cases are left out.
    """
    bench = benchmarks.get("mini_gsm")
    rows = bench.rows("test", limit=count)
    print(
        f"{'model':12}{'decoder':14}{'seconds':>9}{'calls':>7}{'ms/call':>9}{'network':>9}{'head':>7}{'rest':>7}"
        f"{'rest us/call':>14}"
    )
    for name, label, settings in CASES:
        if only and only not in (name, label):
            continue
        lm = loading.load(name, device="cpu").eval()
        _, prompts = lm.encode_chats([bench.messages(row) for row in rows])
        decoder = DecoderConfig(gen_length=64, **settings)

        def run(lm: DiffusionLM = lm, prompts: Any = prompts, decoder: DecoderConfig = decoder) -> None:
            generate(lm, prompts, decoder, [0] * len(prompts), batch_size=batch)

        run()
        taken = []
        for _ in range(repeats):
            clock = Clock(lm)
            began = time.perf_counter()
            run()
            taken.append((time.perf_counter() - began, clock.seconds, clock.calls["network"]))
            clock.close()
        total = statistics.median(seconds for seconds, _, _ in taken)
        share = {
            part: statistics.median(found[part] / seconds for seconds, found, _ in taken)
            for part in ("network", "head")
        }
        rest = statistics.median(1 - sum(found.values()) / seconds for seconds, found, _ in taken)
        calls = taken[0][2]
        print(
            f"{name:12}{label:14}{total:9.3f}{calls:7}{1e3 * total / calls:9.3f}{share['network']:9.1%}"
            f"{share['head']:7.1%}{rest:7.1%}{1e6 * rest * total / calls:14.0f}",
            flush=True,
        )
        if profile:
            _profile(run)


def _profile(run: Callable[[], None], lines: int = 22) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(run)
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text)
    stats.sort_stats("cumulative").print_stats(r"decoding|kernels|base\.py|cache\.py")
    for line in text.getvalue().splitlines()[:lines]:
        print("   ", line.replace(str(Path.cwd()) + "/", ""))
