"""Check the facts that a manifest gives for a checkpoint: ids, tokens, patterns, templates, default decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dare_bench.dare.families.facts import Family, Overrides
from dare_bench.harness.errors import shorten
from dare_bench.harness.manifest import ModelItem
from dare_bench.harness.manifest_yaml import KeyPath
from dare_bench.harness.reporter import Reporter
from dare_bench.harness.resolve_decoding import resolve_fields

_IDS = ("mask_token_id", "eos_token_id", "pad_token_id")
#: Variables that the renderer of chat texts sets itself.
_RESERVED = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
        "messages", "model_type", "padding", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools",
        "truncation",
    }
)  # fmt: skip


def resolve_facts(
    report: Reporter, path: KeyPath, item: ModelItem, family: Family, config: Mapping[str, Any]
) -> Overrides | None:
    """The facts of a model's entry.

    Args:
        report: collects problems.
        path: of the entry.
        item: of the manifest.
        family: of the model.
        config: official config; empty = not known here, then ids are not held against the vocabulary.

    Returns:
        What differs from the family's and the config's, or null when something is wrong.
    """
    before = len(report.problems)
    _check_ids(report, path, item, family, config)
    if item.block_length is not None and family.default_block_length == 1:
        message = f"{family.name} decodes token by token and has no blocks"
        report.add((*path, "block_length"), message, given=shorten(item.block_length), allowed="leave it out")
    if item.lora_targets is not None:
        _check_pattern(report, (*path, "lora_targets"), item.lora_targets)
    if item.chat_template is not None:
        _check_template(report, (*path, "chat_template"), item.chat_template)
    for option in sorted(_RESERVED & set(item.chat_options or {})):
        message = f"{option} is set by the renderer itself"
        given = shorten((item.chat_options or {})[option])
        report.add((*path, "chat_options", option), message, given=given, allowed="variables of the template, for "
                   "example enable_thinking: false")  # fmt: skip
    decoder = None
    if item.decoder is not None:
        decoder = resolve_fields(report, (*path, "decoder"), item.decoder, family.default_decoder)
        _check_honoured(report, (*path, "decoder"), item, family)
    if len(report.problems) > before:
        return None
    return Overrides(
        mask_token_id=item.mask_token_id,
        eos_token_id=item.eos_token_id,
        pad_token_id=item.pad_token_id,
        block_length=item.block_length,
        stop_tokens=None if item.stop_tokens is None else tuple(item.stop_tokens),
        reply_end=item.reply_end,
        lora_targets=item.lora_targets,
        chat_template=item.chat_template,
        chat_options=item.chat_options,
        decoder=decoder,
    )


def _check_ids(report: Reporter, path: KeyPath, item: ModelItem, family: Family, config: Mapping[str, Any]) -> None:
    vocab = family.dims(config).vocab if config else None
    for name in _IDS:
        value = getattr(item, name)
        if value is not None and vocab is not None and value >= vocab:
            message = "no such token: the id is outside the vocabulary"
            report.add((*path, name), message, given=shorten(value), allowed=f"0 to {vocab - 1}")
    if item.mask_token_id is not None and family.mask_token_id is None:
        message = f"{family.name} has no mask token"
        report.add((*path, "mask_token_id"), message, given=shorten(item.mask_token_id), allowed="leave it out")


def _check_pattern(report: Reporter, path: KeyPath, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        allowed = "a regular expression that matches whole module names"
        report.add(path, f"not a regular expression: {error}", given=shorten(pattern), allowed=allowed)


def _check_template(report: Reporter, path: KeyPath, template: str) -> None:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # transformers' own tag, which marks the assistant's text and renders as nothing.
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    except jinja2.TemplateSyntaxError as error:
        message = f"not a jinja template: {error.message} (line {error.lineno} of the template)"
        report.add(path, message, given=shorten(template), allowed="a chat template as tokenizers store it")


def _check_honoured(report: Reporter, path: KeyPath, item: ModelItem, family: Family) -> None:
    if family.decoder_fields is None or item.decoder is None:
        return
    allowed = {*family.decoder_fields - {"name"}, *family.default_decoder} - {"selector_options"}
    for field in sorted(item.decoder.model_fields_set - allowed):
        message = f"{family.name} decodes by its own procedure and does not honour {field}"
        given = shorten(getattr(item.decoder, field))
        report.add((*path, field), message, given=given, allowed=", ".join(sorted(allowed)))
