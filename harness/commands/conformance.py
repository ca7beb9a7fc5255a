"""`dare-bench conformance SUBJECT DIR`."""

from __future__ import annotations

import math
from pathlib import Path

import click


def _finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Refuse a tolerance under which everything or nothing would pass."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to compare with; give a finite one, for example 1e-4")
    return value


@click.command("families", short_help="Model families: logits, caches, masks, routers, losses.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=1e-4,
    show_default="1e-4",
    callback=_finite,
    help="Largest absolute difference that passes.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Of the weights. Values were recorded in float32: give half precision a --tolerance of its own.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:N.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def families(folder: Path, tolerance: float, dtype: str, device: str, debug: bool) -> int:
    """Compare logits, caches, masks, routers and losses of model families with recorded values.

    DIR holds one sub-folder per model: config.json and model.safetensors as released, inputs.safetensors,
    expected.safetensors (what the released code computed in float32) and meta.json (family; block_length where
    config.json has none). Every tensor of expected.safetensors is computed again; one that this command has no rule for
    is a failure. Padded batches are compared at real tokens, masks must be equal; for chosen experts the difference is
    the share of a token's experts that are others. A value that can be asked for in several ways (a mask by its name
    and as the family's own) is compared in each of them.

    Exit code 0: every case lies within the tolerance. 1: one does not. 2: DIR is not such a folder.
    """
    from dare_bench.dare.conformance.layout import model_folders
    from dare_bench.dare.conformance.outcome import HEAD, summary, table_rows
    from dare_bench.harness.environment import select_devices
    from dare_bench.harness.table import text_table

    folders = model_folders(folder)
    place = select_devices(device)[0].name
    from dare_bench.harness.jobs import conformance as job  # loads torch: after what the user gave was checked

    outcomes = job.families(folders, tolerance=tolerance, dtype=dtype, device=place)
    click.echo(text_table(HEAD, table_rows(outcomes)))
    click.echo(summary(outcomes, "families"))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


@click.command("decoding", short_help="Published samplers: ids, step maps, network calls.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:N. Recorded on a CPU in float32.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def decoding(folder: Path, device: str, debug: bool) -> int:
    """Decode the prompts of recorded runs again and compare ids, steps and network calls.

    DIR holds one sub-folder per case with a case.json (settings of the published sampler, prompts, ids, step map, forwards)
    and the networks that these name. Each case is replayed by the rule, alone and beside other prompts: the recorded
    forwards without those that the published loop wastes, steps numbered accordingly. Where published code departs from
    its rule it is replayed a second time with the `compat` settings that reproduce it, exactly as recorded; what the
    record cannot show of the rule is said in the last column.

    Exit code 0: everything is equal. 1: something differs. 2: DIR is not such a folder.
    """
    from dare_bench.dare.conformance.decoding_cases import read_cases
    from dare_bench.dare.conformance.decoding_outcome import HEAD, summary, table_rows
    from dare_bench.dare.conformance.decoding_samplers import map_case
    from dare_bench.harness.environment import select_devices
    from dare_bench.harness.table import text_table

    for case in read_cases(folder):
        map_case(case)
    place = select_devices(device)[0].name
    from dare_bench.harness.jobs import conformance as job  # loads torch: after what the user gave was checked

    replays = job.decoding(folder, device=place)
    click.echo(text_table(HEAD, table_rows(replays)))
    click.echo(summary(replays))
    return 0 if all(replay.passed for replay in replays) else 1


@click.command("algorithms", short_help="Training algorithms: losses, gradients, masks, estimators, rewards.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--cases", is_flag=True, help="Show every case, not one line per file.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def algorithms(folder: Path, cases: bool, debug: bool) -> int:
    """Compare losses, gradients, masks, estimators and rewards of training algorithms with recorded values.

    DIR holds one .json or .safetensors file, or both, per subject, each with the inputs and results of published code or
    of an independent calculation. All results are computed again through the functions that training uses. Differences
    are absolute up to a value of 1 and relative above; masks, ids and counts must be equal. A file that this command has
    no rules for is a failure, and so is a recorded value that is never looked at.

    Exit code 0: every case lies within its tolerance. 1: one does not. 2: DIR is not such a folder, or a file is damaged.
    """
    from dare_bench.dare.conformance.layout import fixture_files
    from dare_bench.dare.conformance.outcome import FILE_HEAD, HEAD, file_rows, summary, table_rows
    from dare_bench.harness.table import text_table

    fixture_files(folder)
    from dare_bench.harness.jobs import conformance as job  # loads torch: after what the user gave was checked

    outcomes = job.algorithms(folder)
    head = ["file", *HEAD[1:]]
    click.echo(text_table(head, table_rows(outcomes)) if cases else text_table(FILE_HEAD, file_rows(outcomes)))
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed and not cases:
        click.echo(text_table(head, table_rows(failed)))
    click.echo(summary(outcomes, "files"))
    return 1 if failed else 0


#: What can be compared: each is a command of its own.
SUBJECTS: dict[str, click.Command] = {"families": families, "decoding": decoding, "algorithms": algorithms}

command = click.Group(
    "conformance",
    commands=SUBJECTS,
    no_args_is_help=True,
    help=(
        "Compare this installation with recorded values of the released code.\n\n"
        "Every recorded value is computed again through the interface that training and evaluation use, and the "
        "differences are shown; nothing is skipped. Exit code 1: something differs."
    ),
)
