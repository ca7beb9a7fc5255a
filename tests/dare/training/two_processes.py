"""One process of a group that trains together; started by torchrun from the tests, or alone for comparison.

``python two_processes.py OUT [sharded]`` trains a tiny model in each of `CASES` and, in the first process, writes
points.json beside each checkpoint.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import torch
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.sft import SFT
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.dare.training.loop import train
from dare_bench.dare.training.tokenizer import SPECIALS, train_tokenizer

HERE = Path(__file__).resolve().parent
CASES = {
    "sft": (SFT, None, {"micro_batch_size": 3}),
    "d1": (D1, D1Config(group_size=3, inner_iterations=2, beta=0.1), {"micro_batch_size": 2, "checkpoint_every": 2}),
    "d1-lora": (D1, D1Config(group_size=3), {"peft": LoraConfig(r=4)}),
}


def digits(prompts, completions, **columns):
    return [sum(character < "P" for character in each[0]["content"]) / 6 for each in completions]


def main(out: Path, case: str, sharded: bool) -> None:
    torch.set_num_threads(1)
    family = "sdar" if case == "d1" else "llada"
    fixtures = runpy.run_path(str(HERE / "conftest.py"))
    tokenizer = train_tokenizer(
        ["0 1"], family, vocab_size=256 + len(SPECIALS[family]), chat_template=fixtures["TEMPLATE"]
    )
    special = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": tokenizer.eos_token_id}
    made = loading.from_config(family, fixtures["config"](family, len(tokenizer)) | special, seed=0)
    lm = DiffusionLM(made.family, made.config, made.model, tokenizer)
    data = [
        {
            "id": f"e{i}",
            "prompt": [{"role": "user", "content": f"{i} " * (1 + i % 3)}],
            "completion": str(i) * (1 + i % 5),
        }
        for i in range(12)
    ]
    kind, options, settings = CASES[case]
    points: dict[int, dict[str, float]] = {}
    result = train(
        lm,
        kind(options),
        data,
        TrainConfig(steps=4, batch_size=5, lr=1e-3, **settings),
        seed=5,
        out_dir=out,
        base="b" if settings.get("peft") else "",
        reward_funcs=[digits] if kind is D1 else (),
        decoder=DecoderConfig(gen_length=6, steps_per_block=2),
        on_point=lambda step, metrics, timing: points.update({step: metrics}),
        sharded=sharded,
    )
    if points:
        totals = {name: value for name, value in result.totals.items() if not name.endswith("wall_s")}
        (out / "points.json").write_text(json.dumps({"points": points, "totals": totals}), encoding="utf-8")


if __name__ == "__main__":
    for name in CASES:
        main(Path(sys.argv[1]) / name, name, "sharded" in sys.argv[2:])
