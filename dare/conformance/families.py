"""Model families against recorded values of the released modelling code, through the interface users rely on.

A rule computes one recorded tensor from the recorded inputs. A recorded tensor without a rule is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dare_bench.dare.conformance.layout import BadReference, read_meta
from dare_bench.dare.conformance.outcome import Outcome
from dare_bench.dare.conformance.rules import Found, Missing, Rules
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.cache import PositionCache
from dare_bench.dare.families.facts import BLOCK_CAUSAL, FULL, Overrides
from dare_bench.dare.families.loading import load
from dare_bench.dare.families.places import read_config
from dare_bench.kernels.masks import doubled_mask
from dare_bench.kernels.token_logprob import token_logprob
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class Recorded:
    """One model with its recorded inputs.

    Attributes:
        lm: the model, as this installation loads it.
        given: recorded inputs, by name, on the model's device.
    """

    lm: DiffusionLM
    given: dict[str, Tensor]

    def take(self, *names: str) -> Tensor:
        """The first of these inputs that was recorded.

        Raises:
            Missing: none was.
        """
        for name in names:
            if name in self.given:
                return self.given[name]
        raise Missing(f"inputs.safetensors has no {' or '.join(names)}")


EXPECTED, INPUTS = Rules(), Rules()


def compare(folder: Path, *, tolerance: float, dtype: str, device: str) -> list[Outcome]:
    """Compare every recorded tensor of one folder.

    Args:
        folder: of `layout.model_folders`.
        tolerance: largest absolute difference that passes.
        dtype, device: as in `loading.load`.

    Returns:
        One outcome per tensor of expected.safetensors, then per input that is computed here too.

    Raises:
        BadReference: unreadable files, nothing recorded, or a family other than the recorded one.
        BadCheckpoint, UnknownName, UnsupportedConfig: as `loading.load`.
    """
    meta, config = read_meta(folder), read_config(folder)
    given, wanted = (_tensors(folder / f"{name}.safetensors") for name in ("inputs", "expected"))
    if not wanted:
        raise BadReference(f"{folder / 'expected.safetensors'}: holds no tensors; expected at least one to compare")
    has_length = config.get("block_size") is not None
    overrides = None if has_length else Overrides(block_length=meta.get("block_length"))
    lm = load(folder, dtype=dtype, device=device, overrides=overrides)
    name = lm.family.name
    if meta.get("family", name) != name:
        raise BadReference(f"{folder}: meta.json says family {meta['family']!r}, config.json is of family {name!r}")
    recorded = Recorded(lm, {key: tensor.to(lm.device) for key, tensor in given.items()})
    computed = {key: tensor for key, tensor in given.items() if INPUTS.find(key)}
    with torch.inference_mode():
        return [
            *EXPECTED.compare(name, recorded, wanted, tolerance),
            *INPUTS.compare(name, recorded, computed, tolerance),
        ]


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadReference(f"{path}: damaged or not a safetensors file ({error})") from error


def _masks(lm: DiffusionLM, kind: str) -> tuple[str, ...]:
    """The ways a user can ask for a mask: by its name, and by none where it is the family's own."""
    return (kind, "auto") if lm.family.attention == kind else (kind,)


def _positions(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape[0], -1)


def _mask_of(lm: DiffusionLM, forward: Callable[[], Any]) -> Tensor:
    """The attention mask that the network is given by a forward."""
    seen: list[Tensor] = []
    hook = lm.model.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["attention_mask"]), with_kwargs=True
    )
    try:
        forward()
    finally:
        hook.remove()
    return seen[0]


def _router_of(recorded: Recorded, layer: int) -> tuple[Tensor, Tensor]:
    """Router logits [B, L, E] and chosen experts [B, L, k] of a layer, under the family's own mask."""
    lm, ids = recorded.lm, recorded.take("input_ids")
    blocks = lm.model.model.layers
    gate = getattr(blocks[layer].mlp, "gate", None) if layer < len(blocks) else None
    if gate is None:
        raise ValueError(f"layer {layer} of this model has no router")
    seen: list[Any] = []
    hook = gate.register_forward_hook(lambda module, args, output: seen.append(output))
    try:
        lm.hidden(ids)
    finally:
        hook.remove()
    logits, _, chosen = seen[0]
    return logits.reshape(*ids.shape, -1), chosen.reshape(*ids.shape, -1)


# Logits


