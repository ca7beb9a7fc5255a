from dare_bench.leaderboard.findings import headline, run_verdict
from dare_bench.leaderboard.models import BenchmarkColumn, Comparison, Entry, LeaderRow, Run, Table


def table(*verdicts, basis="algorithm", n_done=3):
    rows = tuple(
        LeaderRow(
            "m", f"a{i}", "sft", "default", False,
            {"gsm": Entry("gsm", (), accuracy=0.5, n_done=n_done, delta=d, p=0.01, p_holm=0.01, basis=basis, verdict=v)},
            None, (),
        )
        for i, (v, d) in enumerate(verdicts)
    )  # fmt: skip
    return Table("t1", "s", "gsm", (BenchmarkColumn("gsm", "std-1", 60, "ck1:x", 1, 0, 1, ""),), (("m", rows),))


def test_headline_counts_and_names_the_largest():
    text = headline([table(("better", 0.1), ("better", 0.2), ("worse", -0.3), ("undecided", 0.4))])
    assert text == (
        "Of 4 comparisons with a base model on m and gsm, 2 are established as better and 1 as worse; "
        "the largest: a1 on m, gsm, +20.0 pp."
    )


def test_headline_limits_its_claim_to_checkpoints():
    text = headline([table(("better", 0.1), basis="checkpoints", n_done=1)])
    assert text.startswith("Of 1 comparison with a base model on m and gsm, 1 is established as better;")
    assert text.endswith("1 seed: these checkpoints only.")


def test_headline_without_a_result():
    assert headline([table(("undecided", 0.1))]) == (
        "No training is established as better or worse than its base model (1 comparison on m and gsm)."
    )
    assert headline([]).startswith("No trained model can be compared")
    assert "1 is established as worse;" in headline([table(("worse", -0.1))])


def test_run_verdict():
    done = Run("k", "n", (0,), "done", n=200, accuracy=0.725, value_accuracy=0.75)
    entry = Entry("gsm", (done,))
    assert run_verdict(done, entry) == "72.5 % of 200 questions right in the required form, 75.0 % right in any form."
    compared = Run("k", "n", (0,), "done", n=200, accuracy=0.5, comparison=Comparison(-0.03, -0.1, 0.04, 6, 12, 0.2379))
    assert "−3.0 pp against the base model" in run_verdict(compared, entry)
    assert "6 gained, 12 lost; exact McNemar p 0.24, this one test): worse is not established." in run_verdict(
        compared, entry
    )
    failed = Run("k", "n", (0,), "failed", reason="evaluation failed: out of memory")
    assert run_verdict(failed, entry) == "No accuracy: this cell is failed (evaluation failed: out of memory)."
