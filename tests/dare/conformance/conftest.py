"""Folders in the layout of recorded values, made from tiny random models by `plain_network.py` and `plain_sampler.py`."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from dare_bench.dare.families.loading import save
from safetensors.torch import save_file
from torch import Tensor

LENGTH, START, BLOCK = 12, 4, 4
DIFFUSION = ("llada", "dream", "llada_moe", "sdar", "sdar_moe", "llada2_moe")


@pytest.fixture(scope="session")
def made(tmp_path_factory, tiny, plain) -> Callable[[str], Path]:
    """`made(family)`: a folder that holds one folder of recorded values; copy it before changing anything."""
    root, done = tmp_path_factory.mktemp("recorded"), {}

    def make(family: str) -> Path:
        if family not in done:
            done[family] = root / family
            write(done[family] / "model", tiny(family, dtype=torch.float32), plain)
        return done[family]

    return make


@pytest.fixture(scope="session")
def sampler() -> ModuleType:
    """Module `plain_sampler.py` beside this file: published samplers as loops over single forwards."""
    spec = importlib.util.spec_from_file_location("plain_sampler", Path(__file__).with_name("plain_sampler.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder: Path, lm: Any, plain: Any) -> None:
    """Record one model: every value by the plain network, row by row."""
    save(lm, folder)
    given = inputs(lm)
    by_blocks = lm.family.block_causal
    if by_blocks:
        expected, more = block_values(lm, plain, given)
        given |= more
    else:
        expected = full_values(lm, plain, given)
    save_file({name: tensor.contiguous() for name, tensor in given.items()}, folder / "inputs.safetensors")
    recorded = {name: tensor.float().contiguous() for name, tensor in expected.items()}
    save_file(recorded, folder / "expected.safetensors")
    config = json.loads((folder / "config.json").read_text())
    del config["block_size"]  # as in some released checkpoints: meta.json then carries it
    (folder / "config.json").write_text(json.dumps(config))
    meta = {"family": lm.family.name, **({"block_length": BLOCK} if by_blocks else {})}
    (folder / "meta.json").write_text(json.dumps(meta))


def inputs(lm: Any) -> dict[str, Tensor]:
    """Tokens, masked tokens, and the two paddings of the second row."""
    generator = torch.Generator().manual_seed(3)
    clean = torch.randint(0, 60, (2, LENGTH), generator=generator)
    masked = torch.rand(2, LENGTH, generator=generator) < 0.4
    masked[:, :2] = False
    masked[0, START] = True
    ids = clean.masked_fill(masked, lm.mask_token_id)
    step = ids.clone()
    step[:, START : START + 2] = clean[:, START : START + 2]
    left, right = torch.ones_like(ids), torch.ones_like(ids)
    left[1, :3] = right[1, -3:] = 0
    return {
        "clean_ids": clean, "input_ids": ids, "input_ids_step1": step, "mask_positions": masked.long(),
        "block_range": torch.tensor([START, START + BLOCK]),
        "attention_mask_leftpad": left, "input_ids_leftpad": ids.masked_fill(left == 0, lm.pad_token_id),
        "attention_mask_rightpad": right, "input_ids_rightpad": ids.masked_fill(right == 0, lm.pad_token_id),
    }  # fmt: skip


def shifted(logits: Tensor) -> Tensor:
    """Row i scores token i where the network's row i scores token i + 1."""
    return torch.stack([torch.stack([row[0], *row[:-1]]) for row in logits])


def padded(net: Any, given: dict[str, Tensor], side: str, sees: Any) -> Tensor:
    """Rows alone, without their padding; anything at padded places."""
    found = torch.full((2, LENGTH, net.weights["lm_head.weight"].shape[0]), 99.0, dtype=torch.float64)
    for row in range(2):
        real = given[f"attention_mask_{side}pad"][row].bool()
        found[row, real] = net.forward(given[f"input_ids_{side}pad"][row, real].tolist(), sees)
    return found


