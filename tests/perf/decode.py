"""Speed of decoding beside the published LLaDA and Fast-dLLM samplers, in one run. A script, not a test.

``python tests/perf/decode.py --peers DIR`` times the same weights, prompts and settings on both sides, round robin, and
says whether the tokens are equal. DIR holds ML-GSAI/LLaDA as DIR/LLaDA and NVlabs/Fast-dLLM as DIR/Fast-dLLM; their
network wants an environment with transformers 4.54 (``--peers-python``, default DIR/venv/bin/python). Without --peers ours
is timed alone. The published samplers decode one row at a time: their rate at any batch size is that of one row after the
other. CPU seconds are the figures to trust on a shared machine. ``--growth`` adds how cost grows with the generation;
``--overhead`` prints instead where the time goes on the shipped models. Set OMP_WAIT_POLICY=PASSIVE for two threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM

MODES = ("none", "prefix", "dual", "none+thr", "prefix+thr", "dual+thr")
#: Names of sizes: layers, width, heads, hidden width of the MLP, vocabulary.
SIZES = {"tiny": (4, 128, 4, 384, 512), "small": (8, 512, 8, 1536, 4096)}


def checkpoint(folder: Path, size: str, longest: int, head_scale: float, seed: int = 0) -> None:
    """Write a random LLaDA whose head is sharp enough for thresholds, in the published format."""
    layers, width, heads, mlp, vocab = SIZES[size]
    config = {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "activation_type": "silu", "block_type": "llama",
        "block_group_size": 1, "alibi": False, "attention_layer_norm": False, "bias_for_layer_norm": False,
        "include_bias": False, "include_qkv_bias": False, "init_device": "cpu", "layer_norm_type": "rms",
        "layer_norm_with_affine": True, "rms_norm_eps": 1e-5, "rope": True, "rope_full_precision": True,
        "rope_theta": 10000.0, "scale_logits": False, "weight_tying": False, "multi_query_attention": None,
        "flash_attention": False, "input_emb_norm": False, "attention_dropout": 0.0, "embedding_dropout": 0.0,
        "residual_dropout": 0.0, "use_cache": False, "d_model": width, "n_heads": heads, "n_kv_heads": heads,
        "n_layers": layers, "mlp_hidden_size": mlp, "mlp_ratio": 4, "vocab_size": vocab, "embedding_size": vocab,
        "max_sequence_length": longest, "mask_token_id": vocab - 1, "eos_token_id": vocab - 2, "pad_token_id": vocab - 2,
    }  # fmt: skip
    lm = loading.from_config("llada", config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(lm.model.named_parameters()):
            if weight.dim() == 1:
                weight.fill_(1.0)
            elif "embed" in name:
                weight.normal_(generator=generator)
            else:
                scale = head_scale if weight is lm.head_weight else 1.6 if "q_proj" in name or "k_proj" in name else 1.0
                weight.normal_(generator=generator).mul_(scale / math.sqrt(weight.shape[1]))
        lm.head_weight[vocab - 1] = 0  # the mask is never the best token: the published samplers do not forbid it
    loading.save(lm, folder, dtype="float32")


class Peers:
    """A process that runs the published samplers on request."""

    def __init__(self, folder: str, python: str | None, model: Path) -> None:
        interpreter = python or f"{folder}/venv/bin/python"
        command = [interpreter, str(Path(__file__).with_name("decode_peers.py")), folder, str(model)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **request: Any) -> dict[str, Any]:
        """Result of one run."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the peers' process ended: its message is above")
        return json.loads(line)


def ours(lm: DiffusionLM, prompts: list[list[int]], mode: str, options: argparse.Namespace, gen: int) -> dict[str, Any]:
    """One run of our engine, all prompts in one batch."""
    cache, _, rule = mode.partition("+")
    rules: dict[str, Any] = {}
    if rule:
        rules = {"selector": "threshold", "selector_options": {"threshold": options.threshold}}
    decoder = DecoderConfig(gen_length=gen, block_length=options.block, cache=cache, early_stop=False, **rules)
    wall, cpu = time.perf_counter(), time.process_time()
    found = generate(lm, prompts, decoder, [0] * len(prompts), batch_size=len(prompts))
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "ids": [row.token_ids for row in found],
        "nfe": sum(row.cost.nfe for row in found),
        "fed": sum(row.cost.positions_fed for row in found),
    }


