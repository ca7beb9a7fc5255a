"""`dare-bench generate MODEL PROMPT`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click
from dare_bench.harness.commands.checkpoint import checkpoint, decoder_for, selector_fields


@click.command("generate")
@click.argument("model")
@click.argument("prompt")
@click.option("--trace", is_flag=True, help="Show which tokens each forward committed.")
@click.option("--selector", help="`dare-bench list decoders`; default: the family's.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1, min_open=True), help="Use the threshold selector with this value."
)
@click.option("--gen-length", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens to generate.")
@click.option(
    "--steps-per-block", type=click.IntRange(min=1), help="Denoising steps per block; default: one per token."
)
@click.option("--temperature", type=click.FloatRange(min=0), help="0 is greedy; default: the family's.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--system", help="System message.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:N.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(
    model: str,
    prompt: str,
    trace: bool,
    selector: str | None,
    threshold: float | None,
    gen_length: int,
    steps_per_block: int | None,
    temperature: float | None,
    seed: int,
    system: str | None,
    device: str,
    debug: bool,
) -> None:
    """Answer PROMPT with MODEL: a name of `dare-bench list models` or a checkpoint folder (runs/train/...)."""
    from dare_bench.harness.environment import select_devices
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.jobs.answer import answer

    given: dict[str, Any] = {"gen_length": gen_length}
    given |= {"steps_per_block": steps_per_block} if steps_per_block is not None else {}
    given |= {"temperature": temperature} if temperature is not None else {}
    if threshold is not None or selector is not None:
        given |= selector_fields(selector, threshold)
    if not prompt.strip():
        raise UserError("the prompt is empty; give the question as one argument, in quotes")
    place = select_devices(device)[0].name
    with ExitStack() as stack:
        folder, family = checkpoint(model, stack)
        decoder = decoder_for(family, given)
        click.echo(answer((folder, family), prompt, decoder, seed=seed, device=place, system=system, trace=trace))
