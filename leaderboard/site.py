"""Writing the static site: rendered beside, then renamed, the same bytes for the same database."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from dare_bench.leaderboard import charts
from dare_bench.leaderboard.cellpage import cell_page
from dare_bench.leaderboard.escaping import finalize, slug
from dare_bench.leaderboard.formats import FILTERS
from dare_bench.leaderboard.models import BenchmarkColumn, Entry
from dare_bench.leaderboard.views import board
from dare_bench.results import queries
from dare_bench.results.transactions import Transactions
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

#: A folder is replaced only when it is empty or holds this file: a wrong path must not cost anyone a folder.
MARKER = ".dare-bench-site"


class SiteError(Exception):
    """The site cannot be written where it was asked to be; the message says why and what to do."""


def build(store: Transactions, out_dir: Path | str, *, suite: str | None = None) -> Path:
    """Write the leaderboard site.

    Everything is rendered into a temporary folder beside `out_dir` and renamed at the end, so that a reader sees the
    old site or the new one. Equal databases give equal bytes.

    Args:
        store: open store; read only.
        out_dir: folder of the site; an earlier site there is replaced.
        suite: only this suite; None = all.

    Returns:
        Path of ``index.html``.

    Raises:
        SiteError: `out_dir` is a file, or a folder that holds something else than a site.
        StoreError: the named suite was never run in this database.
    """
    target = Path(out_dir).absolute()
    _check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # Temporary folders are private; a published one is to be read by a web server.
        work.chmod(0o755)
        _write(store, work, suite)
        _swap(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target / "index.html"


def templates() -> Environment:
    """Jinja environment of the site: escaping on, unknown names are errors, hidden characters made visible."""
    folder = Path(str(resources.files("dare_bench.leaderboard") / "templates"))
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=finalize,
    )
    environment.filters |= {**FILTERS, "slug": slug}
    environment.globals["interval_bar"] = interval_bar
    return environment


def interval_bar(entry: Entry, column: BenchmarkColumn) -> Markup:
    """Small picture of an interval on the axis its column shares.

    Args:
        entry: with an interval.
        column: with the axis.

    Returns:
        An ``<svg>`` without a name: the numbers stand beside it.
    """
    if entry.interval is None or entry.accuracy is None:
        return Markup("")
    span = max(column.hi - column.lo, 1e-9)
    lo, hi, at = (round(100 * (v - column.lo) / span) for v in (entry.interval.lo, entry.interval.hi, entry.accuracy))
    return Markup(f'<svg viewBox="0 0 100 8"><path d="M{lo} 4h{max(1, hi - lo)}"/><path d="M{at} 4h0"/></svg>')


def _write(store: Transactions, folder: Path, suite: str | None) -> None:
    environment = templates()
    leaderboard = board(store, suite)
    shared: dict[str, Any] = {"index": leaderboard.index}
    _render(environment, "index.html.j2", folder / "index.html", root="", **shared)
    _render(environment, "about.html.j2", folder / "about.html", root="", **shared)
    (folder / "cell").mkdir()
    commands = {header.name: header.command for header in leaderboard.index.suites}
    curves: dict[str, Markup | None] = {}
    for source in leaderboard.sources:
        cell = source.cell
        if cell.training is not None and cell.training.fingerprint not in curves:
            points = queries.training_points(store, cell.training.fingerprint)
            curves[cell.training.fingerprint] = charts.training_curves(points, "curves")
        page = cell_page(
            store,
            source,
            leaderboard.placed[source.run.key],
            command=commands[cell.suite],
            curves=curves.get(cell.training.fingerprint) if cell.training is not None else None,
        )
        _render(
            environment, "cell.html.j2", folder / "cell" / f"{source.run.key}.html", root="../", page=page, **shared
        )
    static = folder / "static"
    static.mkdir()
    for item in sorted(Path(str(resources.files("dare_bench.leaderboard") / "static")).iterdir()):
        if item.suffix in (".css", ".js"):
            (static / item.name).write_bytes(item.read_bytes())
    (folder / MARKER).write_text("A site made by `dare-bench publish`; the folder is replaced as a whole.\n")


def _render(environment: Environment, template: str, path: Path, **values: Any) -> None:
    path.write_text(environment.get_template(template).render(**values), encoding="utf-8", newline="\n")


def _check_target(target: Path) -> None:
    if target.is_dir():
        if any(target.iterdir()) and not (target / MARKER).exists():
            raise SiteError(
                f"{target} holds files that are not a dare-bench site and would be replaced; "
                "choose an empty or new folder, or empty this one first"
            )
    elif target.exists():
        raise SiteError(f"{target} is a file; give the path of a folder for the site")


def _swap(work: Path, target: Path) -> None:
    if not target.exists():
        os.rename(work, target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    os.rename(target, old / "site")
    try:
        os.rename(work, target)
    except OSError:
        os.rename(old / "site", target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
