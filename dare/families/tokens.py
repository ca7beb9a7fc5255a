"""Read a checkpoint's tokenizer and end tokens from its data files; code or pickles in the folder are never touched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dare_bench.dare.families.facts import Family, Overrides
from dare_bench.dare.families.places import BadCheckpoint

TOKENIZER, VOCAB, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
SETTINGS, ADDED, TEMPLATE, GENERATION = (
    "tokenizer_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
#: What a folder holds whose tokenizer only its own code, or a format we do not read, can give.
_OTHERS = ("tokenization_*.py", "*.tiktoken", "tokenizer.model", "*.pkl", "spiece.model", "vocab.*", MERGES, SETTINGS)
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer: tokenizer.json, or vocab.json + merges.txt under Qwen's rules; None if it holds none.

    Of tokenizer_config.json the added tokens, the names of special tokens and the chat template are used. What class it
    wants (`tokenizer_class`, `auto_map`) is ignored: that class may be code from the folder. A special token it names
    that has no id anywhere is left out rather than given a new id, for which the network has no trained row.

    Args:
        folder: of the checkpoint.

    Returns:
        A fast transformers tokenizer, every added token at the id the files say.

    Raises:
        BadCheckpoint: if a file is damaged, ids contradict each other, or the tokenizer is in a format not read here.
    """
    if (folder / TOKENIZER).is_file():
        backend, listed = _from_json(folder / TOKENIZER)
    elif (folder / VOCAB).is_file() and (folder / MERGES).is_file():
        backend, listed = _from_vocabulary(folder), set()
    else:
        others = sorted({path.name for pattern in _OTHERS for path in folder.glob(pattern)})
        if not others:
            return None
        raise BadCheckpoint(
            f"{folder}: no tokenizer that can be read without running code: found {', '.join(others)}, need {TOKENIZER} "
            f"or {VOCAB} + {MERGES}. Write a {TOKENIZER} with the checkpoint's own code, once, and put it here."
        )
    from transformers import PreTrainedTokenizerFast

    settings = _read(folder / SETTINGS)
    _add(folder, backend, listed, settings)
    backend.no_truncation()  # a prompt is never cut, whatever the file says
    backend.no_padding()
    names = {name: _content(settings.get(name)) for name in _NAMED}
    # No name_or_path: transformers would ask the hub about it.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,  # text is what the tokens say
        **{name: token for name, token in names.items() if token and backend.token_to_id(token) is not None},
    )
    tokenizer.chat_template, file = _template(folder, settings)
    tokenizer.template_source = str(folder / file)  # for messages
    return tokenizer


def _from_json(path: Path) -> tuple[Any, set[str]]:
    """Backend tokenizer and the added tokens in it, each checked to be at the id the file says."""
    from tokenizers import Tokenizer

    described = _read(path)
    try:
        backend = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises nothing more special
        raise BadCheckpoint(f"{path}: not a tokenizer ({error}). Fetch the file again.") from error
    listed = {str(token["content"]): int(token["id"]) for token in described.get("added_tokens") or ()}
    for token, index in listed.items():
        found = backend.token_to_id(token)
        if found != index:
            raise BadCheckpoint(
                f"{path}: added token {token!r} has id {index} in the file, but lands at {found}: the ids of added tokens "
                "must follow the vocabulary without a gap. The file was edited or cut; fetch it again."
            )
    return backend, set(listed)


