"""Build time and sizes of a site of many cells, from a made-up store.

    python tests/perf/measure_site.py [--cells 1000] [--questions 200]

Prints seconds, bytes of the index and of the largest page. Budgets: 1,000 cells in 60 s, index with its style and
scripts at most 300 kB, any page at most 1 MB.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

from dare_bench.leaderboard.site import build
from dare_bench.results.store import Store


def main() -> None:
    """Make the store, build the site, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--questions", type=int, default=200)
    options = parser.parse_args()
    place = Path(__file__).parents[1] / "leaderboard" / "conftest.py"
    spec = importlib.util.spec_from_file_location("made_up_store", place)
    assert spec is not None and spec.loader is not None
    made_up = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made_up)
    labels = [f"algorithm_{i}" for i in range(8)]
    per_model = (len(labels) * 3 + 1) * 4  # three seeds of each algorithm and one base run, on four benchmarks
    models = [f"model-{i}" for i in range(max(1, options.cells // per_model))]
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/store.db") as store:
        made_up.fill(
            store, models=models, labels=labels, benchmarks=("b1", "b2", "b3", "b4"), decoders=("default",),
            n=options.questions,
        )  # fmt: skip
        start, start_cpu = time.perf_counter(), time.process_time()
        index = build(store, Path(folder) / "site")
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
        pages = list((index.parent / "cell").iterdir())
        head = index.stat().st_size + sum(p.stat().st_size for p in (index.parent / "static").iterdir())
        largest = max(p.stat().st_size for p in pages)
        total = sum(p.stat().st_size for p in index.parent.rglob("*") if p.is_file())
        print(f"{len(pages)} cells of {options.questions} questions: {wall_s:.1f} s, of these on the CPU {cpu_s:.1f} s")
        print(
            f"index, style, scripts {head / 1000:.0f} kB, largest page {largest / 1000:.0f} kB, site {total / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
