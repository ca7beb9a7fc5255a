"""What a replay of a recorded run gave. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HEAD = ["case", "replayed", "ids", "step map", "NFE", "result", "first difference"]


@dataclass(frozen=True)
class Replay:
    """One replay of a case.

    Attributes:
        case: its name.
        replayed: ``rule``, or the quirks it was replayed with.
        ids, steps, nfe: equal or not; null = not compared.
        nfe_shown: network calls here, and the recorded ones where they differ.
        difference: the first one found, or null.
        remark: what was compared where it is not all of the record.
    """

    case: str
    replayed: str
    ids: bool | None = None
    steps: bool | None = None
    nfe: bool | None = None
    nfe_shown: str = "-"
    difference: str | None = None
    remark: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return self.difference is None and False not in (self.ids, self.steps, self.nfe)


def table_rows(replays: Iterable[Replay]) -> list[list[str]]:
    """Cells under `HEAD`.

    Args:
        replays: in order.
    """
    said = {True: "equal", False: "DIFFER", None: "-"}
    rows = []
    for item in replays:
        nfe = f"{item.nfe_shown} {said[item.nfe]}" if item.nfe is not None else item.nfe_shown
        result = "pass" if item.passed else "FAIL"
        note = item.difference or (f"({item.remark})" if item.remark else "")
        rows.append([item.case, item.replayed, said[item.ids], said[item.steps], nfe, result, note])
    return rows


def summary(replays: Iterable[Replay]) -> str:
    """The last line: a case fails if one of its replays does.

    Args:
        replays: all of them.
    """
    items = list(replays)
    cases = {item.case for item in items}
    failed = {item.case for item in items if not item.passed}
    return f"{len(cases)} cases, {len(failed)} failed, 0 skipped"
