"""Bad manifests, through the command line: exit code 2, place, key path, value, what is allowed, no traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# name | text of the good manifest | replaced by | line | key path | given | allowed | nearest (empty: not checked)
TABLE = r"""
unknown key | seeds: | seedz: | 8 | seedz | [0, 1] | suite, description, models | seeds
unknown key in an entry | {name: one} | {name: one, tau: 1} | 6 | decoders[0].tau | 1 | temperature |
unknown train key | steps: 4 | stepz: 4 | 11 | train.stepz | 4 | steps | steps
unknown override | lr: 5e-4 | lrr: 5e-4 | 3 | algorithms[1].lrr | 0.0005 | lr | lr
text for a number | steps: 4 | steps: many | 11 | train.steps | 'many' | a whole number |
fraction for a whole number | steps: 4 | steps: 4.5 | 11 | train.steps | 4.5 | a whole number |
quoted number | seeds: [0, 1] | seeds: [0, '1'] | 8 | seeds[1] | '1' | a whole number |
text for a list | models: [tiny-sdar] | models: tiny-sdar | 2 | models | 'tiny-sdar' | a list |
number for a mapping | data: {mini_gsm: train} | data: 3 | 10 | train.data | 3 | a mapping |
boolean for a number | batch_size: 2 | batch_size: true | 12 | train.batch_size | true | a whole number |
not a number | steps: 4 | lr: .nan | 11 | train.lr | '.nan' | a number |
out of range | steps: 4 | steps: 0 | 11 | train.steps | 0 | >= 1 |
negative seed | seeds: [0, 1] | seeds: [0, -1] | 8 | seeds[1] | -1 | >= 0 |
near-miss model | [tiny-sdar] | [tiny-sdr] | 2 | models[0] | 'tiny-sdr' | tiny-llada | tiny-sdar
near-miss algorithm | name: sft | name: sfft | 3 | algorithms[1].name | 'sfft' | base | sft
near-miss benchmark | [mini_gsm] | [mini-gsn] | 4 | benchmarks[0] | 'mini-gsn' | mini_choice | mini_gsm
near-miss selector | {threshold: | {treshold: | 7 | decoders[1].selector | 'treshold' | random | threshold
near-miss split | {mini_gsm: train} | {mini_gsm: trian} | 10 | train.data.mini_gsm | 'trian' | validation | train
unknown preset | lr: 5e-4 | preset: papr | 3 | algorithms[1].preset | 'papr' | paper | paper
unknown protocol | [mini_gsm] | [{name: mini_gsm, protocol: x}] | 4 | benchmarks[0].protocol | 'x' | std-1 |
unscorable benchmark | [mini_gsm] | [{name: mini_corpus, split: fact}] | 4 | benchmarks[0].name | 'mini_corpus' | mini_gsm |
threshold out of range | 0.9 | 1.5 | 7 | decoders[1].selector | 1.5 | (0, 1] |
selector without its option | {threshold: 0.9} | threshold | 7 | decoders[1].selector | 'threshold' | threshold: VALUE |
unknown selector option | {threshold: 0.9} | {threshold: {tau: 1}} | 7 | decoders[1].selector | tau | threshold: VALUE |
unknown cache | {name: one} | {name: one, cache: dual} | 6 | decoders[0].cache | 'dual' | auto |
duplicate decoder names | name: fast | name: one | 7 | decoders[1] | 'one' | one name per decoder |
duplicate labels | {name: sft, lr: 5e-4} | sft, sft | 3 | algorithms[2] | 'sft' | as: LABEL |
duplicate seeds | seeds: [0, 1] | seeds: [1, 1] | 8 | seeds[1] | '1' | each seed once |
duplicate key | seeds: [0, 1] | suite: u | 8 | suite | 'suite' | each key once |
empty list | [mini_gsm] | [] | 4 | benchmarks | [] | at least one |
missing key | suite: t~ | | 1 | suite | nothing | keys here |
training on the test split | {mini_gsm: train} | {mini_gsm: test} | 10 | train.data.mini_gsm | 'test' | train |
peft on base | [base, | [{name: base, peft: lora}, | 3 | algorithms[0].peft | 'lora' | base, without |
bad peft | lr: 5e-4 | peft: dora | 3 | algorithms[1].peft | 'dora' | lora |
bad rank | lr: 5e-4 | peft: {r: 0} | 3 | algorithms[1].peft | 0 | lora |
bad blocks | lr: 5e-4 | block_schedule: [[2, 3]] | 3 | algorithms[1].block_schedule | [[2, 3]] | divide max_length |
no experts to adapt | lr: 5e-4 | peft: {experts: true} | 3 | algorithms[1].peft.experts | tiny-sdar × sft | experts: false |
select on test | steps: 4 | select: 'best_on: test' | 11 | train.select | 'best_on: test' | best_on:validation |
select on training rows | steps: 4 | select: 'best_on:train' | 11 | train.select | | best_on:validation |
select without checkpoints | steps: 4 | select: 'best_on:validation' | 11 | train.select | | checkpoint_every: N |
select a later step | steps: 4 | select: step:500 | 11 | train.select | 'step:500' | step:1 to |
unknown engine key | steps: 4 | engine: {kind: sglang, url: 'http://h', prot: 3} | 11 | train.engine.prot | 3 | url |
near-miss engine | steps: 4 | engine: {kind: sglan, url: 'http://h'} | 11 | train.engine.kind | 'sglan' | sglang | sglang
engine with fixed weights | steps: 4 | engine: {kind: vllm, url: 'http://h'} | 11 | train.engine.kind | 'vllm' | sglang |
engine without address | steps: 4 | engine: {kind: sglang, url: 'h:3'} | 11 | train.engine.url | 'h:3' | 'http://127.0.0.1 |
idle engine | steps: 4 | engine: {kind: sglang, url: 'http://h', concurrency: 0} | 11 | train.engine.concurrency | 0 | >= 1 |
engine that nobody asks | steps: 4 | engine: {kind: sglang, url: 'http://h'} | 11 | train.engine | 'sglang' | that samples |
empty grid | batch_size: 2 | exclude: [{model: tiny-sdar}] | 12 | exclude | | at least one cell |
exclude matches nothing | ~train | ~exclude: [{algorithm: d1}]~train | 9 | exclude[0].algorithm | 'd1' | base, sft |
empty exclude entry | ~train | ~exclude: [{}]~train | 9 | exclude[0] | | model, algorithm |
hub model without family | [tiny-sdar] | [{name: x, source: a/b}] | 2 | models[0] | 'a/b' | family: |
unknown family | [tiny-sdar] | [{name: x, source: a/b, family: lada}] | 2 | models[0].family | 'lada' | sdar | llada
no such folder | [tiny-sdar] | [{name: x, path: ./no}] | 2 | models[0].path | './no' | config.json |
syntax error | seeds: [0, 1] | seeds: [0, 1 | 9 | | train | valid YAML |
tab | ~  steps | ~\tsteps | 11 | | steps | spaces |
anchor | [mini_gsm] | &x [mini_gsm] | 4 | | &x | no anchors |
alias | seeds: [0, 1] | seeds: *x | 8 | | *x | written out |
tag | suite: t | suite: !!python/name:os.system '' | 1 | | python | no tags |
second document | ~train | ~---~train | 9 | | --- | one document |
"""
CASES = {row[0]: row for row in ([part.strip(" ") for part in line.split(" |")] for line in TABLE.strip().splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_names_place_key_value_and_what_is_allowed(
    name: str, good: str, invoke: Any, in_tmp: Path
) -> None:
    _, old, new, line, key, given, allowed, near = CASES[name]
    old, new = (text.replace("~", "\n").replace("\\t", "\t") for text in (old, new))
    if name == "empty grid":
        old, new = "  batch_size: 2\n", new + "\n"
    assert old in good
    Path("bad.yaml").write_text(good.replace(old, new), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2
    assert "Traceback" not in answer.err + answer.out
    blocks = answer.err.split("\nbad.yaml:")
    block = next((block for block in blocks[1:] if block.startswith(f"{line}: {key + ': ' if key else ''}")), None)
    assert block is not None, answer.err
    assert not given or f"given:   {given}" in block or given in block.split("given:")[1].splitlines()[0]
    assert allowed in block.split("allowed:")[1]
    if near:
        assert f"nearest: {near}" in block


@pytest.mark.parametrize(
    ("entry", "more", "key", "said"),
    [
        ("{name: justgrpo}", "", "algorithms[1].name", "strictly left to right"),
        ("{name: mdpo}", "", "algorithms[1].name", "denoises canvases"),
        ("{name: d1, peft: lora}", "", "algorithms[1].peft", "full fine-tuning only: an adapter would have to be merged"),
        ("{name: d1}", "peft: lora", "train.peft", "full fine-tuning only"),
        ("{name: d1}", "decoder: {selector: {threshold: 0.9}}", "train.decoder.selector", "the server decides this"),
        ("{name: d1}", "decoder: {gen_length: 64, steps_per_block: 2}", "train.decoder.steps_per_block", "decides this"),
        ("{name: d1, decoder: {cache: none}}", "", "algorithms[1].decoder.cache", "the server decides this"),
        ("{name: d1}", "decoder: {gen_length: 64, top_p: 0.9}", "", ""),
    ],
)  # fmt: skip
def test_what_a_server_cannot_sample(
    entry: str, more: str, key: str, said: str, good: str, invoke: Any, in_tmp: Path
) -> None:
    text = good.replace("tiny-sdar", "tiny-llada").replace("{name: sft, lr: 5e-4}", entry)
    text += "  engine: {kind: sglang, url: 'http://127.0.0.1:30000'}\n"
    Path("bad.yaml").write_text(text + (f"  {more}\n" if more else ""), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == (2 if key else 0), answer.err
    assert "Traceback" not in answer.err
    if key:
        assert f" {key}: " in answer.err and said in answer.err and "1 problem" in answer.err, answer.err


@pytest.mark.parametrize(
    ("text", "given", "allowed"),
    [
        ("- suite\n", "a list", "key: value"),
        ("", "nothing", "key: value"),
        ("just text", "'just text'", "key: value"),
        ("suite: " + "[" * 500 + "]" * 500, "", "at most 20 levels"),
    ],
    ids=["list", "empty", "text", "deep"],
)
def test_documents_that_are_no_mapping(text: str, given: str, allowed: str, invoke: Any, in_tmp: Path) -> None:
    Path("bad.yaml").write_text(text, encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2 and "bad.yaml:1" in answer.err and "Traceback" not in answer.err
    assert given in answer.err and allowed in answer.err.split("allowed:")[1]


def test_training_needs_its_section(good: str, invoke: Any, in_tmp: Path) -> None:
    Path("bad.yaml").write_text(good[: good.index("train:")], encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2 and "train: a required key is missing" in answer.err
    assert "data: {BENCHMARK: SPLIT}" in answer.err


def test_the_good_manifest_is_good(good: str, invoke: Any, in_tmp: Path) -> None:
    Path("good.yaml").write_text(good, encoding="utf-8")
    answer = invoke("plan", "good.yaml")
    assert answer.code == 0, answer.err
    assert "8 cells = 1 models × 2 algorithms × 1 benchmarks × 2 decoders × 2 seeds" in answer.out


def test_all_problems_are_listed_at_once(good: str, invoke: Any, in_tmp: Path) -> None:
    text = good.replace("tiny-sdar", "tiny-sdr").replace("[mini_gsm]", "[mini_gsn]").replace("name: sft", "name: stf")
    Path("bad.yaml").write_text(text, encoding="utf-8")
    answer = invoke("run", "bad.yaml")
    assert answer.code == 2
    assert "3 problems" in answer.err
    assert not Path("runs").exists()


def test_unsupported_family(good: str, invoke: Any, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from dare_bench.dare.algorithms import registry

    known = dict(registry.algorithms())
    known["sft"] = (dataclasses.replace(known["sft"][0], families=frozenset({"llada"})),)
    monkeypatch.setattr(registry, "algorithms", lambda: known)
    Path("bad.yaml").write_text(good, encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2
    assert "bad.yaml:3: algorithms[1].name: sft does not support the family sdar of the model tiny-sdar" in answer.err
    assert "tiny-sdar × sft" in answer.err and "families llada" in answer.err
    Path("bad.yaml").write_text(good + "exclude: [{model: tiny-sdar, algorithm: sft}]\n", encoding="utf-8")
    assert invoke("plan", "bad.yaml").code == 0


def test_a_folder(invoke: Any, in_tmp: Path) -> None:
    Path("dir.yaml").mkdir()
    answer = invoke("plan", "dir.yaml")
    assert answer.code == 2
    assert "dir.yaml:1: is a folder" in answer.err and "allowed: a UTF-8 text file" in answer.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x7fELF\x02\x01\x00\x00" * 100, "binary file"),
        (b"suite: t\nmodels: [\xff\xfe]\n", ":2: is not UTF-8"),
        (b"# " + b"x" * 50_000_000, "too large"),
    ],
    ids=["binary", "not UTF-8", "50 MB"],
)
def test_files_that_are_no_text(content: bytes, said: str, invoke: Any, in_tmp: Path) -> None:
    Path("bad.yaml").write_bytes(content)
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2
    assert said in answer.err and "bad.yaml:" in answer.err and "given:" in answer.err and "allowed:" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("option", "key", "allowed"),
    [
        ("train.steps=many", "train.steps", "a whole number"),
        ("train.steps", "", "KEY=VALUE"),
        ("benchmarks=[mini_gsn]", "benchmarks[0]", "mini_gsm"),
        ("algorithms.7.lr=1", "algorithms[7]", "a number from 0 to 1"),
        ("suite.name=x", "suite.name", "a mapping"),
        ("seeds=[0", "", "valid YAML"),
    ],
)
def test_set_errors_name_the_option(option: str, key: str, allowed: str, good: str, invoke: Any, in_tmp: Path) -> None:
    Path("good.yaml").write_text(good, encoding="utf-8")
    answer = invoke("plan", "good.yaml", "--set", option)
    assert answer.code == 2
    assert f"--set {option}: {key}" in answer.err
    assert allowed in answer.err and "Traceback" not in answer.err


def test_set_changes_the_grid(good: str, invoke: Any, in_tmp: Path) -> None:
    Path("good.yaml").write_text(good, encoding="utf-8")
    answer = invoke("plan", "good.yaml", "--set", "seeds=[3]", "--set", "benchmarks=[mini_choice]")
    assert answer.code == 0, answer.err
    assert "tiny-sdar/sft/mini_choice/fast/3" in answer.out and "mini_gsm/" not in answer.out


def test_unknown_suite_names_the_shipped_ones(invoke: Any) -> None:
    answer = invoke("plan", "smok")
    assert answer.code == 2
    assert "Did you mean 'smoke'" in answer.err and "knowledge" in answer.err


@pytest.mark.parametrize("name", ["smoke", "smoke.yaml", "suites/smoke.yaml"])
def test_shipped_suites_are_found_from_any_folder(name: str, invoke: Any) -> None:
    answer = invoke("plan", name)
    assert answer.code == 0, answer.err
    assert "suite smoke" in answer.out


@pytest.mark.parametrize("name", ["smoke", "math", "code", "knowledge"])
def test_shipped_suites_are_valid(name: str, invoke: Any) -> None:
    assert invoke("plan", name).code == 0


def test_usage_error_has_code_2(invoke: Any) -> None:
    assert invoke("run").code == 2
    assert invoke("nothing").code == 2
    assert invoke("plan", "smoke", "--limit", "0").code == 2


@pytest.mark.parametrize("algorithm", ["cj_grpo", "trace_rl", "justgrpo", "d1"])
def test_rollouts_that_cannot_be_replayed(algorithm: str, good: str, invoke: Any, in_tmp: Path) -> None:
    text = good.replace("name: sft, lr: 5e-4", f"name: {algorithm}")
    given = "{early_stop: fill, editor: {token_editing: {threshold: 0.5}}}"
    Path("bad.yaml").write_text(text.replace("steps: 4", f"steps: 4\n  decoder: {given}"), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == (0 if algorithm == "d1" else 2), answer.err
    assert ("train.decoder.early_stop: " in answer.err) == (algorithm != "d1")
    assert ("train.decoder.editor: " in answer.err) == (algorithm in ("cj_grpo", "trace_rl"))
    if algorithm != "d1":
        assert f"{algorithm} replays its rollouts" in answer.err
        assert "given:   'fill'" in answer.err
        assert "allowed: true, block, now, false" in answer.err


def test_an_algorithm_may_have_a_rollout_decoder_of_its_own(good: str, invoke: Any, in_tmp: Path) -> None:
    shared = good.replace("tiny-sdar", "tiny-llada").replace(
        "steps: 4", "steps: 4\n  decoder: {selector: {threshold: 0.9}}"
    )
    Path("bad.yaml").write_text(shared.replace("name: sft, lr: 5e-4", "name: mdpo"), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2
    assert "train.decoder.selector: rollouts of mdpo denoise whole canvases" in answer.err
    assert "or a decoder of its own: {name: mdpo, decoder: {...}}" in answer.err
    own = shared.replace("name: sft, lr: 5e-4", "name: mdpo, decoder: {selector: entropy, steps_per_block: 4}")
    Path("good.yaml").write_text(own, encoding="utf-8")
    assert invoke("plan", "good.yaml").code == 0
    Path("bad.yaml").write_text(own.replace("selector: entropy", "cache: dual"), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert "algorithms[1].decoder.cache: rollouts of mdpo" in answer.err
    assert "given:   'dual'" in answer.err
    Path("bad.yaml").write_text(shared.replace("lr: 5e-4", "lr: 5e-4, decoder: {temperature: 1}"), encoding="utf-8")
    assert "algorithms[1].decoder: sft samples no responses" in invoke("plan", "bad.yaml").err
