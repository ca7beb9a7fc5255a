"""Make the tiny random checkpoints of `families.random_entries`: weights far from flat, a byte-level tokenizer."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from dare_bench.dare.families import loading, random_entries
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.families.registry import get_family
from dare_bench.dare.training.tokenizer import MASK, SPECIALS, train_tokenizer
from torch import Tensor

#: What the tokenizer's few merges come from.
_TEXT = (
    "user", "assistant", "system", "The answer is the number that is asked for, and the letter of the answer is in the box.",
    "There are more of them in the other one than in this one. How many are there in all, and which of these is the answer?",
)  # fmt: skip


def ensure(source: str, parent: Path) -> Path:
    """Folder of a random checkpoint, made if it is not there; two processes may ask at once.

    Args:
        source: ``random:FAMILY``.
        parent: folder of random checkpoints.
    """
    folder = parent / random_entries.folder_name(source)
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
    try:
        loading.save(make(source.removeprefix(random_entries.PREFIX)), beside)
        beside.chmod(0o755)  # mkdtemp's folders are private
        os.rename(beside, folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster, and its folder is the same
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def make(name: str) -> DiffusionLM:
    """A random model with its tokenizer, in float32; equal for equal `random_entries.VERSION`.

    Args:
        name: of the family.
    """
    family = get_family(name)
    specials = SPECIALS[name]
    text = [*_TEXT, *(word for line in _TEXT for word in line.split())]
    tokenizer = train_tokenizer(text, name, vocab_size=random_entries.VOCAB, chat_template=family.chat_template)
    assert len(tokenizer) == random_entries.VOCAB and set(specials) <= set(tokenizer.get_vocab())
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if name in MASK:
        ids["mask_token_id"] = tokenizer.mask_token_id
    lm = loading.from_config(name, {**random_entries.CONFIGS[name], **ids}, seed=random_entries.SEED)
    lm.tokenizer = tokenizer
    with torch.no_grad():
        for weight, values in _draws(lm):
            weight.copy_(torch.from_numpy(values))
    return lm


def _draws(lm: DiffusionLM) -> Iterator[tuple[Tensor, np.ndarray]]:
    """Every weight with its values; the scales keep activations near 1 and make logits spread by about 2."""
    # RandomState's streams are frozen, whatever the version of numpy; torch makes no such promise.
    stream = np.random.RandomState(random_entries.SEED)
    for name, weight in sorted(lm.model.named_parameters()):
        noise = stream.standard_normal(tuple(weight.shape))
        if name.endswith("bias"):
            yield weight, 0.3 * noise
        elif weight.dim() == 1:
            yield weight, 1 + 0.2 * noise
        elif "embed" in name:
            yield weight, noise
        else:
            yield weight, noise * (2.0 if name == "lm_head.weight" else 1.0) * weight.shape[-1] ** -0.5
    for name, buffer in sorted(lm.model.named_buffers()):
        if name.endswith("e_score_correction_bias"):  # of routers: decides which experts, not their weights
            yield buffer, 0.1 * stream.standard_normal(tuple(buffer.shape))
