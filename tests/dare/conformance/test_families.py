"""The families' command: passes on what an independent computation recorded, and on nothing else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dare_bench.dare.conformance.families import EXPECTED, INPUTS, compare
from dare_bench.harness import cli
from safetensors.torch import load_file, save_file

DIFFUSION = ("llada", "dream", "llada_moe", "sdar", "sdar_moe", "llada2_moe")
PADDED = re.compile(r"logits_(left|right)pad.*")


@pytest.fixture
def command(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run `conformance families`: exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(["conformance", "families", *map(str, arguments), "--device", "cpu"])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run


@pytest.fixture
def copy(made, tmp_path) -> Callable[[str], Path]:
    """A recorded folder of a family that may be changed; its parent is what the command is given."""
    return lambda family: Path(shutil.copytree(made(family), tmp_path / family)) / "model"


def change(file: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or (None) drop tensors of a file."""
    held = load_file(file) | tensors
    save_file({name: tensor.contiguous() for name, tensor in held.items() if tensor is not None}, file)


def count(root: Path) -> int:
    """Tensors that have to be compared."""
    total = 0
    for folder in root.iterdir():
        if folder.is_dir():
            given = load_file(folder / "inputs.safetensors")
            total += len(load_file(folder / "expected.safetensors"))
            total += sum(name in given for name in ("mask_block_causal", "mask_leftpad_block_causal"))
            total += sum(name in given for name in ("train_mask_doubled", "router_topk_layer1"))
    return total


def failed(out: str) -> list[str]:
    """Cases of failed rows."""
    return [line.split()[1] for line in out.splitlines() if "FAIL" in line]


@pytest.mark.parametrize("family", DIFFUSION)
def test_values_of_an_independent_computation_pass(command, made, family):
    code, out, _ = command(made(family))
    assert failed(out) == []
    assert code == 0
    assert out.splitlines()[-1] == f"{count(made(family))} cases of 1 families compared, 0 failed, 0 skipped"
    assert all(name in out for name in load_file(made(family) / "model" / "expected.safetensors"))


def test_the_reference_passes(command, reference):
    root = reference / "families"
    code, out, _ = command(root)
    assert failed(out) == []
    assert code == 0
    assert out.splitlines()[-1] == f"{count(root)} cases of 6 families compared, 0 failed, 0 skipped"
    assert count(root) == 49
    assert len(out.splitlines()) == 2 + 49 + 1


@pytest.mark.parametrize("family", ["dream", "llada2_moe"])
def test_one_wrong_number_fails_its_case_and_no_other(copy, family):
    folder = copy(family)
    for file, tensors in (("expected", EXPECTED), ("inputs", INPUTS)):
        recorded = load_file(folder / f"{file}.safetensors")
        for name, right in recorded.items():
            if tensors.find(name) is None:
                continue
            wrong = right.clone()
            last = tuple(size - 1 for size in wrong.shape)  # a real token, but for right padding
            last = (0, *last[1:]) if "rightpad" in name else last
            wrong[last] = (
                ~wrong[last] if wrong.dtype == torch.bool else wrong[last] + (1e-3 if file == "expected" else 64)
            )
            change(folder / f"{file}.safetensors", **{name: wrong})
            outcomes = compare(folder, tolerance=1e-4, dtype="float32", device="cpu")
            assert [item.case for item in outcomes if not item.passed] == [name]
            change(folder / f"{file}.safetensors", **{name: right})


def test_a_corrupted_copy_of_the_reference_fails_by_name(command, reference, tmp_path):
    shutil.copytree(reference / "families" / "sdar", tmp_path / "sdar")
    (tmp_path / "sdar").chmod(0o755)
    for file in (tmp_path / "sdar").iterdir():
        file.chmod(0o644)
    expected = tmp_path / "sdar" / "expected.safetensors"
    wrong = load_file(expected)["logits_cache_block2"]
    wrong[1, 2, 3] += 2e-4
    change(expected, logits_cache_block2=wrong)
    code, out, _ = command(tmp_path)
    assert (code, failed(out)) == (1, ["logits_cache_block2"])
    assert out.splitlines()[-1] == "12 cases of 1 families compared, 1 failed, 0 skipped"
    assert command(tmp_path, "--tolerance", "1e-3")[0] == 0


def test_wrong_weights_fail_every_case_that_depends_on_them(command, copy):
    folder = copy("sdar")
    name = "model.layers.0.self_attn.q_norm.weight"
    change(folder / "model.safetensors", **{name: torch.ones(8)})
    code, out, _ = command(folder.parent)
    assert code == 1
    assert len(failed(out)) == 9
    assert "mask" not in " ".join(failed(out))


@pytest.mark.parametrize("family", ["dream", "sdar"])
def test_padded_positions_are_not_compared(copy, family):
    folder = copy(family)
    expected = load_file(folder / "expected.safetensors")
    changed = 0
    for name, tensor in expected.items():
        if PADDED.fullmatch(name):
            real = load_file(folder / "inputs.safetensors")[f"attention_mask_{name.split('_')[1]}"].bool()
            # Aligned: the first real token has no predecessor that could score it.
            tensor[~real if "aligned" not in name else real.cumsum(-1) <= 1] = -1e3
            changed += 1
    assert changed == (3 if family == "dream" else 1)
    save_file(expected, folder / "expected.safetensors")
    outcomes = compare(folder, tolerance=1e-4, dtype="float32", device="cpu")
    assert all(item.passed for item in outcomes)
    by_name = {item.case: item.values for item in outcomes}
    assert by_name["logits_leftpad" if family == "dream" else "logits_leftpad_block_causal"] == 2 * (12 + 9) * 64


