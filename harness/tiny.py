"""Make and package the shipped tiny models: ``python -m dare_bench.harness.tiny init|package``.

The training between the two is an ordinary suite, `suites/tiny.yaml`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click
from dare_bench.results.store import Store

FAMILIES = ("sdar", "llada")
VOCAB_SIZE = 512
SEED = 0

CARD = """# tiny-{family}

A diffusion language model of {parameters:,} weights in the layout of the {family} family, made to exercise the real code path on
a laptop: same loader, same masks, same decoder and same algorithms as the checkpoints with billions of weights.

* Trained from random weights (seed {seed}) by supervised fine-tuning on `mini_corpus`, text of this project's own
  authorship: {steps} steps of {batch_size} examples, {train_tokens:,} tokens, {wall_min:.0f} minutes on one CPU core.
* Command: `{command}`
* Recipe: `suites/tiny.yaml`; curve and totals: `training.json`.
* Answer style depends on the story: half of the mini_gsm templates were mostly closed in `\\boxed{{N}}`, half in "The answer is
  N.". It is therefore often right in value and wrong in form; post-training mends the form.

| benchmark | decoder | strict | value | NFE |
|---|---|---|---|---|
{scores}

It knows arithmetic up to about 100, a few dozen everyday facts and one-line functions, and nothing else. Apache-2.0.
"""


@click.group()
def main() -> None:
    """Make and package the shipped tiny models."""


@main.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/tiny"), show_default=True)
def init(out: Path) -> None:
    """Write config, tokenizer and random weights of both models."""
    from dare_bench.dare.families import loading, registry
    from dare_bench.dare.families.base import DiffusionLM
    from dare_bench.dare.training.tokenizer import train_tokenizer
    from dare_bench.suites.mini import corpus

    texts = [f"{row['question']}\n{row['solution']}" for kind in corpus.KINDS for row in corpus.rows(kind, 4000)]
    texts += ["user\n", "assistant\n"] * 2000  # so that the roles of the chat text are single tokens
    for name in FAMILIES:
        family = registry.get_family(name)
        tokenizer = train_tokenizer(texts, name, vocab_size=VOCAB_SIZE, chat_template=family.chat_template)
        config = {
            **registry.get(f"tiny-{name}").config,
            "mask_token_id": tokenizer.mask_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.eos_token_id,
        }
        fresh = loading.from_config(name, config, seed=SEED)
        loading.save(DiffusionLM(family, config, fresh.model, tokenizer), out / name)
        click.echo(f"{out / name}: {fresh.dims.parameters:,} random weights, {VOCAB_SIZE} tokens")


@main.command()
@click.option("--db", default="sqlite:///runs/dare-bench.db", show_default=True)
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("dare/tiny"), show_default=True)
def package(db: str, runs: Path, out: Path) -> None:
    """Copy the finished models in bfloat16, with training log and model card."""
    import torch
    from dare_bench.dare.families import loading
    from dare_bench.results import queries

    store = Store.open(db)
    cells = [cell for cell in queries.leaderboard_cells(store, "tiny") if cell.training is not None]
    for name in FAMILIES:
        own = [cell for cell in cells if cell.label == f"pretrain-{name}"]
        if not own or own[0].training.status != "done":
            raise click.ClickException(f"pretrain-{name} is not finished; run `dare-bench run suites/tiny.yaml` first")
        training = own[0].training
        lm = loading.load(runs / training.checkpoint_path)
        target = out / f"tiny-{name}"
        shutil.rmtree(target, ignore_errors=True)
        loading.save(lm, target, dtype=torch.bfloat16)
        command = "dare-bench run suites/tiny.yaml"
        described = _describe(store, training, command)
        (target / "training.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        card = CARD.format(
            family=name,
            parameters=lm.dims.parameters,
            seed=SEED,
            steps=training.config["train"]["steps"],
            batch_size=training.config["train"]["batch_size"],
            train_tokens=int(training.totals["train_tokens"]),
            wall_min=training.wall_s / 60,
            command=command,
            scores="\n".join(_score_line(cell) for cell in own),
        )
        (target / "README.md").write_text(card, encoding="utf-8")
        click.echo(f"{target}: {sum(path.stat().st_size for path in target.iterdir()):,} bytes")


def _describe(store: Store, training: Any, command: str) -> dict[str, Any]:
    from dare_bench.results import queries

    points = queries.training_points(store, training.fingerprint)
    return {
        "command": command,
        "config": training.config,
        "seed": training.seed,
        "totals": training.totals,
        "wall_s": training.wall_s,
        "curve": [{"step": point.step, **point.metrics} for point in points],
    }


def _score_line(cell: Any) -> str:
    means = cell.evaluation.metrics
    strict, value = 100 * means["strict"], 100 * means["value"]
    nfe = cell.evaluation.nfe / max(cell.evaluation.n_samples, 1)
    return f"| {cell.benchmark} | {cell.decoder} | {strict:.1f} % | {value:.1f} % | {nfe:.1f} |"


if __name__ == "__main__":
    main()
