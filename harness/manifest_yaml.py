"""YAML with positions: strict, small, and never executing anything.

PyYAML's loader accepts much that a manifest must not hold (aliases, tags, several documents, silently dropped duplicate
keys) and reads ``1e-5`` as text and ``no`` as false (YAML 1.1). Here scalars follow the YAML 1.2 core schema, and each
value remembers where it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from dare_bench.harness.errors import ManifestError, Problem, shorten

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
KeyPath = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def key_text(path: KeyPath) -> str:
    """``("algorithms", 1, "name")`` as ``algorithms[1].name``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass
class Document:
    """A manifest as plain data, and where each value came from.

    Attributes:
        name: file name as the user gave it, for messages.
        text: the file's text.
        data: nested dict, list, str, int, float, bool, None.
        origins: key path -> ``file:line`` or ``--set KEY=VALUE``.
    """

    name: str
    text: str
    data: Any
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """Origin of a value; a missing value has the origin of the nearest enclosing one."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return f"{self.name}:1"

    def problem(self, path: KeyPath, message: str, **details: str | None) -> Problem:
        """A problem at a key path."""
        return Problem(self.where(path), key_text(path), message, **details)


def read_text(path: Path, name: str) -> str:
    """Read a manifest file, refusing what cannot be one.

    Args:
        path: the file.
        name: what the user called it, for messages.

    Raises:
        ManifestError: a folder, a special file, more than 1 MB, NUL bytes, or not UTF-8.
    """

    def refuse(message: str, line: int = 1, given: str | None = None) -> ManifestError:
        allowed = f"a UTF-8 text file in YAML of at most {MAX_BYTES:,} bytes"
        return ManifestError([Problem(f"{name}:{line}", "", message, given=given, allowed=allowed)])

    if path.is_dir():
        raise refuse("is a folder, not a manifest file", given=f"folder with {sum(1 for _ in path.iterdir())} entries")
    if not path.is_file():
        raise refuse("is not a regular file")
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise refuse("is too large for a manifest", given=f"{size:,} bytes")
        raw = path.read_bytes()
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}") from error
    if b"\0" in raw:
        offset = raw.index(b"\0")
        raise refuse("is a binary file (NUL byte)", raw[:offset].count(b"\n") + 1, f"byte 0x00 at offset {offset}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise refuse("is not UTF-8 text", line, f"byte 0x{raw[error.start]:02x} at offset {error.start}") from error


def load(text: str, name: str) -> Document:
    """Parse a manifest's text.

    Args:
        text: YAML.
        name: file name for messages.

    Raises:
        ManifestError: with every problem found and its line.
    """
    node = _compose(text, lambda line: f"{name}:{line}")
    document = Document(name, text, None)
    problems: list[Problem] = []
    if not isinstance(node, yaml.MappingNode):
        given = "nothing" if node is None else "a list" if isinstance(node, yaml.SequenceNode) else shorten(node.value)
        line = 1 if node is None else node.start_mark.line + 1
        raise ManifestError(
            [
                Problem(
                    f"{name}:{line}",
                    "",
                    "a manifest is a mapping",
                    given=given,
                    allowed="key: value lines, `suite: NAME` first",
                )
            ]
        )
    document.data = _build(node, (), document.origins, lambda line: f"{name}:{line}", problems)
    if problems:
        raise ManifestError(problems)
    return document


def apply_set(document: Document, option: str) -> None:
    """Apply one ``--set key=value`` to a document.

    Args:
        document: changed in place.
        option: a dotted path (list items by number), ``=``, a YAML value.

    Raises:
        ManifestError: naming the option.
    """
    where = f"--set {shorten(option)[1:-1]}"
    key, equals, text = option.partition("=")
    parts: list[str | int] = [int(part) if part.isdigit() else part for part in key.strip().split(".")]
    if not equals or not all(part != "" for part in parts):
        raise ManifestError(
            [Problem(where, "", "is not an assignment", given=option, allowed="KEY=VALUE, for example train.steps=20")]
        )
    node = _compose(text, lambda line: where)
    problems: list[Problem] = []
    origins: dict[KeyPath, str] = {}
    value = None if node is None else _build(node, tuple(parts), origins, lambda line: where, problems)
    if problems:
        raise ManifestError(problems)
    target = document.data
    for depth, part in enumerate(parts):
        at = key_text(tuple(parts[: depth + 1]))
        last = depth == len(parts) - 1
        if isinstance(target, list):
            if not isinstance(part, int) or part >= len(target):
                allowed = f"a number from 0 to {len(target) - 1}" if target else "nothing: the list is empty"
                raise ManifestError([Problem(where, at, "no such list item", given=shorten(part), allowed=allowed)])
        elif not isinstance(target, dict):
            given = shorten(target)
            raise ManifestError(
                [Problem(where, at, "the key above holds a plain value", given=given, allowed="a mapping")]
            )
        else:
            part = str(part)
        if last:
            target[part] = value
        elif isinstance(target, list):
            target = target[part]
        else:
            target = target.setdefault(part, {})
    path = tuple(parts)
    for known in [known for known in document.origins if known[: len(path)] == path]:
        del document.origins[known]
    document.origins[path] = where


def _compose(text: str, where: Any) -> yaml.Node | None:
    """The only document's node tree; refuses tabs, anchors, aliases, tags, depth and further documents."""
    for number, line in enumerate(text.splitlines(), 1):
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent and line.strip():
            problem = Problem(where(number), "", "a tab in the indentation", given=shorten(line), allowed="spaces")
            raise ManifestError([problem])
    problems: list[Problem] = []
    depth = documents = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = where(event.start_mark.line + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    allowed = "one document per file (no second `---`)"
                    problems.append(Problem(line, "", "a second YAML document", given="---", allowed=allowed))
            elif isinstance(event, yaml.AliasEvent):
                allowed = "the value written out"
                problems.append(Problem(line, "", "an alias", given=f"*{event.anchor}", allowed=allowed))
            elif isinstance(event, yaml.NodeEvent):
                if event.anchor is not None:
                    problems.append(Problem(line, "", "an anchor", given=f"&{event.anchor}", allowed="no anchors"))
                tag = getattr(event, "tag", None)
                if tag is not None:
                    problems.append(Problem(line, "", "a YAML tag", given=shorten(tag), allowed="no tags"))
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                problems.append(Problem(line, "", "nested too deep", allowed=f"at most {MAX_DEPTH} levels"))
                break
        if problems:
            raise ManifestError(problems)
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ManifestError([_syntax_problem(error, text, where)]) from error


def _syntax_problem(error: yaml.YAMLError, text: str, where: Any) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    lines = text.splitlines()
    number = min(mark.line, max(len(lines) - 1, 0)) if mark else 0
    given = shorten(lines[number].strip()) if lines else None
    context = getattr(error, "context", None)
    message = f"YAML syntax error: {said}" + (f" ({context})" if context else "")
    return Problem(where(number + 1), "", message, given=given, allowed="valid YAML; quote text that holds : # [ ] { }")


def _build(node: yaml.Node, path: KeyPath, origins: dict[KeyPath, str], where: Any, problems: list[Problem]) -> Any:
    origins[path] = where(node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, index), origins, where, problems) for index, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = where(key_node.start_mark.line + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(Problem(line, key_text(path), "a key is not plain text", allowed="a name before the colon"))
            continue
        key = key_node.value
        if key in values:
            first = origins[(*path, key)]
            message = f"the key is given twice (first at {first})"
            problems.append(Problem(line, key_text((*path, key)), message, given=shorten(key), allowed="each key once"))
            continue
        values[key] = _build(value_node, (*path, key), origins, where, problems)
        origins[(*path, key)] = line
    return values


def _scalar(node: yaml.ScalarNode) -> Any:
    text = node.value
    if node.style is not None:  # quoted or block text stays text
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