BROKEN = {
    "unknown": (
        "expected", lambda held: {"logits_window": held["logprob_clean"]}, "logits_window",
        "no rule for a tensor of this name, so it cannot be compared",
    ),
    "nan": ("expected", lambda held: {"logprob_clean": held["logprob_clean"] * torch.nan}, "logprob_clean", "nan"),
    "shape": (
        "expected", lambda held: {"logits_full": held["logits_full"][:1]}, "logits_full",
        r"recorded with shape \(1, 12, 64\), computed here with \(2, 12, 64\)",
    ),
    "missing input": (
        "inputs", lambda held: {"block_range": None}, "logits_cache_block", "inputs.safetensors has no block_range"
    ),
    "no real token": (
        "inputs", lambda held: {"attention_mask_leftpad": held["attention_mask_leftpad"] * 0}, "logits_leftpad_block_causal",
        "nothing to compare: no position is a real token",
    ),
    "no such layer": (
        "expected", lambda held: {"router_logits_layer7": held["logprob_clean"]}, "router_logits_layer7",
        "layer 7 of this model has no router",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_compared_fails_with_its_reason(command, copy, kind):
    file, changes, case, reason = BROKEN[kind]
    folder = copy("sdar")
    path = folder / f"{file}.safetensors"
    change(path, **changes(load_file(path)))
    code, out, _ = command(folder.parent)
    assert code == 1
    row = next(line for line in out.splitlines() if f" {case} " in line)
    assert re.search(rf"{reason}.*", row) and "FAIL" in row
    assert out.splitlines()[-1].endswith(f"compared, {len(failed(out))} failed, 0 skipped")


def test_half_precision_is_judged_by_the_tolerance_that_is_given(command, made):
    code, out, _ = command(made("llada"), "--dtype", "bfloat16")
    assert code == 1 and failed(out)
    code, out, _ = command(made("llada"), "--dtype", "bfloat16", "--tolerance", "1")
    assert (code, failed(out)) == (0, [])
    cells = next(line for line in out.splitlines() if "logits_full" in line).split()
    largest, mean = float(cells[3]), float(cells[4])
    assert 1e-3 < mean < largest < 1
    assert command(made("llada"), "--dtype", "float64")[0] == 0


def test_masks_are_equal_or_wrong_whatever_the_tolerance(command, copy):
    folder = copy("sdar")
    mask = load_file(folder / "inputs.safetensors")["mask_block_causal"]
    change(folder / "inputs.safetensors", mask_block_causal=~mask)
    code, out, _ = command(folder.parent, "--tolerance", "5")
    assert (code, failed(out)) == (1, ["mask_block_causal"])


def unfit(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)


USER_ERRORS = {
    "another family": (lambda f: unfit(f, "meta.json", '{"family": "llada"}'), "meta.json says family 'llada', config.json"),
    "no object": (lambda f: unfit(f, "meta.json", "[]"), "meta.json: expected an object, found list"),
    "no json": (lambda f: unfit(f, "meta.json", "{"), "meta.json: not readable as JSON"),
    "block length": (lambda f: unfit(f, "meta.json", '{"block_length": 0}'), "block_length is 0; expected a number"),
    "damaged": (lambda f: unfit(f, "expected.safetensors", "x"), "expected.safetensors: damaged or not a safetensors file"),
    "nothing": (lambda f: save_file({}, f / "expected.safetensors"), "expected.safetensors: holds no tensors"),
    "other weights": (
        lambda f: change(f / "model.safetensors", **{"lm_head.weight": None}),
        "the weights do not fit the config. Missing: lm_head.weight",
    ),
    "unknown model": (
        lambda f: unfit(f, "config.json", json.dumps({"model_type": "bert"})), "unknown model type 'bert'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", USER_ERRORS)
def test_a_folder_that_cannot_be_used_is_a_user_error(command, copy, kind):
    spoil, message = USER_ERRORS[kind]
    folder = copy("sdar")
    spoil(folder)
    code, out, err = command(folder.parent)
    assert (code, out) == (2, "")
    assert message in err


def test_every_tensor_has_one_rule():
    names = [f"logits_{kind}" for kind in ("full", "block_causal", "leftpad_aligned", "dual_cache", "cache_block2")]
    assert all(EXPECTED.find(name) for name in [*names, "train_loss", "router_logits_layer12"])
    assert EXPECTED.find("logits_full_") is None and EXPECTED.find("mask_block_causal") is None
    with pytest.raises(ValueError, match="2 rules claim the tensor 'x'"):
        rules = type(EXPECTED)()
        rules.add("x")(lambda recorded, match: iter(()))
        rules.add("[x]")(lambda recorded, match: iter(()))
        rules.find("x")