def full_values(lm: Any, plain: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is recorded for a family of full attention."""
    net, sees = plain.PlainNetwork(lm), plain.everything
    rows = given["input_ids"].tolist()
    found = {"logits_full": torch.stack([net.forward(row, sees) for row in rows])}
    found |= {f"logits_{side}pad": padded(net, given, side, sees) for side in ("left", "right")}
    if lm.family.shift:
        found["logits_full_aligned"] = shifted(found["logits_full"])
        found["logits_leftpad_aligned"] = shifted(found["logits_leftpad"])
    for kind, end in (("prefix", LENGTH), ("dual", START + BLOCK)):
        windows = []
        for row, later in zip(rows, given["input_ids_step1"].tolist(), strict=True):
            memory: list[dict[int, Any]] = [{} for _ in range(lm.dims.layers)]
            net.forward(row, sees, memory=memory)
            windows.append(net.forward(later[START:end], sees, places=range(START, end), memory=memory))
        found[f"logits_{kind}_cache"] = torch.stack(windows)
    aligned = found.get("logits_full_aligned", found["logits_full"])
    return found | {"logprob_clean": chosen(aligned, given["clean_ids"])}


def chosen(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of each id."""
    probs = logits.softmax(-1)
    return torch.stack(
        [torch.stack([p[i].log() for p, i in zip(*row, strict=True)]) for row in zip(probs, ids, strict=True)]
    )


def block_values(lm: Any, plain: Any, given: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What is recorded for a block family, and the inputs that only it has."""
    net, sees = plain.PlainNetwork(lm), plain.blocks(BLOCK)
    rows, clean = given["input_ids"].tolist(), given["clean_ids"].tolist()
    causal, routes = [], []
    for row in rows:
        causal.append(net.forward(row, sees))
        routes.append([route for route in net.routes if route[0] == 1])
    found = {
        "logits_full": torch.stack([net.forward(row, plain.everything) for row in rows]),
        "logits_block_causal": torch.stack(causal),
        "logits_leftpad_block_causal": padded(net, given, "left", sees),
    }
    found["logprob_clean"] = chosen(found["logits_block_causal"], given["clean_ids"])

    def after(noisy: list[int], row: list[int], start: int) -> Tensor:
        """A block on its own, after the clean tokens before it."""
        return net.forward([*row[:start], *noisy[start : start + BLOCK]], sees)[start:]

    starts = range(0, LENGTH, BLOCK)
    pairs = list(zip(rows, clean, strict=True))
    found["logits_cache_block"] = torch.stack([after(*pair, START) for pair in pairs])
    found["logits_cache_block2"] = torch.stack([after(*pair, START + BLOCK) for pair in pairs])
    noisy = torch.stack([torch.cat([after(*pair, start) for start in starts]) for pair in pairs])
    found["train_logits_doubled"] = torch.cat([noisy, torch.stack([net.forward(row, sees) for row in clean])], 1)
    target, labels = given["mask_positions"], given["clean_ids"].clone()
    labels[:, :2] = -100
    rate = torch.tensor([[0.25], [0.5]]).expand(2, LENGTH)
    logps = chosen(noisy, given["clean_ids"])
    losses = [-logps[b, i] / rate[b, i] for b in range(2) for i in range(LENGTH) if target[b, i]]
    found["train_token_loss"] = torch.stack(losses)
    found["train_loss"] = (sum(losses) / (2 * (LENGTH - 2))).reshape(1)
    real = given["attention_mask_leftpad"]
    more = {
        "train_target_mask": target.clone(), "train_labels": labels, "train_p_mask": rate,
        "mask_block_causal": looks([list(range(LENGTH))] * 2, sees),
        "mask_leftpad_block_causal": looks([[i - 3 * b for i in range(LENGTH)] for b in range(2)], sees)
        & real[:, None, None].bool(),
        "train_mask_doubled": looks_doubled(),
    }  # fmt: skip
    if routes[0]:
        found["router_logits_layer1"] = torch.stack([torch.stack([route[1] for route in row]) for row in routes])
        more["router_topk_layer1"] = torch.tensor([[sorted(route[2]) for route in row] for row in routes])
    return found, more


def looks(places: list[list[int]], sees: Any) -> Tensor:
    """What every place sees, as [B, 1, L, L]."""
    return torch.tensor([[[[sees(query, key) for key in row] for query in row]] for row in places])


def looks_doubled() -> Tensor:
    """The doubled layout, by its four sentences."""
    half = [("noisy", i // BLOCK) for i in range(LENGTH)] + [("clean", i // BLOCK) for i in range(LENGTH)]
    rules = {
        ("noisy", "noisy"): lambda q, k: q == k,
        ("noisy", "clean"): lambda q, k: q > k,
        ("clean", "clean"): lambda q, k: q >= k,
        ("clean", "noisy"): lambda q, k: False,
    }
    return torch.tensor([[[[rules[q[0], k[0]](q[1], k[1]) for k in half] for q in half]]])
