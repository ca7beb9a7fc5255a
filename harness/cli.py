"""The command line. Sub-commands are imported when they are called, so that `--help` answers at once."""

from __future__ import annotations

import importlib
import sys
import traceback
from importlib import metadata

import click

#: verb -> one-line help; each verb is one file in `commands/` whose `command` is the click command.
VERBS = {
    "run": "Train, generate and score every cell of a suite that is not done yet.",
    "plan": "Show cells, what is done, memory and what is missing; starts nothing.",
    "list": "List models, algorithms, benchmarks, decoders, rewards or suites.",
    "show": "Show one cell: settings, scores, cost, a few answers.",
    "publish": "Write the static leaderboard site.",
    "generate": "Answer one prompt with a model; --trace shows the denoising.",
    "serve": "Answer OpenAI-compatible requests over HTTP with a model.",
    "export": "Write results as JSON, CSV or JSONL.",
    "conformance": "Compare this installation with recorded values of the released code.",
    "doctor": "Check this machine: packages, devices, shipped weights and data.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of the help text."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"dare_bench.harness.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(metadata.version("dare-bench"), prog_name="dare-bench")
def cli() -> None:
    """Post-train, decode, benchmark and fairly compare diffusion language models.

    First steps: `dare-bench run smoke` trains and evaluates the shipped tiny models in minutes on a CPU,
    `dare-bench publish` writes the leaderboard, `dare-bench plan suites/math.yaml` shows what a real suite needs.
    """


def main() -> None:
    """Entry point: maps errors to messages and exit codes (2 = usage or manifest, 1 = failed, 130 = interrupted)."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line.

    Args:
        arguments: without the program name.

    Returns:
        The exit code.
    """
    debug = "--debug" in arguments
    try:
        code = cli.main(args=arguments, prog_name="dare-bench", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nstopped; finished batches are stored, the same command goes on from there", err=True)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away (`| head`): nothing to report, nowhere to report it
        return 141
    except Exception as error:
        return _report(error, debug)


def _report(error: Exception, debug: bool) -> int:
    code = _exit_code(error)
    if code is None or debug:
        traceback.print_exc()
    if code is None:
        click.echo(
            f"internal error: {type(error).__name__}: {error}\nThis is a bug of dare-bench; please report it.", err=True
        )
        return 1
    click.echo(f"error: {error}", err=True)
    return code


def _exit_code(error: Exception) -> int | None:
    """Exit code of an error that a user can act on; null for anything else.

    The rooms' error classes are recognised by module and name, so that no room is imported for `--help`.
    """
    from dare_bench.harness.errors import HarnessError

    if isinstance(error, HarnessError):
        return error.exit_code
    for cls in type(error).__mro__:
        name = f"{cls.__module__.removeprefix('dare_bench.')}.{cls.__name__}"
        if name in _USER_ERRORS:
            return 2
    return None


_USER_ERRORS = {
    "suites.errors.SuiteError",
    "results.opening.StoreError",
    "leaderboard.site.SiteError",
    "dare.conformance.layout.BadReference",
    "dare.families.registry.UnknownName",
    "dare.families.facts.UnsupportedConfig",
    "dare.families.places.WeightsNotHere",
    "dare.families.places.BadCheckpoint",
}


if __name__ == "__main__":
    main()
