from dare_bench.leaderboard.grouping import group_rows
from dare_bench.leaderboard.runs import run_sources
from dare_bench.results.queries import leaderboard_cells


def groups(store):
    return group_rows(run_sources(leaderboard_cells(store)))


def test_rows_with_agreeing_keys_share_a_table(empty_store, tools):
    tools.fill(empty_store, models=("a", "b"), seeds=(0,), labels=("sft",), n=6)
    (group,) = groups(empty_store)
    assert [(r.model, r.label, r.decoder) for r in group.rows] == [
        (m, label, d) for m in "ab" for label in ("base", "sft") for d in ("default", "fast")
    ]
    assert set(group.keys) == {"mini_gsm", "mini_choice"}


def test_a_changed_field_on_one_benchmark_parts_the_rows(empty_store, tools):
    maker = tools.Maker(empty_store, 6)
    for model, length in (("a", 64), ("b", 128)):
        maker.cell(model, "base", "x", "default", 0)
        maker.cell(model, "base", "y", "default", 0, fields=tools.hard_fields("y", length))
    maker.finish()
    assert [[r.model for r in g.rows] for g in groups(empty_store)] == [["a"], ["b"]]


def test_seeds_under_different_keys_become_two_rows(empty_store, tools):
    maker = tools.Maker(empty_store, 6)
    for seed, length in ((0, 64), (1, 128)):
        maker.cell("a", "base", "x", "default", seed, fields=tools.hard_fields("x", length), greedy=False)
    maker.finish()
    found = groups(empty_store)
    assert [[s.cell.seed for s in g.rows[0].runs["x"]] for g in found] == [[0], [1]]


def test_rows_without_a_key_join_the_table_of_their_model(empty_store, tools):
    maker = tools.Maker(empty_store, 6)
    maker.cell("a", "base", "x", "default", 0)
    maker.cell("b", "base", "x", "default", 0, fields=tools.hard_fields("x", 128))
    maker.cell(
        "b", "sft", "x", "default", 0, training=maker.train("b", "sft", 0, status="failed", error="no"), state="not run"
    )
    maker.finish()
    assert [[(r.model, r.label) for r in g.rows] for g in groups(empty_store)] == [
        [("a", "base")],
        [("b", "base"), ("b", "sft")],
    ]
