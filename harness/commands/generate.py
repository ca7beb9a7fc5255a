"""`dare-bench generate MODEL PROMPT`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dare_bench.dare.decoding.config import DecoderConfig


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
        given |= _selector(selector, threshold)
    if not prompt.strip():
        raise UserError("the prompt is empty; give the question as one argument, in quotes")
    place = select_devices(device)[0].name
    with ExitStack() as stack:
        folder, family = _source(model, stack)
        decoder = _decoder(family, given)
        click.echo(answer((folder, family), prompt, decoder, seed=seed, device=place, system=system, trace=trace))


def _selector(name: str | None, threshold: float | None) -> dict[str, Any]:
    """Selector with its options, as fields of a decoder."""
    from dare_bench.dare.decoding.selectors import resolve
    from dare_bench.harness.errors import UserError

    chosen = "threshold" if threshold is not None else str(name)
    try:
        _, options = resolve(chosen, {} if threshold is None else {"threshold": threshold})
    except ValueError as error:
        raise UserError(f"--selector {chosen}: {error}") from error
    return {"selector": chosen, "selector_options": options}


def _decoder(family: str, given: dict[str, Any]) -> DecoderConfig:
    """What the options give, and the family's own settings for the rest.

    Raises:
        UserError: an option that the family's engine does not honour.
    """
    from dare_bench.dare.decoding.config import DecoderConfig
    from dare_bench.dare.families.registry import get_family
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.resolve_pairs import unhonoured

    ignored = unhonoured(tuple(given), family)
    if ignored:
        options = ", ".join("--" + field.replace("_", "-") for field in ignored)
        raise UserError(f"{options}: the family {family} decodes by its own procedure and does not honour it")
    defaults = get_family(family).default_decoder
    if "selector" in given:
        defaults = {field: value for field, value in defaults.items() if field != "selector_options"}
    return DecoderConfig(**{**defaults, **given})


def _source(model: str, stack: ExitStack) -> tuple[str, str]:
    """Folder of the weights, and family; a random checkpoint is made for the time of the command."""
    from dare_bench.dare.families import places, random_entries
    from dare_bench.dare.families.registry import detect, get
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.weights import locate

    if Path(model).is_dir():
        return str(Path(model)), detect(places.official_config(Path(model))).name
    entry = get(model)
    if entry.source.startswith(random_entries.PREFIX):
        from dare_bench.harness.jobs.answer import random_folder

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dare-bench-"))
        return random_folder(entry.source, Path(folder)), entry.family
    found = locate(entry.name, entry.source, entry.revision)
    if found.missing or found.folder is None:
        raise UserError(str(found.missing))
    return str(found.folder), entry.family
