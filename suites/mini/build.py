"""Write the shipped mini benchmarks: ``python -m dare_bench.suites.mini.build [DIR]`` (seeded, byte-identical).

Splits are disjoint by question text; for mini_gsm also by number tuple: a (template, numbers) combination belongs to one
split only, so no test problem is a training problem with other names in it.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from dare_bench.suites.mini import choice, code, gsm

SEED = 20261130
ROWS = {"train": 2500, "validation": 500, "test": 500}
#: Of 10 hash buckets of the split key, which belong to which split.
BUCKETS = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


def normalise(question: str) -> str:
    """Lower case, single spaces: equal texts count as the same question."""
    return " ".join(question.lower().split())


def split_key(benchmark: str, row: dict[str, object]) -> str:
    """What decides the split of a row: story and numbers (mini_gsm), else the question text."""
    if benchmark == "mini_gsm":
        return f"{row['template']}:{row['numbers']}"
    return normalise(str(row["question"]))


def split_of(benchmark: str, row: dict[str, object]) -> str:
    """Split a row belongs to, from a hash of its key."""
    bucket = hashlib.sha256(f"{benchmark}:{split_key(benchmark, row)}".encode()).digest()[0] % 10
    return next(split for split, buckets in BUCKETS.items() if bucket in buckets)


PROBLEMS: dict[str, Callable[[random.Random], dict[str, object]]] = {
    "mini_gsm": gsm.problem,
    "mini_choice": choice.problem,
    "mini_code": code.problem,
}


def rows(benchmark: str, split: str) -> list[dict[str, object]]:
    """All rows of one split, in file order."""
    rng = random.Random(f"{SEED}:{benchmark}:{split}")
    seen: set[str] = set()
    found: list[dict[str, object]] = []
    while len(found) < ROWS[split]:
        row = PROBLEMS[benchmark](rng)
        text = normalise(str(row["question"]))
        if split_of(benchmark, row) == split and text not in seen:
            seen.add(text)
            found.append({"id": f"{benchmark}/{split}/{len(found):04d}", **row})
    return found


def write(folder: Path) -> dict[str, dict[str, object]]:
    """Write all splits and MANIFEST.json (checksum and row count per file)."""
    manifest: dict[str, dict[str, object]] = {}
    for benchmark in PROBLEMS:
        for split in ROWS:
            lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows(benchmark, split)]
            data = "".join(lines).encode()
            name = f"{benchmark}.{split}.jsonl"
            (folder / name).write_bytes(data)
            manifest[name] = {"sha256": hashlib.sha256(data).hexdigest(), "rows": len(lines)}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return manifest


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    print(json.dumps(write(target), indent=2))
