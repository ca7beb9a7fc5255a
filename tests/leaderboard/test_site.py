"""The hard constraints of the site, checked on every page of a built one."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dare_bench.leaderboard.site import MARKER, SiteError, build

VOID = {"meta", "link", "input", "br", "img", "hr"}
HOSTILE = (
    "<script>alert(1)</script></script><!--<img src=x onerror=alert(2)>'\"&lt; \u202egnirts\u202c \u2028 \x00\x1b[31m "
    "${1} {{ 7*7 }}\n"
)


class Page(HTMLParser):
    """Collects what the checks need and fails on unbalanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.links: list[tuple[str, str, str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.data: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src"):
                self.links.append((tag, name, value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"closed without opening: {tag}"
        assert self.open[-1] == tag, f"{tag} closes {self.open[-1]}"
        self.open.pop()

    def handle_data(self, data):
        self.data.append(data)


@pytest.fixture(scope="module")
def site(store, tmp_path_factory):
    return build(store, tmp_path_factory.mktemp("site") / "out").parent


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_pages_of_the_grid(site, pages):
    assert {"index.html", "about.html"} < set(pages)
    assert sum(name.startswith("cell/") for name in pages) == 37
    assert (site / MARKER).is_file()


def test_ids_are_unique_and_every_link_leads_somewhere_inside(site, pages):
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        for tag, _, value in page.links:
            parts = urlsplit(value)
            if value == "data:,":
                continue
            assert not parts.scheme and not parts.netloc and not parts.path.startswith("/"), (name, value)
            target = (site / name).parent / parts.path if parts.path else site / name
            assert target.is_file(), (name, tag, value)
            if parts.fragment and tag == "a":
                assert parts.fragment in pages[target.resolve().relative_to(site.resolve()).as_posix()].ids, value


def test_aria_references_exist(pages):
    for name, page in pages.items():
        for _, attribute, value in page.attributes:
            if attribute in ("aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(page.ids), (name, value)


def test_policy_forbids_everything_but_own_files_and_pages_obey_it(pages):
    for page in pages.values():
        policy = next(
            a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:")
        assert not [a for a in page.attributes if a[1] == "style" or a[1].startswith("on")]
        assert not [t for t, a in page.tags if t == "style" or (t == "script" and not a.get("src"))]
        assert not [a for t, a in page.tags if t == "script" and a.get("type") == "module"]


def test_scripts_work_from_files(site):
    for script in (site / "static").glob("*.js"):
        text = script.read_text()
        assert not re.search(
            r"\bfetch\(|XMLHttpRequest|import\s*\(|https?://|eval\(|innerHTML|document\.write", text
        ), script


def test_tables_are_real(pages):
    page = pages["index.html"]
    tags = [t for t, _ in page.tags]
    assert tags.count("caption") == tags.count("table") == 2
    assert all(a.get("scope") for t, a in page.tags if t == "th")
    assert all(a.get("lang") == "en" for t, a in page.tags if t == "html")


def test_index_says_words_not_zeros(site):
    text = (site / "index.html").read_text("utf-8")
    for words in (
        "failed",
        "incomplete",
        "running",
        "seed variance unknown",
        "one deterministic run, shared by 3 seeds",
    ):
        assert words in text
    assert "training failed: loss is not finite at step 7" in text
    assert "decode_budget.max_new_tokens is 128 here, 64 above" in text


def test_cell_page_holds_provenance_samples_and_trajectory(site, pages):
    name = next(
        n for n in pages if n.startswith("cell/") and "tiny-sdar/sft/mini_gsm/default/0 " in (site / n).read_text()
    )
    text = (site / name).read_text("utf-8")
    for words in (
        "dare-bench run mini.yaml --jobs 1", "checkpoint sha256", "config.peft.r", "source.commit", "packages.torch",
        "hard key", "ck1:", "data", "Prompt as sent", "Order map", "▶ Play", "Kendall", "exact McNemar p",
    ):  # fmt: skip
        assert words in text, words
    tokens = [a for t, a in pages[name].tags if t == "span" and "data-s" in a]
    assert len(tokens) > 10
    assert len([a for t, a in pages[name].tags if a.get("class") == "at"]) == len(tokens)
    assert text.count('class="sample"') == 60


def test_failed_cell_page_shows_the_error(site, pages):
    found = [n for n in pages if "loss is not finite at step 7" in (site / n).read_text() and n.startswith("cell/")]
    assert len(found) == 2
    assert "No accuracy: this cell is failed" in (site / found[0]).read_text()


def test_building_twice_gives_the_same_bytes(store, site, tmp_path):
    again = build(store, tmp_path / "again").parent
    names = sorted(p.relative_to(site).as_posix() for p in site.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(again).as_posix() for p in again.rglob("*") if p.is_file())
    for name in names:
        assert (site / name).read_bytes() == (again / name).read_bytes(), name


def test_size_budgets(site):
    assert sum(p.stat().st_size for p in [site / "index.html", *(site / "static").iterdir()]) < 300_000
    assert max(p.stat().st_size for p in site.rglob("*.html")) < 1_000_000


@pytest.fixture
def hostile(empty_store, tools, tmp_path):
    import random

    rng = random.Random(0)
    maker = tools.Maker(empty_store, 60)
    bad = HOSTILE
    rows = [
        tools.sample(
            "b", i, rng, question=bad, gold=bad, text=bad + "<&" * 50_000, prompt=bad * 1000, finish_reason="stop"
        )
        for i in range(60)
    ]
    trace = tools.trajectory(rng, 20) | {"pieces": [bad] * 20, "kinds": ['"><script>alert(3)</script>'] * 10}
    evil = "<script>alert(4)</script>\u202e"
    maker.cell(evil, "base", "b", "default", 0, samples=rows, trace=trace, rate=0.5)
    maker.cell(evil, "base", "b2", "default", 0, state="failed", error=bad)
    maker.finish("<script>alert(5)</script>")
    return build(empty_store, tmp_path / "hostile").parent


def test_hostile_text_stays_text(hostile):
    for path in hostile.rglob("*.html"):
        text = path.read_text("utf-8")
        page = Page(text)
        assert [a.get("src", "").endswith(".js") for t, a in page.tags if t == "script"].count(False) == 0
        assert "img" not in [t for t, _ in page.tags]
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\u2028\u2029]", text), path
        assert path.stat().st_size < 1_000_000, path
    cell = next(p for p in (hostile / "cell").iterdir() if "Answers" in p.read_text())
    assert "⟦U+202E⟧gnirts" in cell.read_text("utf-8")
    assert "more characters" in cell.read_text("utf-8")
    assert "␛[31m" in "".join(Page(cell.read_text("utf-8")).data)


def test_an_existing_folder_is_replaced_only_if_it_is_a_site(store, tmp_path):
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(SiteError, match="not a dare-bench site"):
        build(store, other)
    assert (other / "thesis.txt").read_text() == "years of work"
    with pytest.raises(SiteError, match="is a file"):
        build(store, other / "thesis.txt")


def test_a_site_is_replaced_whole_and_nothing_is_left_beside_it(empty_store, tmp_path):
    first = build(empty_store, tmp_path / "out")
    (first.parent / "stale.html").write_text("old")
    assert build(empty_store, tmp_path / "out") == first
    assert not (first.parent / "stale.html").exists()
    assert "holds no suite yet" in first.read_text()
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("empty.db")] == ["out"]


def test_a_failed_build_leaves_the_old_site(store, empty_store, tmp_path, monkeypatch):
    first = build(empty_store, tmp_path / "out")
    before = first.read_bytes()
    monkeypatch.setattr("dare_bench.leaderboard.site.cell_page", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build(store, first.parent)
    assert first.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("empty.db")] == ["out"]


def test_the_room_imports_without_torch():
    names = [p.stem for p in Path(__file__).parents[2].joinpath("leaderboard").glob("*.py") if p.stem != "__init__"]
    code = f"import sys, importlib\nfor n in {names!r}: importlib.import_module('dare_bench.leaderboard.' + n)\n"
    code += "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules, 'heavy import'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
