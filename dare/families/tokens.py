"""Read a checkpoint's tokenizer without remote code."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_tokenizer(folder: Path) -> Any:
    """The folder's fast tokenizer, or None if it holds none."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(folder))
