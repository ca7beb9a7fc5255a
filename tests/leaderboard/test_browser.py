"""The pages in a real browser, from file:// without network. Skipped where there is none."""

import re
import shutil
import subprocess

import pytest
from dare_bench.leaderboard.site import build

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        BROWSER is None, reason="no chromium on the PATH: apt-get install chromium to run the browser tests"
    ),
]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(store, tmp_path_factory):
    return build(store, tmp_path_factory.mktemp("browser") / "site").parent


def visit(page, tmp_path, script=None):
    """Document after scripts ran, and console messages. `script` is added as a file of the site, so the policy holds."""
    shown = page
    if script is not None:
        (page.parent / "drive.js").write_text(f"window.addEventListener('load', function () {{ {script} }});")
        shown = page.with_name("driven.html")
        shown.write_text(page.read_text("utf-8").replace("</head>", '<script src="drive.js"></script></head>'), "utf-8")
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={tmp_path}", "--dump-dom", shown.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_pages_load_without_a_complaint(site, tmp_path):
    for page in (site / "index.html", site / "about.html", next((site / "cell").iterdir())):
        text, console = visit(page, tmp_path)
        assert console == []
        assert 'class="js"' in text
        assert "Theme: system" in text


def test_sorting_filter_and_column_sets(site, tmp_path):
    text, console = visit(
        site / "index.html",
        tmp_path,
        """
        var t = document.querySelector('table.lead');
        function order() { return Array.from(t.tBodies[1].rows).slice(1).filter(function (r) { return !r.hidden; })
          .map(function (r) { return r.cells[0].firstChild.textContent + ':' + r.cells[1].textContent; }).join(' '); }
        var sort = t.tHead.querySelectorAll('button.sort');
        sort[2].click(); var down = order();
        sort[2].click(); var up = order();
        var search = document.querySelector('input[type=search]');
        search.value = 'sft fast'; search.dispatchEvent(new Event('input')); var found = order();
        var count = document.querySelector('.count').textContent;
        search.value = 'zzz'; search.dispatchEvent(new Event('input'));
        document.querySelector('[data-cols=eff]').click();
        var acc = getComputedStyle(t.tBodies[0].rows[1].querySelector('td.a')).display;
        document.title = JSON.stringify({down: down, up: up, found: found, count: count, acc: acc,
          none: document.querySelector('.count').textContent});
        """,
    )
    assert console == []
    result = re.search(r"<title>(\{.*?\})</title>", text).group(1)
    assert '"down":"sft:default sft:fast' in result
    assert '"up":"base:fast d1:fast' in result
    assert '"found":"sft:fast"' in result
    assert '"count":"1 of 10 rows"' in result
    assert '"acc":"none"' in result
    assert "no row holds" in result


def test_trajectory_viewer(site, tmp_path):
    page = next(
        p for p in sorted((site / "cell").iterdir()) if "tiny-sdar/sft/mini_gsm/default/0 " in p.read_text("utf-8")
    )
    text, console = visit(
        page,
        tmp_path,
        """
        var v = document.getElementById('viewer'), s = v.querySelector('input[type=range]');
        var trace = v.querySelector('.trace');
        var final = trace.textContent, max = Number(s.max);
        function key(k) { trace.dispatchEvent(new KeyboardEvent('keydown', {key: k, bubbles: true, cancelable: true})); }
        key('Home'); var masked = trace.textContent.replace(/[\\u2591\\s]/g, '').length;
        var zero = v.querySelectorAll('rect.later').length;
        key('ArrowRight'); key('ArrowRight'); var two = v.querySelector('output').textContent;
        var fresh = v.querySelectorAll('span.fresh[data-s="1"]').length;
        key('End'); var back = trace.textContent === final;
        v.querySelector('[data-do=back]').click(); var before = s.value;
        v.querySelector('select').value = '40'; key('Home'); key(' ');
        setTimeout(function () {
          document.title = JSON.stringify({masked: masked, zero: zero === v.querySelectorAll('rect.at').length, two: two,
            fresh: fresh > 0, back: back, before: Number(before) === max - 1, played: Number(s.value) === max,
            label: v.querySelector('[data-do=play]').textContent});
        }, 3000);
        """,
    )
    assert console == []
    result = re.search(r"<title>(\{.*?\})</title>", text).group(1)
    assert '"masked":0,"zero":true,"two":"2/' in result
    assert '"fresh":true,"back":true,"before":true,"played":true,"label":"▶ Play"' in result


def test_samples_can_be_filtered(site, tmp_path):
    page = next(
        p for p in sorted((site / "cell").iterdir()) if "tiny-sdar/sft/mini_gsm/default/1 " in p.read_text("utf-8")
    )
    text, console = visit(
        page,
        tmp_path,
        """
        document.querySelector('[data-show=correct]').click();
        var shown = Array.from(document.querySelectorAll('details.sample')).filter(function (d) { return !d.hidden; });
        var words = Array.from(new Set(shown.map(function (d) { return d.dataset.verdict; })));
        document.title = 'only:' + words.join(',') + ':' + (shown.length > 5);
        """,
    )
    assert console == []
    assert "<title>only:correct:true</title>" in text
