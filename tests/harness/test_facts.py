"""Facts of a checkpoint and default decoders: validated, carried to the jobs, part of fingerprints only when given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.families.registry import get_family
from dare_bench.harness.jobs.spec import Job
from dare_bench.harness.prepare import Options, Prepared, prepare

SUITE = """\
suite: f
models: [{{name: {model}{facts}}}]
algorithms: [base{algorithms}]
benchmarks: [mini_choice]
decoders: [{decoders}]
train: {{data: {{mini_choice: train}}, steps: 2}}
"""

# name | facts | key path | given | allowed
BAD = r"""
id of another type | mask_token_id: many | mask_token_id | 'many' | a whole number
negative id | eos_token_id: -1 | eos_token_id | -1 | >= 0
id outside the vocabulary | pad_token_id: 300 | pad_token_id | 300 | 0 to 299
no block | block_length: 0 | block_length | 0 | >= 1
no stop token | stop_tokens: [] | stop_tokens | [] | at least one
empty stop token | stop_tokens: [''] | stop_tokens[0] | '' | not empty
stop tokens as text | stop_tokens: x | stop_tokens | 'x' | a list
pattern | lora_targets: '(' | lora_targets | '(' | regular expression
template | chat_template: '{% for %}' | chat_template | '{% for %}' | chat template
reserved variable | chat_options: {messages: []} | chat_options.messages | [] | variables of the template
options as text | chat_options: x | chat_options | 'x' | a mapping
decoder field | decoder: {tau: 1} | decoder.tau | 1 | selector
decoder value | decoder: {temperature: -1} | decoder.temperature | -1 | >= 0
decoder as text | decoder: fast | decoder | 'fast' | a mapping of decoder settings
decoder selector | decoder: {selector: {treshold: 0.9}} | decoder.selector | 'treshold' | threshold
unknown fact | mask_id: 3 | mask_id | 3 | mask_token_id
"""
BAD_CASES = {
    row[0]: row[1:] for row in ([part.strip() for part in line.split(" | ")] for line in BAD.strip().split("\n"))
}


@pytest.mark.parametrize("name", BAD_CASES)
def test_wrong_facts_name_place_key_value_and_what_is_allowed(name: str, invoke: Any) -> None:
    facts, key, given, allowed = BAD_CASES[name]
    Path("bad.yaml").write_text(_text("random-dream", facts), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2 and "Traceback" not in answer.err
    assert f"bad.yaml:2: models[0].{key}: " in answer.err
    assert f"given:   {given}" in answer.err
    assert allowed in answer.err.split("allowed:")[1]


@pytest.mark.parametrize(
    ("model", "facts", "said"),
    [
        ("random-autoregressive", "mask_token_id: 3", "autoregressive has no mask token"),
        ("random-autoregressive", "block_length: 8", "has no blocks"),
        ("random-autoregressive", "decoder: {cache: none}", "does not honour cache"),
        ("random-diffusion-gemma", "decoder: {selector: {entropy_bound: {bound: 1}}}", "not the options of entropy_bound"),
        ("random-diffusion-gemma", "decoder: {selector: {entropy_bound: {entropy_bound: 0}}}", "not a value of entropy_b"),
    ],
)  # fmt: skip
def test_facts_that_a_family_has_no_use_for(model: str, facts: str, said: str, invoke: Any) -> None:
    Path("bad.yaml").write_text(_text(model, facts), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2 and said in answer.err


def test_a_random_checkpoint_of_no_family(invoke: Any) -> None:
    Path("bad.yaml").write_text(_text("mine", "source: random:sdra"), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2
    assert "unknown random checkpoint" in answer.err and "nearest: random:sdar" in answer.err


def test_a_source_of_another_family_than_the_entrys(invoke: Any) -> None:
    Path("bad.yaml").write_text(_text("mine", "source: random:sdar, family: llada"), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2 and "not the config of a llada network" in answer.err


def test_a_random_checkpoint_under_another_name(plan: Callable[..., Prepared], invoke: Any) -> None:
    named, plain = _generate(plan("mine", "source: random:sdar")), _generate(plan("random-sdar"))
    assert named.fingerprint == plain.fingerprint and named.spec["model"]["name"] == "mine"
    Path("bad.yaml").write_text(_text("mine", "source: random:diffusion_gemma", ", sft"), encoding="utf-8")
    answer = invoke("plan", "bad.yaml")
    assert answer.code == 2 and "mine cannot be trained" in answer.err


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Prepared]:
    def make(model: str, facts: str = "", **parts: str) -> Prepared:
        path = tmp_path / "suite.yaml"
        path.write_text(_text(model, facts, **parts), encoding="utf-8")
        return prepare(
            Options(str(path), f"sqlite:///{tmp_path}/x.db", tmp_path / "runs", device="cpu"), is_offline=True
        )

    return make


def _text(model: str, facts: str = "", algorithms: str = "", decoders: str = "default") -> str:
    return SUITE.format(model=model, facts=f", {facts}" if facts else "", algorithms=algorithms, decoders=decoders)


def _generate(prepared: Prepared) -> Job:
    return prepared.work.of_kind("generate")[0]


@pytest.mark.parametrize(
    ("facts", "spec"),
    [
        ("mask_token_id: 7", {"mask_token_id": 7}),
        ("eos_token_id: 7", {"eos_token_id": 7}),
        ("pad_token_id: 7", {"pad_token_id": 7}),
        ("block_length: 4", {"block_length": 4}),
        ("stop_tokens: ['<|im_end|>']", {"stop_tokens": ["<|im_end|>"]}),
        ("chat_template: '{{ messages }}'", {"chat_template": "{{ messages }}"}),
        ("chat_options: {enable_thinking: false}", {"chat_options": {"enable_thinking": False}}),
    ],
)
def test_facts_reach_the_jobs_and_their_fingerprints(
    facts: str, spec: dict[str, Any], plan: Callable[..., Prepared]
) -> None:
    job, plain = _generate(plan("random-dream", facts)), _generate(plan("random-dream"))
    assert job.spec["model"]["facts"] == spec and plain.spec["model"]["facts"] == {}
    assert job.fingerprint != plain.fingerprint


def test_what_decoding_does_not_depend_on_counts_where_it_is_used(plan: Callable[..., Prepared]) -> None:
    algorithms = ", sft, {name: sft, as: lora, peft: lora}"
    facts = "lora_targets: '.*q_proj', reply_end: '<|endoftext|>'"

    def prints(facts: str) -> dict[str, str]:
        work = plan("random-sdar", facts, algorithms=algorithms).work
        return {cell.cell.recipe.label: cell.train or cell.evaluation for cell in work.cells}

    given, without = prints(facts), prints("")
    assert given["base"] == without["base"]
    assert given["sft"] != without["sft"] and given["lora"] != without["lora"]
    only_targets = prints("lora_targets: '.*q_proj'")
    assert only_targets["sft"] == without["sft"] and only_targets["lora"] != without["lora"]


def test_trained_checkpoints_are_loaded_with_the_facts_too(plan: Callable[..., Prepared]) -> None:
    work = plan("random-sdar", "stop_tokens: ['<|im_end|>'], revision: abc", algorithms=", sft").work
    assert len(work.of_kind("train")) == 1 and len(work.of_kind("generate")) == 2
    for job in (*work.of_kind("train"), *work.of_kind("generate")):
        assert job.spec["model"]["facts"] == {"stop_tokens": ["<|im_end|>"]}
        assert job.spec["model"]["revision"] == "abc"


def test_explicit_fields_win_then_the_model_then_the_family(
    plan: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(get_family("dream")), "default_decoder", {"steps_per_block": 2, "temperature": 0.5})
    assert _settings(plan("random-dream")) == (2, 0.5, "low_confidence", {})
    model = "decoder: {temperature: 0.25, selector: {threshold: 0.8}}"
    assert _settings(plan("random-dream", model)) == (2, 0.25, "threshold", {"threshold": 0.8})
    explicit = "{name: default, temperature: 0, selector: random}"
    assert _settings(plan("random-dream", model, decoders=explicit)) == (2, 0.0, "random", {})


def _settings(prepared: Prepared) -> tuple[Any, ...]:
    decoder = _generate(prepared).spec["decoder"]
    return tuple(decoder[key] for key in ("steps_per_block", "temperature", "selector", "selector_options"))


def test_a_default_decoder_is_the_same_as_an_explicit_one(plan: Callable[..., Prepared]) -> None:
    default = _generate(plan("random-sdar", "decoder: {selector: {threshold: 0.9}, gen_length: 16}"))
    explicit = _generate(plan("random-sdar", decoders="{name: x, selector: {threshold: 0.9}, gen_length: 16}"))
    assert default.fingerprint == explicit.fingerprint


def test_rollouts_take_the_default_decoder_but_their_temperature_is_the_algorithms(
    plan: Callable[..., Prepared],
) -> None:
    work = plan("random-sdar", "decoder: {steps_per_block: 4, temperature: 0.7}", algorithms=", d1").work
    rollout = work.of_kind("train")[0].spec["rollout"]
    assert rollout["steps_per_block"] == 4 and rollout["temperature"] == 0.0


def test_what_is_stored_of_a_decoder_is_what_its_engine_honours(plan: Callable[..., Prepared]) -> None:
    left_to_right = _generate(plan("random-autoregressive")).spec["decoder"]
    assert set(left_to_right) == {"name", "gen_length", "temperature", "early_stop"}
    canvas = _generate(plan("random-diffusion-gemma")).spec["decoder"]
    assert canvas["selector"] == "entropy_bound" and canvas["temperature"] == 0.8 and "cache" not in canvas


def test_decoders_that_an_engine_does_not_honour_are_refused_unless_excluded(invoke: Any) -> None:
    text = _text("random-autoregressive", decoders="default, {name: fast, selector: {threshold: 0.9}, cache: none}")
    Path("pair.yaml").write_text(text, encoding="utf-8")
    answer = invoke("plan", "pair.yaml")
    assert answer.code == 2
    assert "pair.yaml:5: decoders[1].selector: the family autoregressive of the model random-auto" in answer.err
    assert "does not honour cache, selector" in answer.err and "early_stop, gen_length, temperature" in answer.err
    assert "exclude: [{model: random-autoregressive, decoder: fast}]" in answer.err
    rule = "exclude: [{model: random-autoregressive, decoder: fast}]\n"
    Path("pair.yaml").write_text(text + rule, encoding="utf-8")
    assert invoke("plan", "pair.yaml").code == 0
    # Excluded by parts: no cell of the pair is left either.
    Path("pair.yaml").write_text(text + rule.replace("decoder: fast", "decoder: fast, seed: 0"), encoding="utf-8")
    assert invoke("plan", "pair.yaml").code == 0


def test_a_family_that_is_for_evaluation_only_is_not_trained(invoke: Any) -> None:
    Path("train.yaml").write_text(_text("random-diffusion-gemma", algorithms=", sft"), encoding="utf-8")
    answer = invoke("plan", "train.yaml")
    assert answer.code == 2 and "the family diffusion_gemma is for evaluation only" in answer.err
    assert "exclude: [{model: random-diffusion-gemma, algorithm: sft}]" in answer.err


def test_plan_shows_facts_default_decoder_and_revision(invoke: Any) -> None:
    facts = "block_length: 4, revision: abc, decoder: {steps_per_block: 2}"
    Path("shown.yaml").write_text(_text("random-sdar", facts), encoding="utf-8")
    answer = invoke("plan", "shown.yaml", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "random:sdar @ abc" in answer.out and "given for random-sdar: block_length 4" in answer.out
    assert "steps_per_block 2" in answer.out
