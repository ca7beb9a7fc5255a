"""Registries: found by scanning, near misses named, duplicates refused; the whole room loads without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from dare_bench.suites.benchmarks import registry as benchmarks
from dare_bench.suites.errors import SuiteError, UnknownNameError
from dare_bench.suites.registry import Registry
from dare_bench.suites.scoring import registry as scoring


def test_benchmarks_and_scorers_are_found():
    assert {"gsm8k", "mini_choice", "mini_code", "mini_gsm"} <= set(benchmarks.names())
    assert {"math/number", "mc/letter", "mini_letter", "mini_number"} <= set(scoring.names())
    assert benchmarks.names() == sorted(benchmarks.names())


def test_every_benchmark_is_complete():
    for name, benchmark in benchmarks.benchmarks().items():
        assert benchmark.name == name and benchmark.title and benchmark.description
        assert benchmark.version >= 1 and benchmark.splits
        assert "test" in benchmark.splits or not benchmark.is_scorable, "only training text has no test split"
        for key, protocol in benchmark.protocols.items():
            assert protocol.id == key and protocol.gen_length > 0 and protocol.template.count("{question}") == 1
            assert protocol.scorer is None or scoring.get(protocol.scorer).name == protocol.scorer
        assert benchmark.protocol().id == benchmark.default_protocol


def test_unknown_names_carry_the_nearest_and_all_allowed():
    with pytest.raises(
        UnknownNameError, match=r"unknown benchmark 'gsm8'; did you mean 'gsm8k'\? \(allowed: .*mini_gsm"
    ):
        benchmarks.get("gsm8")
    with pytest.raises(UnknownNameError, match=r"did you mean 'math/number'\?"):
        scoring.get("math/nomber")
    with pytest.raises(UnknownNameError, match=r"unknown protocol of gsm8k 'std1'; did you mean 'std-1'\?"):
        benchmarks.get("gsm8k").protocol("std1")
    with pytest.raises(UnknownNameError, match=r"unknown split of gsm8k 'validation' .*allowed: test, train"):
        benchmarks.get("gsm8k").rows("validation")


def test_duplicates_and_nameless_entries_are_errors(tmp_path):
    registry: Registry[int] = Registry("thing", "nowhere", tmp_path)
    registry.add("one", 1, "module_a")
    with pytest.raises(SuiteError, match="thing 'one' is defined twice, in module_a and in module_b"):
        registry.add("one", 2, "module_b")
    with pytest.raises(SuiteError, match="has no name"):
        registry.add("", 3, "module_c")


def test_a_new_file_is_enough_and_a_broken_one_fails_every_time(tmp_path, monkeypatch):
    package = tmp_path / "planted_things"
    package.mkdir()
    (package / "__init__.py").write_text("from pathlib import Path\n", encoding="utf-8")
    (package / "base.py").write_text("raise RuntimeError('skipped modules are not imported')\n", encoding="utf-8")
    (package / "one.py").write_text("import planted_registry\nplanted_registry.R.add('one', 1, __name__)\n")
    holder = tmp_path / "planted_registry.py"
    holder.write_text(
        "from pathlib import Path\nfrom dare_bench.suites.registry import Registry\n"
        f"R = Registry('thing', 'planted_things', Path({str(package)!r}), skip=('base',))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import planted_registry

    assert planted_registry.R.entries() == {"one": 1}
    broken = Registry("thing", "planted_things", package, skip=("one",))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="skipped modules"):
            broken.names()


def test_no_torch_and_no_other_room_is_imported():
    code = (
        "import sys\n"
        "from dare_bench.suites.benchmarks import registry as b\n"
        "from dare_bench.suites.scoring import registry as s\n"
        "from dare_bench.suites import rewards, prompts, data\n"
        "b.names(); s.names(); b.get('mini_gsm').rows('test', limit=1); b.get('mini_gsm').reward('shaped')\n"
        "rooms = ('kernels', 'dare', 'results', 'leaderboard', 'harness')\n"
        "bad = [m for m in sys.modules if m in ('torch', 'transformers', 'datasets')\n"
        "       or m.startswith(tuple('dare_bench.' + room for room in rooms))]\n"
        "print(bad)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
