import numpy as np
import pytest
from dare_bench.leaderboard.source import answers, outcomes
from dare_bench.leaderboard.stats.accuracy import wilson
from dare_bench.leaderboard.stats.paired import mcnemar_exact
from dare_bench.leaderboard.stats.seeds import crossed, crossed_difference
from dare_bench.leaderboard.views import board
from dare_bench.results.opening import StoreError


@pytest.fixture(scope="module")
def made(store):
    return board(store)


def find(made, model, label, decoder="default", table=0):
    return next(r for r in made.index.tables[table].rows if (r.model, r.label, r.decoder) == (model, label, decoder))


def scores(store, made, model, label, benchmark, decoder="default"):
    """[seeds, questions], recomputed from single answers."""
    cells = {
        s.cell.scoring_fingerprint: s.cell
        for s in made.sources
        if (s.cell.model, s.cell.label, s.cell.benchmark, s.cell.decoder) == (model, label, benchmark, decoder)
    }
    return np.array([[a.value for a in answers(store, c.evaluation_fingerprint, fp)] for fp, c in cells.items()])


def test_three_seeds_use_the_crossed_interval_and_speak_of_the_algorithm(store, made):
    entry = find(made, "tiny-sdar", "sft").entries["mini_gsm"]
    table, base = (scores(store, made, "tiny-sdar", label, "mini_gsm") for label in ("sft", "base"))
    assert table.shape == (3, 60)
    assert base.shape == (1, 60)
    assert entry.accuracy == pytest.approx(table.mean())
    assert entry.interval == crossed(table).interval()
    difference = crossed_difference(table, base)
    assert (entry.delta, entry.p, entry.basis) == (
        pytest.approx(difference.delta),
        pytest.approx(difference.p_value),
        "algorithm",
    )
    assert (entry.delta_lo, entry.delta_hi) == pytest.approx(difference.interval())


def test_every_seed_is_compared_with_the_shared_base_run(store, made):
    entry = find(made, "tiny-sdar", "sft").entries["mini_gsm"]
    table, base = (scores(store, made, "tiny-sdar", label, "mini_gsm") for label in ("sft", "base"))
    for run, row in zip(entry.runs, table, strict=True):
        gained, lost = int(np.sum(row > base[0])), int(np.sum(row < base[0]))
        assert (run.comparison.gained, run.comparison.lost) == (gained, lost)
        assert run.comparison.p == mcnemar_exact(gained, lost)


def test_greedy_base_is_one_run_for_all_seeds(made):
    row = find(made, "tiny-sdar", "base")
    (run,) = row.entries["mini_gsm"].runs
    assert run.seeds == (0, 1, 2)
    assert run.is_fixed
    assert row.flags == ("one deterministic run, shared by 3 seeds",)
    assert row.entries["mini_gsm"].interval == wilson(run.accuracy, 60)
    assert row.entries["mini_gsm"].covers == "questions only"


def test_one_seed_is_flagged_and_claims_checkpoints_only(made):
    row = find(made, "tiny-llada", "sft")
    assert "seed variance unknown" in row.flags
    assert "1 run failed" in row.flags
    entry = row.entries["mini_gsm"]
    assert (entry.basis, entry.covers) == ("checkpoints", "questions only")
    assert entry.p == entry.runs[0].comparison.p


@pytest.mark.parametrize(
    ("label", "benchmark", "state", "reason"),
    [
        ("sft", "mini_choice", "failed", "evaluation failed: OutOfMemory"),
        ("vrpo", "mini_gsm", "failed", "training failed: loss is not finite at step 7"),
        ("spg", "mini_gsm", "running", "20 of 60 answers are stored"),
        ("spg", "mini_choice", "incomplete", "1 answer ended in an error of the harness"),
    ],
)
def test_unhappy_cells_are_words_and_have_no_number(made, label, benchmark, state, reason):
    entry = find(made, "tiny-llada", label).entries[benchmark]
    assert entry.state == state
    assert entry.runs[0].reason.startswith(reason)
    assert (entry.accuracy, entry.interval, entry.delta, entry.cost) == (None, None, None, None)


def test_other_key_means_another_table_that_says_why(made):
    first, second = made.index.tables
    assert [r.decoder for r in second.rows] == ["long"]
    assert second.differences == ("mini_gsm: decode_budget.max_new_tokens is 128 here, 64 above",)
    assert first.differences == ()


def test_holm_family_is_the_column(made):
    table = made.index.tables[0]
    column = next(c for c in table.benchmarks if c.name == "mini_gsm")
    tested = [r.entries["mini_gsm"] for r in table.rows if r.entries["mini_gsm"].p is not None]
    assert column.family_size == len(tested) == 5
    smallest = min(tested, key=lambda e: e.p)
    assert smallest.p_holm == pytest.approx(5 * smallest.p)
    assert all(e.verdict == ("undecided" if e.p_holm > 0.05 else "better" if e.delta > 0 else "worse") for e in tested)


def test_costs_are_ratios_of_totals(store, made):
    entry = find(made, "tiny-sdar", "sft").entries["mini_gsm"]
    light = [
        a
        for s in made.sources
        if (s.cell.label, s.cell.model, s.cell.benchmark, s.cell.decoder) == ("sft", "tiny-sdar", "mini_gsm", "default")
        for a in answers(store, s.cell.evaluation_fingerprint, s.cell.scoring_fingerprint)
    ]
    nfe, tokens = sum(a.nfe for a in light), sum(a.tokens for a in light)
    assert entry.cost.nfe_mean == pytest.approx(nfe / 180)
    assert entry.cost.tpf == pytest.approx(tokens / nfe)
    assert entry.cost.tps == pytest.approx(tokens / 12.0)
    assert entry.cost.device == "cpu · float32 · batch 64"


def test_training_cost(made):
    cost = find(made, "tiny-sdar", "sft").training
    assert (cost.tokens, cost.rollout_tokens, cost.device_hours, cost.runs) == (1_250_000, 40_000, 0.5, 3)
    assert find(made, "tiny-sdar", "base").training is None
    assert find(made, "tiny-llada", "vrpo").training is None


def test_counts_and_header(made):
    assert made.index.counts["models"] == 2
    assert made.index.counts["failed"] == 3
    assert made.index.commit == "0123456789+changes"


def test_unknown_suite_is_refused_with_the_known_ones(store):
    with pytest.raises(StoreError, match="mini"):
        board(store, "nosuch")


def test_two_seeds_that_disagree_establish_nothing(empty_store, tools):
    maker = tools.Maker(empty_store, 60)
    maker.cell("m", "base", "b", "default", 0, rate=0.5)
    maker.cell("m", "base", "b", "default", 1, rate=0.5)
    for seed, rate in ((0, 0.9), (1, 0.1)):
        maker.cell("m", "sft", "b", "default", seed, rate=rate, training=maker.train("m", "sft", seed))
    maker.finish()
    entry = find(board(empty_store), "m", "sft").entries["b"]
    assert [r.comparison.p < 0.05 for r in entry.runs] == [True, True]
    assert (entry.p, entry.verdict, entry.basis) == (1.0, "undecided", "checkpoints")


def test_empty_database(empty_store):
    index = board(empty_store).index
    assert index.tables == ()
    assert index.newest == "–"


def test_outcomes_of_unknown_scorings_are_absent(store):
    assert outcomes(store, ["0" * 64]) == {}
