"""Memory and seconds of loading a checkpoint of about 1 GB, in a fresh process: `python measure_loading.py`.

Prints, for a dense and a mixture model, the peak above what the process held before: all resident pages (mapped weight
files count), and anonymous memory alone; both relative to the size of the weight files. Acceptance: at most 1.3.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

LIMIT = 1.3
DENSE = {
    "model_type": "sdar", "hidden_size": 1024, "num_hidden_layers": 16, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000,
}  # fmt: skip
MIXTURE = {
    "model_type": "sdar_moe", "hidden_size": 512, "num_hidden_layers": 12, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "num_experts": 64,
    "num_experts_per_tok": 4, "moe_intermediate_size": 192,
}  # fmt: skip
# As many tensors as the largest released index, each of them tiny.
MANY = MIXTURE | {
    "hidden_size": 16, "num_hidden_layers": 48, "head_dim": 4, "vocab_size": 64, "num_experts": 128,
    "moe_intermediate_size": 8,
}  # fmt: skip
#: Name -> config, dtype, number of files.
CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "dense, float32": (DENSE, "float32", 8),
    "dense, bfloat16": (DENSE | {"num_hidden_layers": 32}, "bfloat16", 8),
    "dense, one file": (DENSE, "float32", 1),
    "mixture, float32": (MIXTURE, "float32", 8),
    "mixture, bfloat16": (MIXTURE | {"num_hidden_layers": 24}, "bfloat16", 8),
    "18867 tensors": (MANY, "float32", 8),
}


def write(folder: Path, config: dict[str, Any], dtype: str, files: int) -> None:
    """A random checkpoint."""
    from dare_bench.dare.families import loading
    from dare_bench.dare.families.registry import detect

    family = detect(config)
    size = family.parameters(config) * loading.to_dtype(dtype).itemsize
    lm = loading.from_config(family.name, config, seed=0)
    loading.save(lm, folder, dtype=dtype, shard_bytes=size // files + 2**20)


class Watch(threading.Thread):
    """Samples the anonymous memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.running = 0, True

    def run(self) -> None:
        """Until `running` is false."""
        while self.running:
            self.peak = max(self.peak, anonymous())
            time.sleep(0.002)


def anonymous() -> int:
    """Resident anonymous bytes."""
    return _status("RssAnon")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def measure(folder: Path) -> dict[str, float]:
    """Load a folder in this process."""
    from dare_bench.dare.families import loading

    loading.load("tiny-sdar", device="cpu")  # imports and caches are not the checkpoint's
    before, before_anonymous = _status("VmRSS"), anonymous()
    watch = Watch()
    watch.start()
    began = time.perf_counter()
    lm = loading.load(folder, device="cpu")
    seconds = time.perf_counter() - began
    watch.running = False
    watch.join()
    assert not any(parameter.is_meta for parameter in lm.model.parameters())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return {
        "gigabytes": size / 1e9,
        "resident": (peak - before) / size,
        "anonymous": (watch.peak - before_anonymous) / size,
        "seconds": seconds,
    }


def main() -> None:
    """Write, load in a fresh process, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--load", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(Path(options.write[1]), *CASES[options.write[0]])
        return
    if options.load:
        print(json.dumps(measure(Path(options.load))))
        return
    failed = False
    for name in CASES:
        with tempfile.TemporaryDirectory() as place:
            # Both in processes of their own: a child's ru_maxrss begins at that of the process that started it.
            _python("--write", name, place)
            found = json.loads(_python("--load", place).splitlines()[-1])
        is_large = found["gigabytes"] > 0.5
        failed |= is_large and found["resident"] > LIMIT
        ratios = "  ".join(f"{kind} {found[kind]:.2f}x" for kind in ("resident", "anonymous")) if is_large else ""
        print(f"{name:18}  {found['gigabytes']:.2f} GB  {found['seconds']:6.2f} s  {ratios}")
    sys.exit(f"more than {LIMIT} times the size of the weight files" if failed else 0)


def _python(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
