"""Text must be readable in both themes: contrast of every pair in use, computed from the style sheet's variables."""

import re
from importlib import resources

import pytest

CSS = (resources.files("dare_bench.leaderboard") / "static" / "style.css").read_text("utf-8")
PAIRS = [
    *[(text, ground) for text in ("ink", "muted") for ground in ("bg", "panel", "soft")],
    ("link", "bg"), ("link", "panel"), ("link", "soft"), ("on-accent", "accent"),
    ("good", "panel"), ("good", "bg"), ("bad", "panel"), ("bad", "bg"), ("warn", "panel"), ("warn", "bg"), ("warn", "soft"),
    ("good", "good-soft"), ("bad", "bad-soft"), ("warn", "warn-soft"), ("ink", "warn-soft"), ("bad", "soft"),
]  # fmt: skip


def variables(selector: str) -> dict[str, str]:
    block = re.search(re.escape(selector) + r"\s*\{([^}]*)\}", CSS)
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", block.group(1)))


LIGHT = variables(":root")
DARK = LIGHT | variables(':root[data-theme="dark"]')


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_formula_on_known_values():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("theme", "colours"), [("light", LIGHT), ("dark", DARK)])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_pairs(theme, colours, text, ground):
    assert contrast(colours[text], colours[ground]) >= 4.5, f"{theme}: --{text} on --{ground}"


@pytest.mark.parametrize(("theme", "colours"), [("light", LIGHT), ("dark", DARK)])
@pytest.mark.parametrize("name", ["s1", "s2", "s3", "s4", "s5", "s6", "s7"])
def test_marks_of_charts_stand_out(theme, colours, name):
    assert contrast(colours[name], colours["panel"]) >= 2.7, f"{theme}: --{name}"


def test_the_system_theme_equals_the_switch():
    assert variables(':root:not([data-theme="light"])') == variables(':root[data-theme="dark"]')
