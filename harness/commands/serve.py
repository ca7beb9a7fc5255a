"""`dare-bench serve MODEL`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from dare_bench.harness.commands.checkpoint import checkpoint, decoder_for, selector_fields


@click.command("serve")
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 = all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 = a free one, printed.")
@click.option("--slots", type=click.IntRange(min=1), default=16, show_default=True, help="Answers decoded at once.")
@click.option(
    "--max-queue", type=click.IntRange(min=1), default=1024, show_default=True, help="Answers that may wait, else 503."
)
@click.option(
    "--grace", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds to finish when stopped."
)
@click.option("--family", help="Of a checkpoint folder; default: detected.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:N.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16", "float64"]),
    default="auto",
    show_default=True,
    help="auto = float32 on the CPU, else as stored.",
)
@click.option("--selector", help="`dare-bench list decoders`; default: the family's.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1, min_open=True), help="Use the threshold selector with this value."
)
@click.option(
    "--gen-length",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Tokens, where a request says none.",
)
@click.option(
    "--steps-per-block", type=click.IntRange(min=1), help="Denoising steps per block; default: one per token."
)
@click.option("--temperature", type=click.FloatRange(min=0), help="0 is greedy; default: the family's.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def command(
    model: str,
    host: str,
    port: int,
    slots: int,
    max_queue: int,
    grace: float,
    family: str | None,
    device: str,
    dtype: str,
    selector: str | None,
    threshold: float | None,
    gen_length: int,
    steps_per_block: int | None,
    temperature: float | None,
    debug: bool,
) -> int:
    """Answer OpenAI-compatible requests with MODEL: a name of `dare-bench list models` or a checkpoint folder.

    Requests may give their own decoder settings; the options here are what holds where they do not.
    """
    from dare_bench.harness.environment import select_devices
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.jobs.serving import ServedModel
    from dare_bench.harness.serve import Server, Service, serve
    from dare_bench.harness.serve_request import Defaults

    given: dict[str, Any] = {"gen_length": gen_length}
    given |= {"steps_per_block": steps_per_block} if steps_per_block is not None else {}
    given |= {"temperature": temperature} if temperature is not None else {}
    if threshold is not None or selector is not None:
        given |= selector_fields(selector, threshold)
    place = select_devices(device)[0].name
    with ExitStack() as stack:
        folder, family = checkpoint(model, stack, family)
        names = tuple(dict.fromkeys([model, Path(model).name]))
        defaults = Defaults(names, family, decoder_for(family, given))

        def load() -> ServedModel:
            return ServedModel(folder, family, device=place, dtype=dtype, slots=slots)

        service = Service(defaults, load, slots=slots, max_queue=max_queue)
        try:
            server = Server(service, host, port)
        except OSError as error:
            raise UserError(
                f"--host {host} --port {port}: {error.strerror or error}; --port 0 takes a free one"
            ) from error
        with server:
            service.start()
            return serve(service, server, grace_s=grace, say=lambda text: click.echo(text, err=False))