@EXPECTED.add(r"logits_(?P<mask>full|block_causal|causal)(?P<aligned>_aligned)?")
def _plain(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    lm, ids = recorded.lm, recorded.take("input_ids")
    for mask in _masks(lm, match["mask"]):
        yield Found(lm.logits(ids, mask=mask, aligned=bool(match["aligned"])))


@EXPECTED.add(r"logits_(?P<side>left|right)pad(?P<blocks>_block_causal)?(?P<aligned>_aligned)?")
def _padded(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    lm, side = recorded.lm, match["side"]
    ids, attention_mask = recorded.take(f"input_ids_{side}pad"), recorded.take(f"attention_mask_{side}pad")
    real = attention_mask != 0
    if match["aligned"] and lm.family.shift:
        # The first real token has no predecessor that could score it.
        real = real & (attention_mask.cumsum(-1) > lm.family.shift)
    for mask in _masks(lm, BLOCK_CAUSAL if match["blocks"] else FULL):
        logits = lm.logits(ids, attention_mask=attention_mask, mask=mask, aligned=bool(match["aligned"]))
        yield Found(logits, real=real)


@EXPECTED.add(r"logits_(?P<kind>prefix|dual)_cache")
def _window(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    """A full forward stores everything; then only a window is fed again, with other tokens in it."""
    lm, ids, later = recorded.lm, recorded.take("input_ids"), recorded.take("input_ids_step1")
    start, end = recorded.take("block_range").tolist()
    place = _positions(ids)
    cache, rows = PositionCache(ids.shape[0], ids.shape[1], lm.model.config), torch.arange(ids.shape[0])
    cache.aim(rows.to(ids.device), place, ids.shape[1])
    lm.logits(ids, mask=FULL, position_ids=place, cache=cache)
    window = slice(start, end if match["kind"] == "dual" else None)
    cache.aim(rows.to(ids.device), place[:, window], ids.shape[1])
    fed = {"mask": FULL, "position_ids": place[:, window], "cache": cache, "aligned": False}
    yield Found(lm.logits(later[:, window], **fed))


@EXPECTED.add(r"logits_cache_block(?P<number>\d*)")
def _block(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    """Clean blocks are stored; the block after them is denoised, and a later step overwrites what an earlier stored."""
    lm, ids, clean = recorded.lm, recorded.take("input_ids"), recorded.take("clean_ids")
    first, first_end = recorded.take("block_range").tolist()
    start = first + (int(match["number"] or 1) - 1) * (first_end - first)
    end = start + first_end - first
    place = _positions(ids)
    cache, rows = PositionCache(ids.shape[0], ids.shape[1], lm.model.config), torch.arange(ids.shape[0])

    def feed(tokens: Tensor, begin: int, stop: int) -> Tensor:
        cache.aim(rows.to(ids.device), place[:, begin:stop], stop)
        options = {"mask": BLOCK_CAUSAL, "position_ids": place[:, begin:stop], "cache": cache, "aligned": False}
        return lm.logits(tokens[:, begin:stop], **options)

    feed(clean, 0, start)
    feed(torch.full_like(ids, lm.mask_token_id if 0 <= lm.mask_token_id < lm.vocab_size else 0), start, end)
    yield Found(feed(ids, start, end))


@EXPECTED.add("logprob_clean")
def _logprob(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    lm, clean = recorded.lm, recorded.take("clean_ids")
    states = lm.hidden(recorded.take("input_ids"))
    yield Found(token_logprob(states.flatten(0, 1), lm.head_weight, clean.flatten()).logps.reshape(clean.shape))


# The doubled training layout


def _halves(recorded: Recorded) -> tuple[Tensor, Tensor]:
    return recorded.take("train_noisy_ids", "input_ids"), recorded.take("clean_ids")


@EXPECTED.add("train_logits_doubled")
def _doubled(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    lm, (noisy, clean) = recorded.lm, _halves(recorded)
    place = _positions(clean)
    mask = doubled_mask(place, place, lm.block_length)
    both = lm.logits(torch.cat([noisy, clean], 1), mask=mask, position_ids=torch.cat([place, place], 1))
    yield Found(both)
    width = noisy.shape[1]
    yield Found(lm.head(lm.doubled(noisy, clean)), part=(slice(None), slice(0, width)))
    yield Found(lm.logits(clean, mask=BLOCK_CAUSAL), part=(slice(None), slice(width, None)))


def _token_loss(recorded: Recorded) -> Tensor:
    lm, (noisy, clean) = recorded.lm, _halves(recorded)
    target = recorded.take("train_target_mask") != 0
    states = lm.doubled(noisy, clean, positions=target)
    return -token_logprob(states, lm.head_weight, clean[target]).logps / recorded.take("train_p_mask")[target]


@EXPECTED.add("train_token_loss")
def _losses(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    yield Found(_token_loss(recorded))


@EXPECTED.add("train_loss")
def _loss(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    yield Found((_token_loss(recorded).sum() / (recorded.take("train_labels") != -100).sum())[None])


# Routers


@EXPECTED.add(r"router_logits_layer(?P<layer>\d+)")
def _router(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    yield Found(_router_of(recorded, int(match["layer"]))[0])


@INPUTS.add(r"router_topk_layer(?P<layer>\d+)")
def _experts(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    def other_share(found: Tensor, wanted: Tensor) -> Tensor:
        """Share of a token's recorded experts that were not chosen here [B, L]; their order says nothing."""
        return 1 - (wanted[..., :, None] == found[..., None, :]).any(-1).double().mean(-1)

    yield Found(_router_of(recorded, int(match["layer"]))[1], distance=other_share)


# Masks: what the network is given


@INPUTS.add("mask_block_causal")
def _block_mask(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    lm, ids = recorded.lm, recorded.take("input_ids")
    yield Found(_mask_of(lm, lambda: lm.hidden(ids, mask=BLOCK_CAUSAL)), exact=True)


@INPUTS.add("mask_(?P<side>left|right)pad_block_causal")
def _padded_mask(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    lm, ids = recorded.lm, recorded.take(f"input_ids_{match['side']}pad")
    real = recorded.take(f"attention_mask_{match['side']}pad")
    found = _mask_of(lm, lambda: lm.hidden(ids, attention_mask=real, mask=BLOCK_CAUSAL))
    yield Found(found, real=(real != 0)[:, None], exact=True)


@INPUTS.add("train_mask_doubled")
def _training_mask(recorded: Recorded, match: re.Match[str]) -> Iterator[Found]:
    lm, (noisy, clean) = recorded.lm, _halves(recorded)
    yield Found(_mask_of(lm, lambda: lm.doubled(noisy, clean)), exact=True)
