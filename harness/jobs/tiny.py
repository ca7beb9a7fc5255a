"""Make and package the shipped tiny models: ``python -m dare_bench.harness.jobs.tiny init|package``.

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

#: Suites that make each model, in order; the last one's checkpoint is shipped.
STAGES = {
    "sdar": (("tiny", "pretrain-sdar"),),
    "llada": (("tiny", "pretrain-llada"), ("tiny-llada", "pretrain-llada-2")),
}

CARD = """# tiny-{family}

A diffusion language model of {parameters:,} weights in the layout of the {family} family, made to exercise the real code
path on a laptop: same loader, same masks, same decoder and same algorithms as checkpoints with billions of weights.

* Trained from random weights (seed {seed}) by supervised fine-tuning on `mini_corpus`, text of this project's own
  authorship: {stages}.
* Commands: {commands}
* Curve, settings and totals of every stage: `training.json`.
* The answer style depends on the story: half of the mini_gsm templates were mostly closed in `\\boxed{{N}}`, half in "The
  answer is N.". The model is therefore often right in value and wrong in form; post-training mends the form.

Test split, greedy, 500 questions each:

| benchmark | decoder | strict | value | NFE |
|---|---|---|---|---|
{scores}

It knows sums up to about 60, a few dozen everyday facts and one-line functions, and nothing else. Apache-2.0.
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


def _options(command: Any) -> Any:
    """Options shared by the commands that read a database."""
    command = click.option("--db", default="sqlite:///runs/dare-bench.db", show_default=True)(command)
    return click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)(command)


@main.command()
@_options
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/tiny/llada-1"), show_default=True)
def stage(db: str, runs: Path, out: Path) -> None:
    """Copy the first stage of tiny-llada to where its second stage starts."""
    with Store.open(db) as store:
        training = _cells(store, *STAGES["llada"][0])[0].training
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(runs / training.checkpoint["path"], out)
    click.echo(str(out))


@main.command()
@_options
@click.option("--out", type=click.Path(path_type=Path), default=Path("dare/tiny"), show_default=True)
def package(db: str, runs: Path, out: Path) -> None:
    """Copy the finished models in bfloat16, with training log and model card."""
    from dare_bench.dare.families import loading

    with Store.open(db) as store:
        for family, stages in STAGES.items():
            cells = [_cells(store, *names) for names in stages]
            trainings = [own[0].training for own in cells]
            lm = loading.load(runs / trainings[-1].checkpoint["path"])
            target = out / f"tiny-{family}"
            shutil.rmtree(target, ignore_errors=True)
            loading.save(lm, target, dtype="bfloat16")
            described = {
                "initial_seed": SEED,
                "stages": [
                    _describe(store, training, suite) for training, (suite, _) in zip(trainings, stages, strict=True)
                ],
            }
            text = json.dumps(described, indent=1, sort_keys=True)
            (target / "training.json").write_text(text + "\n", encoding="utf-8")
            card = CARD.format(
                family=family,
                parameters=lm.dims.parameters,
                seed=SEED,
                stages="; then ".join(_stage_line(training) for training in trainings),
                commands=", ".join(f"`dare-bench run suites/{suite}.yaml`" for suite, _ in stages),
                scores="\n".join(_score_line(cell) for cell in cells[-1]),
            )
            (target / "README.md").write_text(card, encoding="utf-8")
            click.echo(f"{target}: {sum(path.stat().st_size for path in target.iterdir()):,} bytes")


def _cells(store: Store, suite: str, label: str) -> list[Any]:
    """Finished cells of one training."""
    from dare_bench.results import queries

    found = [cell for cell in queries.leaderboard_cells(store, suite) if cell.label == label and cell.status == "done"]
    if not found:
        raise click.ClickException(f"{label} is not finished; run `dare-bench run suites/{suite}.yaml` first")
    return found


def _describe(store: Store, training: Any, suite: str) -> dict[str, Any]:
    from dare_bench.results import queries

    points = queries.training_points(store, training.fingerprint)
    return {
        "command": f"dare-bench run suites/{suite}.yaml",
        "fingerprint": training.fingerprint,
        "config": training.config,
        "seed": training.seed,
        "totals": training.totals,
        "wall_s": training.wall_s,
        "curve": [{"step": point.step, **point.metrics} for point in points],
    }


def _stage_line(training: Any) -> str:
    train = training.config["train"]
    return (
        f"{train['steps']:,} steps of {train['batch_size']} examples, {int(training.totals['train_tokens']):,} tokens, "
        f"{training.totals['train_wall_s'] / 60:.0f} minutes on one CPU core"
    )


def _score_line(cell: Any) -> str:
    means, costs = cell.scoring.metrics, cell.evaluation.costs
    shown = [cell.benchmark, cell.decoder, f"{100 * means['strict']:.1f} %", f"{100 * means['value']:.1f} %"]
    return f"| {' | '.join(shown)} | {costs.nfe / costs.n:.1f} |"


if __name__ == "__main__":
    main()
