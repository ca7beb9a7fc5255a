from dare_bench.leaderboard.provenance_panels import flat, panels
from dare_bench.results.queries import leaderboard_cells


def test_flat_names_every_setting():
    assert flat({"b": {"y": [1, 2], "x": None}, "a": 1.5, "empty": {}}) == [
        ("a", "1.5"),
        ("b.x", "null"),
        ("b.y", "[1, 2]"),
        ("empty", "{}"),
    ]
    assert flat({"lr": 1}, "config") == [("config.lr", "1")]
    ((_, long),) = flat({"x": "y" * 5000})
    assert long.endswith("… (4000 more characters)")


def test_a_trained_cell_has_everything_to_run_it_again(store):
    cell = next(c for c in leaderboard_cells(store) if c.name == "tiny-sdar/sft/mini_gsm/default/0")
    found = panels(cell, "dare-bench run mini.yaml")
    assert list(found) == [
        "This cell", "Keys", "Decoder", "Data and protocol", "Numerics", "Times", "Scorer", "Training", "Environment",
    ]  # fmt: skip
    assert dict(found["This cell"])["command"] == "dare-bench run mini.yaml"
    assert dict(found["Keys"])["hard key"] == cell.evaluation.hard_key
    assert dict(found["Training"])["checkpoint sha256"] == cell.training.checkpoint["sha256"]
    assert dict(found["Training"])["config.lr"] == "0.0001"
    assert dict(found["Environment"])["source.dirty"] == "true"


def test_an_untouched_cell_has_its_names(store):
    cell = next(c for c in leaderboard_cells(store) if c.name == "tiny-llada/vrpo/mini_gsm/default/0")
    assert list(panels(cell, "x")) == ["This cell", "Training"]
