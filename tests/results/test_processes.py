"""Several processes at one database: snapshots, forks, two writers, kill -9, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from dare_bench.results.store import Store, StoreError
from sqlalchemy import text

WRITER = """
import sys
from dare_bench.results.store import Store
url, name, batches, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
import time
store = Store.open(url)
row = store.begin_evaluation(name, model="m", family="f", benchmark="b", protocol="std-1", decoder={}, hard_key="ck1:0",
    hard_fields={}, numerics={}, data={}, n_expected=4 * batches)
cost = dict(nfe=1, row_forwards=1, positions_fed=1, kv_read=1, tokens_committed=1, tokens_text=1, flops=1.0, wall_s=0.1)
path = dict(token_ids=[1], pieces=["a"], step_map=[0], confidence=None, convention="c", block_starts=[0], kinds=["x"])
print("ready", flush=True)
for batch in range(batches):
    texts = dict(prompt="p", question="q", gold="g", text="t" * 2000, finish_reason="stop")
    store.add_samples(row, [(dict(sample_id=f"{batch}-{i}", **texts, **cost), path) for i in range(4)], 0.5)
    time.sleep(pause)
store.finish_evaluation(row, "done", wall_s=1.0)
print("done", flush=True)
"""


def writer(url: str, name: str, batches: int, pause: float = 0.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, name, str(batches), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_reader_sees_one_snapshot_and_blocks_nobody(store: Store, url: str, make: SimpleNamespace) -> None:
    store.begin_training("a", **make.training())
    question = text("SELECT count(*) FROM training_run")
    with store.read() as session, Store.open(url) as other:
        assert session.execute(question).scalar() == 1
        other.begin_training("b", **make.training())
        assert session.execute(question).scalar() == 1
    with store.read() as session:
        assert session.execute(question).scalar() == 2


def test_a_store_carried_through_a_fork_opens_its_own_connection(store: Store, make: SimpleNamespace) -> None:
    store.begin_training("parent", **make.training())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.begin_training("child", **make.training())
            with store.engine.connect() as connection:
                code = 0 if connection.info["pid"] == os.getpid() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {one.name for one in store.interrupted()} == {"parent", "child"}


def test_two_processes_make_and_fill_one_database(url: str) -> None:
    """Both race to create the schema, then write at once; nothing is lost and nobody sees a locked database."""
    both = [writer(url, name, 15) for name in ("one", "two")]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out.split() == ["ready", "done"]
    with Store.open(url, create=False) as store, store.read() as session:
        rows = session.execute(
            text(
                "SELECT e.status, e.decode_wall_s, count(*) FROM evaluation e "
                "JOIN sample s ON s.evaluation_id = e.id GROUP BY e.id"
            )
        ).all()
        assert [tuple(row) for row in rows] == [("done", 7.5, 60)] * 2


@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.031])
def test_kill_at_any_moment_leaves_whole_batches(url: str, delay_s: float) -> None:
    process = writer(url, "e", 10_000)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Store.open(url, create=False) as store:
        with store.read() as session:
            assert session.execute(text("PRAGMA integrity_check")).scalar() == "ok"
            samples, paths = (
                session.execute(text(f"SELECT count(*) FROM {table}")).scalar() for table in ("sample", "trajectory")
            )
            spent = session.execute(text("SELECT decode_wall_s FROM evaluation")).scalar() or 0.0
        assert samples == paths and samples % 4 == 0 and spent == samples / 4 * 0.5
        assert store.done("evaluation", ["e"]) == set()
        assert [one.kind for one in store.interrupted(mark=True)] == ["evaluation"]


def test_a_full_disk_is_said_and_leaves_the_batch_out(store: Store, make: SimpleNamespace) -> None:
    row = store.begin_evaluation("e", **make.evaluation())
    store.add_samples(row, [(make.sample("q0"), None)], 1.0)
    with store.engine.connect() as connection:  # the pool's one connection keeps the setting
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"cannot write to sqlite:.*disk is full.*run the same command again"):
        store.add_samples(row, [(make.sample("q1"), None), (make.sample("q2", text="t" * 100_000), None)], 1.0)
    assert store.finished_sample_ids(row) == {"q0"}