def compare(lm: DiffusionLM, peers: Peers | None, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time every mode, thread count and batch size, round robin; print a table."""
    longest = max(options.batches)
    draw = [torch.Generator().manual_seed(1 + row) for row in range(longest)]
    prompts = [torch.randint(5, lm.vocab_size - 10, (options.prompt,), generator=g).tolist() for g in draw]
    taken: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for threads in options.threads:
        torch.set_num_threads(threads)
        ours(lm, prompts[:1], "dual", options, options.block)  # warm-up
        for _ in range(options.reps):
            for mode in options.modes:
                for batch in options.batches:
                    run = ours(lm, prompts[:batch], mode, options, options.gen)
                    taken.setdefault((threads, mode, f"ours x{batch}"), []).append(run)
                for name in ("llada", "fast-dllm") if peers else ():
                    cache, _, rule = mode.partition("+")
                    if name == "llada" and mode != "none":
                        continue
                    run = peers(
                        sampler="llada" if name == "llada" else cache,
                        threads=threads,
                        rows=prompts[: options.peer_rows],
                        threshold=options.threshold if rule else None,
                        settings={"steps": options.gen, "gen_length": options.gen, "block_length": options.block},
                    )
                    taken.setdefault((threads, mode, name), []).append(run)
    return [
        row for threads in options.threads for mode in options.modes for row in _lines(taken, threads, mode, options)
    ]


def _lines(taken: dict[Any, Any], threads: int, mode: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Figures of one mode; ratios are against the published sampler with the most tokens per CPU second."""
    lines = []
    for (at, which, name), runs in taken.items():
        if (at, which) != (threads, mode):
            continue
        run = runs[0]
        cpu, wall = (statistics.median(one[key] for one in runs) for key in ("cpu", "wall"))
        tokens = options.gen * len(run["ids"])
        lines.append(
            {"threads": threads, "mode": mode, "who": name, "cpu_s": cpu, "wall_s": wall, "nfe": run["nfe"],
             "fed": run["fed"], "tokens_per_cpu_s": tokens / cpu, "tokens_per_s": tokens / wall,
             "cpu_ms_per_row_forward": 1e3 * cpu / run["nfe"], "ids": run["ids"]}
        )  # fmt: skip
    published = [line for line in lines if not line["who"].startswith("ours")]
    for line in lines:
        line["cpu_ratio"] = line["wall_ratio"] = line["equal_rows"] = None
        if published and line["who"].startswith("ours"):
            line["cpu_ratio"] = line["tokens_per_cpu_s"] / max(other["tokens_per_cpu_s"] for other in published)
            line["wall_ratio"] = line["tokens_per_s"] / max(other["tokens_per_s"] for other in published)
            pairs = list(zip(line["ids"], published[-1]["ids"], strict=False))
            line["equal_rows"] = f"{sum(a == b for a, b in pairs)}/{len(pairs)}"
    for line in sorted(lines, key=lambda line: line["who"]):
        _print(line)
    return lines


def _print(line: dict[str, Any]) -> None:
    ratios = "" if line["cpu_ratio"] is None else f"{line['cpu_ratio']:8.2f}{line['wall_ratio']:8.2f}"
    print(
        f"{line['threads']:7}  {line['mode']:11}{line['who']:11}{line['cpu_s']:9.2f}{line['wall_s']:9.2f}{line['nfe']:7}"
        f"{line['fed']:9}{line['tokens_per_cpu_s']:10.1f}{line['tokens_per_s']:10.1f}"
        f"{line['cpu_ms_per_row_forward']:9.2f}{ratios}  {line['equal_rows'] or ''}",
        flush=True,
    )


def growth(lm: DiffusionLM, options: argparse.Namespace) -> None:
    """Print how CPU seconds grow with the length of the generation."""
    prompt = torch.randint(
        5, lm.vocab_size - 10, (options.prompt,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    torch.set_num_threads(options.threads[0])
    lengths = [length for length in (128, 256, 512, 1024) if length <= options.growth]
    print(f"\nCPU seconds of one row by generated tokens {lengths}; quota, one token per step, and threshold")
    for mode in options.modes:
        seconds = [ours(lm, [prompt], mode, options, length)["cpu"] for length in lengths]
        growths = [f"x{after / before:.2f}" for before, after in itertools.pairwise(seconds)]
        print(f"  {mode:11}" + "".join(f"{value:9.2f}" for value in seconds) + "   " + " ".join(growths), flush=True)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", metavar="DIR", help="folder with LLaDA and Fast-dLLM; default: ours alone")
    parser.add_argument("--peers-python", metavar="PYTHON", help="interpreter for them (default DIR/venv/bin/python)")
    parser.add_argument("--peer-rows", type=int, default=1, help="prompts they decode, one after the other")
    parser.add_argument("--model", metavar="FOLDER", help="LLaDA checkpoint in float32; default: random, of --size")
    parser.add_argument("--size", choices=list(SIZES), default="tiny", help="of the random model")
    parser.add_argument("--head-scale", type=float, default=18.0, help="larger = surer = more tokens per forward")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--gen", type=int, default=128)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--growth", type=int, default=0, metavar="LENGTH", help="also time 128 .. LENGTH tokens")
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--overhead", action="store_true", help="where the time goes on the shipped tiny models")
    parser.add_argument("--profile", action="store_true", help="with --overhead: the functions that dominate")
    options = parser.parse_args()
    if options.gen % options.block:
        parser.error(f"--gen {options.gen} must be a multiple of --block {options.block}")
    if options.overhead:
        import decode_overhead

        torch.set_num_threads(options.threads[0])
        decode_overhead.report(max(options.batches), 48, options.reps, profile=options.profile)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.model or scratch)
        if not options.model:
            checkpoint(folder, options.size, options.prompt + max(options.gen, options.growth), options.head_scale)
        lm = loading.load(str(folder), device="cpu", dtype="float32").eval()
        peers = Peers(options.peers, options.peers_python, folder) if options.peers else None
        if peers is None:
            print("no --peers: ours alone", file=sys.stderr)
        print(
            f"{'threads':>7}  {'mode':11}{'who':11}{'cpu s':>9}{'wall s':>9}{'nfe':>7}{'fed':>9}{'tok/cpu s':>10}"
            f"{'tok/s':>10}{'ms/fwd':>9}{'x cpu':>8}{'x wall':>8}  equal rows"
        )
        lines = compare(lm, peers, options)
        if options.growth:
            growth(lm, options)
    if options.out:
        kept = [{key: value for key, value in line.items() if key != "ids"} for line in lines]
        Path(options.out).write_text(
            json.dumps({"settings": vars(options), "results": kept}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