def _from_vocabulary(folder: Path) -> Any:
    """Byte-level BPE of vocab.json + merges.txt with Qwen's normalisation and pre-tokenisation, no added tokens.

    Source:
        Qwen2Tokenizer of transformers; Dream's own tokenizer class is a copy of it with other added tokens.
    """
    import transformers

    wanted = _read(folder / SETTINGS).get("tokenizer_class")
    if wanted in dir(transformers) and not str(wanted).startswith("Qwen2Tokenizer"):
        raise BadCheckpoint(
            f"{folder}: {VOCAB} + {MERGES} of a {wanted}; these files are read with Qwen's rules only. "
            f"Add {TOKENIZER}: AutoTokenizer.from_pretrained(...).save_pretrained(...) writes it."
        )
    try:
        lines = (folder / MERGES).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{folder / MERGES}: not readable as text ({error})") from error
    merges = [tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
    try:
        built = transformers.Qwen2Tokenizer(
            vocab=_read(folder / VOCAB), merges=merges, unk_token=None, eos_token=None, pad_token=None
        )
    except Exception as error:  # the library raises nothing more special
        first = str(error).splitlines()[0]
        raise BadCheckpoint(
            f"{folder}: {VOCAB} + {MERGES} are not a vocabulary ({first}). Fetch them again."
        ) from error
    return built.backend_tokenizer


def _add(folder: Path, backend: Any, listed: set[str], settings: Mapping[str, Any]) -> None:
    """Add the tokens of the tables beside the vocabulary, at exactly their ids."""
    fresh: dict[int, Any] = {}
    for file, index, token in _tables(folder, settings):
        here = backend.token_to_id(token.content)
        if here is not None and here != index:
            raise BadCheckpoint(
                f"{folder / file}: added token {token.content!r} has id {index} there, but {here} in the vocabulary. "
                "The files belong to different checkpoints; fetch them again."
            )
        other = fresh[index].content if index in fresh else backend.id_to_token(index)
        if other is None or (other == token.content and other not in listed):
            fresh.setdefault(index, token)
        elif other != token.content and not ("mask" in other.lower() and "mask" in token.content.lower()):
            # Released SDAR folders spell the mask token in two ways. Nobody writes it as text: its id is what counts.
            raise BadCheckpoint(
                f"{folder / file}: id {index} is {token.content!r} there, but {other!r} in the other tokenizer files. "
                "The files belong to different checkpoints; fetch them again."
            )
    for index, token in sorted(fresh.items()):
        backend.add_tokens([token])
        found = backend.token_to_id(token.content)
        if found != index:
            raise BadCheckpoint(
                f"{folder}: added token {token.content!r} has id {index} in the files, but would land at {found}: "
                "the ids of added tokens must follow the vocabulary without a gap. A file is cut or missing; fetch them "
                "again."
            )


def _tables(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """(file, id, token) of the tables of added tokens; the first one to name an id wins."""
    from tokenizers import AddedToken

    more = settings.get("additional_special_tokens")
    special = {_content(token) for token in (*map(settings.get, _NAMED), *(more if isinstance(more, list) else ()))}
    try:
        for index, entry in (settings.get("added_tokens_decoder") or {}).items():
            flags = {name: bool(entry[name]) for name in _FLAGS if name in entry}
            yield SETTINGS, int(index), AddedToken(str(entry["content"]), **flags)
        for content, index in _read(folder / ADDED).items():
            is_special = content in special
            yield ADDED, int(index), AddedToken(content, special=is_special, normalized=not is_special)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(
            f"{folder}: {SETTINGS} or {ADDED} has a table of added tokens that is not readable ({error!r}); "
            'expected {"ID": {"content": TEXT, ...}} and {TEXT: ID}'
        ) from error


def _template(folder: Path, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """Chat template and the file that holds it."""
    if (folder / TEMPLATE).is_file():
        try:
            return (folder / TEMPLATE).read_text(encoding="utf-8"), TEMPLATE
        except (OSError, ValueError) as error:
            raise BadCheckpoint(f"{folder / TEMPLATE}: not readable as text ({error})") from error
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, Mapping)}
        found = named.get("default", found)
    if found is not None and not isinstance(found, str):
        raise BadCheckpoint(
            f"{folder / SETTINGS}: chat_template is neither text nor a list with one named 'default'; "
            "give `chat_template` of the model in the manifest"
        )
    return found, SETTINGS


def _content(token: Any) -> str | None:
    """Text of a special token, given as text or as an object with flags."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty without the file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path}: not readable as JSON ({error}). Fetch the file again.") from error
    if not isinstance(found, dict):
        raise BadCheckpoint(f"{path}: expected an object, found {type(found).__name__}. Fetch the file again.")
    return found


def special_ids(folder: Path, family: Family, config: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The config with special ids that only other files give: they then travel with saved weights.

    Args:
        folder: its generation_config.json may list more end tokens; the config's own stays the first.
        family: its `reply_fill`, where the tokenizer has it, is the padding token.
        config: official config.json.
        tokenizer: of the folder, or None.

    Raises:
        BadCheckpoint: for end tokens that are no ids.
    """
    own = _ids(config.get("eos_token_id"), folder / "config.json")
    more = _ids(_read(folder / GENERATION).get("eos_token_id"), folder / GENERATION)
    if not own and family.eos_token_id in more:
        own = [family.eos_token_id]
    found = dict(config)
    if set(more) - set(own):
        found["eos_token_id"] = list(dict.fromkeys([*own, *more]))
    fill = tokenizer.backend_tokenizer.token_to_id(family.reply_fill) if tokenizer and family.reply_fill else None
    if fill is not None:
        found["pad_token_id"] = fill
    return found


def _ids(value: Any, path: Path) -> list[int]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in listed):
        raise BadCheckpoint(f"{path}: eos_token_id is {value!r}; allowed: an id, a list of ids, or null")
    return listed


def settle(
    folder: Path, family: Family, config: Mapping[str, Any], tokenizer: Any, overrides: Overrides | None = None
) -> None:
    """Give the tokenizer what a manifest says otherwise, and check that both mean the same mask token.

    Args:
        folder: named in messages.
        family: with overrides applied.
        config: with overrides applied.
        tokenizer: changed in place, so that saved weights carry the change; or None.
        overrides: of the manifest.

    Raises:
        BadCheckpoint: if config and tokenizer have different mask tokens, or a manifest's token is not in the tokenizer.
    """
    if tokenizer is None:
        return
    chosen = overrides or Overrides()
    if chosen.chat_template is not None:
        tokenizer.chat_template, tokenizer.template_source = chosen.chat_template, "chat_template of the model"
    backend = tokenizer.backend_tokenizer
    for token in (*(chosen.stop_tokens or ()), *filter(None, [chosen.reply_end])):
        if backend.token_to_id(token) is None:
            raise BadCheckpoint(
                f"{folder}: the tokenizer has no token {token!r} (stop_tokens, reply_end of the model); "
                f"those of the family: {', '.join(family.stop_tokens)}"
            )
    mask = config.get("mask_token_id")
    mask = family.mask_token_id if mask is None else mask
    if mask is None:
        return
    if chosen.mask_token_id is not None:
        tokenizer.mask_token = backend.id_to_token(mask)
    elif tokenizer.mask_token_id not in (None, mask):
        whose = "config.json" if config.get("mask_token_id") is not None else f"the family {family.name}"
        raise BadCheckpoint(
            f"{folder}: the mask token is {mask} by {whose}, but {tokenizer.mask_token_id} "
            f"({tokenizer.mask_token!r}) by the tokenizer. Give `mask_token_id` of the model in the manifest: the id that "
            "the weights were trained with."
        )
