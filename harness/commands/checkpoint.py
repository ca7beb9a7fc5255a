"""MODEL and its decoder as the verbs that decode take them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dare_bench.dare.decoding.config import DecoderConfig


def selector_fields(name: str | None, threshold: float | None) -> dict[str, Any]:
    """Selector with its options, as fields of a decoder.

    Args:
        name: of --selector.
        threshold: of --threshold; names the selector `threshold` by itself.

    Raises:
        UserError: an unknown selector, or one that needs options.
    """
    from dare_bench.dare.decoding.selectors import resolve
    from dare_bench.harness.errors import UserError

    chosen = "threshold" if threshold is not None else str(name)
    try:
        _, options = resolve(chosen, {} if threshold is None else {"threshold": threshold})
    except ValueError as error:
        raise UserError(f"--selector {chosen}: {error}") from error
    return {"selector": chosen, "selector_options": options}


def decoder_for(family: str, given: dict[str, Any]) -> DecoderConfig:
    """What the options give, and the family's own settings for the rest.

    Args:
        family: of the model.
        given: fields of the decoder.

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


def checkpoint(model: str, stack: ExitStack, family: str | None = None) -> tuple[str, str]:
    """Folder of the weights, and family; a random checkpoint is made for the time of the command.

    Args:
        model: a registered name, or a folder.
        stack: closes what lives as long as the command.
        family: of a folder; null = detected from its config.

    Raises:
        UserError: the weights are not here, or the family is another one.
    """
    from dare_bench.dare.families import places, random_entries
    from dare_bench.dare.families.registry import detect, get
    from dare_bench.harness.errors import UserError
    from dare_bench.harness.weights import locate

    if Path(model).is_dir():
        return str(Path(model)), family or detect(places.official_config(Path(model))).name
    entry = get(model)
    if family not in (None, entry.family):
        raise UserError(f"--family {family}: {model} is of the family {entry.family}; leave the option out")
    if entry.source.startswith(random_entries.PREFIX):
        from dare_bench.harness.jobs.answer import random_folder

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dare-bench-"))
        return random_folder(entry.source, Path(folder)), entry.family
    found = locate(entry.name, entry.source, entry.revision)
    if found.missing or found.folder is None:
        raise UserError(str(found.missing))
    return str(found.folder), entry.family
