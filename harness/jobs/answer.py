"""Answer one prompt and show how the answer was denoised."""

from __future__ import annotations

from pathlib import Path

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.randomness import stream_seed

#: Stands for a position that is still masked.
MASK = "░"


def answer(
    source: tuple[str, str],
    prompt: str,
    decoder: DecoderConfig,
    *,
    seed: int,
    device: str,
    system: str | None = None,
    trace: bool = False,
) -> str:
    """Decode one prompt.

    Args:
        source: (folder, family).
        prompt: user message.
        decoder: with `gen_length`.
        seed: of the draws.
        device: torch device.
        system: system message.
        trace: show each forward.

    Returns:
        The answer, or the denoising followed by the answer and its cost.
    """
    from dare_bench.dare.decoding.dispatch import generate
    from dare_bench.dare.families.loading import load

    folder, family = source
    lm = load(folder, family=family, device=device, dtype="float32" if device == "cpu" else "auto")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    seeds = [stream_seed(seed, "decode", "prompt", 0)]
    found = generate(lm, [lm.encode_chat(messages)], decoder, seeds, batch_size=1)[0]
    text = lm.decode(found.text_ids)
    if not trace:
        return text
    pieces = lm.chat.pieces(found.token_ids) if lm.chat else [str(token) for token in found.token_ids]
    return "\n".join([*denoising(found, pieces), "", f"answer: {text}", cost_line(found)])


def random_folder(source: str, parent: Path) -> str:
    """Make a random checkpoint.

    Args:
        source: ``random:<family>``.
        parent: folder to put it in.
    """
    from dare_bench.dare.training.random_checkpoint import ensure

    return str(ensure(source, parent))


def denoising(found: Generation, pieces: list[str]) -> list[str]:
    """One line per forward: the canvas after it, new tokens in brackets, masked positions as blocks.

    Args:
        found: one answer with its step map.
        pieces: text of each token.
    """
    lines = []
    width = len(str(max(len(found.kinds) - 1, 0)))
    for step, kind in enumerate(found.kinds):
        shown = []
        for when, piece in zip(found.step_map, pieces, strict=True):
            text = piece.replace("\n", "\\n")
            shown.append(MASK if when < 0 or when > step else f"[{text}]" if when == step else text)
        lines.append(f"{step:>{width}}  {kind:<16}  {_cut_masks(shown)}")
    return lines


def _cut_masks(shown: list[str]) -> str:
    """The canvas as text; a long masked tail is counted instead of drawn."""
    last = max((index for index, piece in enumerate(shown) if piece != MASK), default=-1)
    tail = len(shown) - last - 1
    return "".join(shown[: last + 1]) + (MASK * tail if tail <= 8 else f"{MASK}×{tail}")


def cost_line(found: Generation) -> str:
    """Forwards, tokens and how the answer ended."""
    cost = found.cost
    per = cost.tokens_text / cost.nfe if cost.nfe else 0.0
    return f"{cost.nfe} forwards, {cost.tokens_text} tokens ({per:.2f} per forward), ended by {found.finish_reason}"
