"""Benchmark rows from the package, a local folder or the hub: verified against what was published, or refused.

A local folder, when given, is the only source: a missing file is an error, never a silent download.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.suites.errors import DataError

#: Folder of the rows that ship with the package, with their checksums in MANIFEST.json.
MINI_DIR = Path(__file__).resolve().parent / "mini"


@dataclass(frozen=True)
class Source:
    """One split of a published data set.

    Attributes:
        hub_id: data set on the hub, for example ``openai/gsm8k``.
        config: its configuration.
        split: its split.
        revision: pinned commit on the hub.
        file_name: name in a local folder.
        columns: exact columns, in order.
        n_rows: exact number of rows.
        content_sha256: `content_sha256` of the rows: the same for every source.
        file_sha256: accepted checksums of the local file, the usual form first.
    """

    hub_id: str
    config: str
    split: str
    revision: str
    file_name: str
    columns: tuple[str, ...]
    n_rows: int
    content_sha256: str
    file_sha256: tuple[str, ...]

    @property
    def data_id(self) -> dict[str, Any]:
        """What identifies the rows in a result; it does not depend on where they were read."""
        return {
            "id": f"{self.hub_id}:{self.config}",
            "revision": self.revision,
            "sha256": self.content_sha256,
            "split": self.split,
            "n": self.n_rows,
        }


def content_sha256(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Returns the sha256 of rows as JSON Lines in UTF-8 with the columns in the given order.

    Args:
        rows: the rows, in order.
        columns: the columns that count.

    Returns:
        64 hex characters; equals the checksum of the file written that way.
    """
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps({column: row[column] for column in columns}, ensure_ascii=False)
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def load(source: Source, data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Reads a published split from a local folder, or from the hub when no folder is given.

    Args:
        source: what is expected.
        data_dir: folder that holds ``source.file_name``; null = the hub.

    Returns:
        All rows, in order, verified.

    Raises:
        DataError: missing, damaged or other rows; the message names the path, what was expected and what to do.
    """
    if data_dir is None:
        return from_hub(source)
    advice = (
        f"Put the unchanged file there (hub data set {source.hub_id}, config {source.config}, split {source.split}, "
        f"revision {source.revision}, as JSON Lines), or leave out --data to read the hub"
    )
    path = Path(data_dir) / source.file_name
    return read_jsonl(path, source.columns, n_rows=source.n_rows, sha256=source.file_sha256, advice=advice)


def packaged(file_name: str, columns: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Reads rows that ship with the package and checks them against MANIFEST.json.

    Args:
        file_name: file in the package's ``suites/mini``.
        columns: columns every row has; the checksum decides, so further ones do no harm.

    Returns:
        (rows, sha256 of the file).

    Raises:
        DataError: the installation is incomplete or was changed.
    """
    advice = "Reinstall dare-bench, or `git checkout` the folder"
    manifest_path = MINI_DIR / "MANIFEST.json"
    try:
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
        entry = manifest[file_name]
        n_rows, sha256 = int(entry["rows"]), str(entry["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{manifest_path}: no usable entry for {file_name} ({_reason(error)}); expected "
            f'{{"{file_name}": {{"sha256": ..., "rows": ...}}}}. {advice}'
        ) from error
    path = MINI_DIR / file_name
    rows = read_jsonl(path, columns, n_rows=n_rows, sha256=(sha256,), allow_extra=True, advice=advice)
    return rows, sha256


def read_jsonl(
    path: str | Path,
    columns: Sequence[str],
    *,
    n_rows: int | None = None,
    sha256: Sequence[str] = (),
    allow_extra: bool = False,
    advice: str = "",
) -> list[dict[str, Any]]:
    """Reads a JSON Lines file and checks columns, number of rows and checksum.

    Args:
        path: the file.
        columns: columns of every row, in any order.
        n_rows: exact number of rows; null = any but zero.
        sha256: accepted checksums of the file's bytes; empty = any.
        allow_extra: whether rows may have further columns.
        advice: next step for the user, appended to every error.

    Returns:
        The rows, in order.

    Raises:
        DataError: anything differs; the message holds the path, the problem, what was expected and what was found.
    """
    path = Path(path)
    expected = f"columns {', '.join(columns)}"
    expected += f"; {n_rows:,} rows" if n_rows is not None else ""
    expected += f"; sha256 {' or '.join(sha256)}" if sha256 else ""

    def refuse(problem: str, found: str | None = None, cause: Exception | None = None) -> DataError:
        has = f" (this file: {found})" if found else ""
        error = DataError(f"{path}: {problem}. Expected: {expected}{has}. {advice}".rstrip(". ") + ".")
        error.__cause__ = cause
        return error

    if path.is_dir():
        raise refuse("a folder, not a file")
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise refuse("no such file", cause=error) from error
    except OSError as error:
        raise refuse(f"cannot be read ({_reason(error)})", cause=error) from error
    digest = hashlib.sha256(raw).hexdigest()
    found = f"sha256 {digest}, {len(raw):,} bytes"
    try:
        rows = _parse(raw, columns, allow_extra)
    except ValueError as error:
        raise refuse(str(error), found, error) from error
    found = f"{len(rows):,} rows, {found}"
    if not rows or (n_rows is not None and len(rows) != n_rows):
        raise refuse(f"{len(rows):,} rows, so it is cut short or another split", found)
    if sha256 and digest not in sha256:
        raise refuse("the checksum is another one, so the file was changed", found)
    return rows


def from_hub(source: Source) -> list[dict[str, Any]]:
    """Reads a split from the hub at its pinned revision and checks the rows' checksum.

    Args:
        source: what is expected.

    Returns:
        All rows, in order.

    Raises:
        DataError: the hub cannot be reached, or its rows are not the expected ones.
    """
    where = f"{source.hub_id} (config {source.config}, split {source.split}, revision {source.revision})"
    advice = f"Give a folder with {source.file_name} (columns {', '.join(source.columns)}) by --data DIR"
    try:
        from datasets import load_dataset  # imported here: it costs a second, and local data need none of it

        table = load_dataset(source.hub_id, source.config, split=source.split, revision=source.revision)
    except Exception as error:  # connection, hub, builder and import errors have no common base class
        raise DataError(f"{where} cannot be read from the hub: {_reason(error)}. {advice}.") from error
    missing = [column for column in source.columns if column not in table.column_names]
    if missing:
        raise DataError(f"{where} has columns {table.column_names}, without {', '.join(missing)}. {advice}.")
    rows = [{column: row[column] for column in source.columns} for row in table]
    digest = content_sha256(rows, source.columns)
    if digest != source.content_sha256:
        raise DataError(
            f"{where} holds {len(rows):,} rows with content sha256 {digest}; expected {source.n_rows:,} rows with "
            f"{source.content_sha256}. {advice}."
        )
    return rows


def first_rows(rows: Sequence[Any], limit: int | None) -> list[Any]:
    """Returns the first `limit` rows (all for null).

    Raises:
        DataError: the limit is not a positive whole number.
    """
    if limit is None:
        return list(rows)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise DataError(f"limit is {limit!r}; allowed: a whole number from 1, or null for all rows")
    return list(rows[:limit])


def _parse(raw: bytes, columns: Sequence[str], allow_extra: bool) -> list[dict[str, Any]]:
    """Parses JSON Lines; raises ValueError with the line number and the problem."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"line {line}: not UTF-8 text") from error
    rows = []
    # Not splitlines(): texts may hold U+2028 and other separators that JSON leaves unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: not JSON ({_reason(error)})") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: a JSON {type(row).__name__}, not an object")
        if not (set(row) >= set(columns) if allow_extra else set(row) == set(columns)):
            given = ", ".join(sorted(str(key)[:40] for key in row)[:12]) or "none"
            raise ValueError(f"line {number}: has the columns {given}")
        rows.append(row)
    return rows


def _reason(error: BaseException) -> str:
    """Returns the class and first line of an error, short."""
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
