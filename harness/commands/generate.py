"""`dare-bench generate MODEL PROMPT`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("generate")
@click.argument("model")
@click.argument("prompt")
@click.option("--trace", is_flag=True, help="Show which tokens each forward committed.")
@click.option("--selector", default="low_confidence", show_default=True, help="`dare-bench list decoders`.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1, min_open=True), help="Use the threshold selector with this value."
)
@click.option("--gen-length", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens to generate.")
@click.option(
    "--steps-per-block", type=click.IntRange(min=1), help="Denoising steps per block; default: one per token."
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--system", help="System message.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:N.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(
    model: str,
    prompt: str,
    trace: bool,
    selector: str,
    threshold: float | None,
    gen_length: int,
    steps_per_block: int | None,
    temperature: float,
    seed: int,
    system: str | None,
    device: str,
    debug: bool,
) -> None:
    """Answer PROMPT with MODEL: a name of `dare-bench list models` or a checkpoint folder (runs/train/...)."""
    from dare_bench.dare.decoding.config import DecoderConfig
    from dare_bench.dare.decoding.selectors import resolve
    from dare_bench.harness.environment import select_devices
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.jobs.answer import answer

    if threshold is not None:
        selector = "threshold"
    try:
        _, options = resolve(selector, {} if threshold is None else {"threshold": threshold})
    except ValueError as error:
        raise UserError(f"--selector {selector}: {error}") from error
    if not prompt.strip():
        raise UserError("the prompt is empty; give the question as one argument, in quotes")
    decoder = DecoderConfig(
        selector=selector,
        selector_options=options,
        gen_length=gen_length,
        steps_per_block=steps_per_block,
        temperature=temperature,
    )
    place = select_devices(device)[0].name
    click.echo(answer(_source(model), prompt, decoder, seed=seed, device=place, system=system, trace=trace))


def _source(model: str) -> tuple[str, str | None]:
    """Folder of the weights and family (null: read it from config.json)."""
    from dare_bench.dare.families.registry import get
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.weights import locate

    if Path(model).is_dir():
        return str(Path(model)), None
    entry = get(model)
    found = locate(entry.name, entry.source, entry.revision)
    if found.missing or found.folder is None:
        raise UserError(str(found.missing))
    return str(found.folder), entry.family
