"""Published decoders under names: fields of `DecoderConfig`, as data. Imports no torch.

A manifest's decoder takes a preset and overrides its fields: ``{name: fast, preset: fastdllm_dual, block_length: 16}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.dare.families.registry import UnknownName


@dataclass(frozen=True)
class Preset:
    """A published decoder.

    Attributes:
        name: what a manifest calls it.
        summary: one line.
        source: who published it.
        families: it was published for; it runs on others of the same attention too.
        fields: of `DecoderConfig`; what is left out is the model's default.
    """

    name: str
    summary: str
    source: str
    families: tuple[str, ...]
    fields: Mapping[str, Any]


_PRESETS: dict[str, Preset] = {}
LLADA, DREAM, SDAR, LLADA2 = ("llada", "llada_moe"), ("dream",), ("sdar", "sdar_moe"), ("llada2_moe",)

#: Samplers of full attention fill their canvas.
_FILLS: dict[str, Any] = {"cache": "none", "early_stop": False}


def _add(name: str, families: tuple[str, ...], source: str, summary: str, **fields: Any) -> None:
    _PRESETS[name] = Preset(name, summary, source, families, fields)


def presets() -> dict[str, Preset]:
    """All presets by name."""
    return dict(sorted(_PRESETS.items()))


def get(name: str) -> Preset:
    """A preset.

    Raises:
        UnknownName: with the known names.
    """
    if name not in _PRESETS:
        raise UnknownName("preset", name, sorted(_PRESETS))
    return _PRESETS[name]


# LLaDA: temperature 0, one token per step, an end token may be chosen anywhere.

_GSAI = "ML-GSAI/LLaDA generate.py, EVAL.md"
_add(
    "llada_official", LLADA, _GSAI, "The most confident tokens of each block, as many as its steps ask for.",
    selector="low_confidence", scheduler="quota", **_FILLS,
)  # fmt: skip
_add(
    "llada_random", LLADA, _GSAI, "Random positions of each block, as many as its steps ask for.",
    selector="random", scheduler="quota", **_FILLS,
)  # fmt: skip
for _name, _gen, _block, _rule, _said in (
    ("llada_gsm8k", 256, 8, "plain", "Semi-autoregressive setting of LLaDA-8B for GSM8K."),
    ("llada_math", 512, 64, "plain", "Semi-autoregressive setting of LLaDA-8B for MATH."),
    ("llada_pure_512", 512, 512, "last", "One block of 512; end tokens come last (LLaDA-8B: GSM8K, MATH)."),
    ("llada_pure_256", 256, 256, "last", "One block of 256; end tokens come last (LLaDA-8B: MBPP)."),
    ("llada_humaneval", 512, 512, "never", "One block of 512 without end tokens (LLaDA-8B: HumanEval)."),
    ("llada1.5_gsm8k", 256, 16, "last", "Setting of LLaDA-1.5 for GSM8K."),
    ("llada1.5_math", 1024, 128, "last", "Setting of LLaDA-1.5 for MATH."),
):
    _add(
        _name, LLADA, _GSAI, _said,
        selector="low_confidence", scheduler="quota", gen_length=_gen, block_length=_block, eos_rule=_rule, **_FILLS,
    )  # fmt: skip

# Fast-dLLM: blocks of 32, threshold 0.9.

_NVLABS = "NVlabs/Fast-dLLM, arXiv 2505.22618"
for _cache, _said in (
    ("none", "no cache"),
    ("prefix", "keys and values before the block are kept"),
    ("dual", "keys and values on both sides of the block are kept"),
):
    _kept: dict[str, Any] = {"cache": _cache, "early_stop": False, "block_length": 32}
    _add(
        f"fastdllm_{_cache}", LLADA, _NVLABS, f"Every token above 0.9 and always the best one; {_said}.",
        selector="threshold", selector_options={"threshold": 0.9}, **_kept,
    )  # fmt: skip
    _add(
        f"fastdllm_factor_{_cache}", LLADA, _NVLABS, f"As many as the factor rule allows (factor 1); {_said}.",
        selector="factor", selector_options={"factor": 1.0}, **_kept,
    )  # fmt: skip
# One block of all tokens, one step per token: a smaller gen_length makes both smaller.
_DREAM_BLOCK = {"gen_length": 512, "block_length": 512}
_add(
    "fastdllm_dream_none", DREAM, _NVLABS, "Of the tokens that are due in a step, those above 0.9 and the best one.",
    selector="threshold", selector_options={"threshold": 0.9, "within_quota": True}, scheduler="cumulative",
    confidence="filtered", **_DREAM_BLOCK, **_FILLS,
)  # fmt: skip
for _cache in ("prefix", "dual"):
    _add(
        f"fastdllm_dream_{_cache}", DREAM, _NVLABS,
        f"Every token above 0.9 and always the best one; cache {_cache}, as published for shifted logits.",
        selector="threshold", selector_options={"threshold": 0.9}, confidence="filtered", cache=_cache,
        block_length=32, early_stop=False, compat={"dream_window": {}},
    )  # fmt: skip

# Dream: one block, steps of a linear time grid, sampled tokens.

_HUB = "Dream-org/Dream-v0-Instruct-7B generation_utils.py"
_TIMES = {"scheduler": "timesteps", "scheduler_options": {"eps": 1e-3}, "confidence": "filtered", **_DREAM_BLOCK}
_SAMPLED = {"temperature": 0.2, "top_p": 0.95}
_add(
    "dream_official", DREAM, _HUB, "Lowest entropy first, temperature 0.2, top-p 0.95: recommended for the chat model.",
    selector="entropy", **_TIMES, **_SAMPLED, **_FILLS,
)  # fmt: skip
for _name, _said in (
    ("maskgit_plus", "Highest probability first."),
    ("topk_margin", "Largest margin between the two best tokens first."),
    ("origin", "Every masked position with the same chance."),
):
    _add(f"dream_{_name}", DREAM, _HUB, _said, selector=_name, **_TIMES, **_FILLS)

# SDAR: the checkpoint's block length, greedy.

_JETASTRA = "JetAstra/SDAR generate.py, arXiv 2510.06303"
_add(
    "sdar_static", SDAR, _JETASTRA, "The most confident tokens of each block, as many as its steps ask for.",
    selector="low_confidence", scheduler="quota",
)  # fmt: skip
_add(
    "sdar_dynamic", SDAR, _JETASTRA, "Every token above 0.85, and never fewer than a step's share.",
    selector="threshold", selector_options={"threshold": 0.85},
)  # fmt: skip
_add("sdar_sequential", SDAR, _JETASTRA, "Tokens of each block from left to right.", selector="sequential")
_add(
    "sdar_entropy_bounded", SDAR, _JETASTRA, "The tokens of lowest entropy, up to a sum of 0.35.",
    selector="entropy_bounded", selector_options={"threshold": 0.35},
)  # fmt: skip

# LLaDA2

_add(
    "llada2.0", LLADA2, "inclusionAI/LLaDA2.0-mini, arXiv 2512.15745",
    "Every token above 0.95, and never fewer than a step's share.",
    selector="threshold", selector_options={"threshold": 0.95}, block_length=32, steps_per_block=32,
)  # fmt: skip
for _name, _threshold, _edit, _said in (
    ("quality", 0.7, 0.5, "Tokens above 0.7; committed ones are replaced by others above 0.5."),
    ("speed", 0.5, 0.0, "Tokens above 0.5; committed ones are replaced whenever another is the best."),
):
    _add(
        f"llada2.1_{_name}", LLADA2, "inclusionAI/LLaDA2.1-mini, arXiv 2602.08676", _said,
        selector="threshold", selector_options={"threshold": _threshold, "at_least": 1}, block_length=32,
        editor="token_editing", editor_options={"threshold": _edit, "max_post_steps": 16},
    )  # fmt: skip

# dInfer

_DINFER = "inclusionAI/dInfer, arXiv 2510.08666"
_DINFER_BLOCK: dict[str, Any] = {"block_length": 32, "early_stop": True}
_add(
    "dinfer_threshold", LLADA, _DINFER, "Every token above 0.9 and always the best one; dual cache.",
    selector="threshold", selector_options={"threshold": 0.9}, cache="dual", **_DINFER_BLOCK,
)  # fmt: skip
_add(
    "dinfer_hierarchy", LLADA, _DINFER, "Also the best token of every run of masks if it is above 0.4; dual cache.",
    selector="hierarchy", selector_options={"threshold": 0.9, "low_threshold": 0.4}, cache="dual", **_DINFER_BLOCK,
)  # fmt: skip
_add(
    "dinfer_credit", LLADA, f"{_DINFER}, 2510.06133", "Confidence grows with every forward that agrees; dual cache.",
    selector="threshold", selector_options={"threshold": 0.9}, cache="dual", weighting="credit",
    weighting_options={"alpha": 0.7, "gamma": 0.2, "decay": 0.8}, **_DINFER_BLOCK,
)  # fmt: skip
_add(
    "dinfer_vicinity", LLADA, _DINFER, "Every token above 0.9; 16 positions beside the block are kept fresh.",
    selector="threshold", selector_options={"threshold": 0.9}, cache="vicinity",
    cache_options={"prefix_look": 16, "after_look": 16, "warmup_steps": 4}, **_DINFER_BLOCK,
)  # fmt: skip

# EOSER and ASS

_YJYDDQ = "yjyddq/EOSER-ASS-RL, arXiv 2509.23924"
_WEIGHTED: dict[str, Any] = {"weighting": "eoser", "weighting_options": {"min_gamma": 0.4, "max_gamma": 1.0}}
_add(
    "eoser", LLADA, _YJYDDQ, "End tokens count less at first (from 0.4 to 1).",
    selector="low_confidence", scheduler="quota", **_WEIGHTED, **_FILLS,
)  # fmt: skip
_add(
    "ass", LLADA, _YJYDDQ, "Steps of 1, 2, 4, ... tokens over one block of 256.",
    selector="low_confidence", scheduler="ass", scheduler_options={"blocks": 1}, gen_length=256, block_length=256,
    **_FILLS,
)  # fmt: skip
_add(
    "eoser_ass", LLADA, _YJYDDQ, "Steps of 1, 2, 4, ... tokens over one block of 256; end tokens count less at first.",
    selector="low_confidence", scheduler="ass", scheduler_options={"blocks": 1}, gen_length=256, block_length=256,
    weighting="eoser", weighting_options={"min_gamma": 0.01, "max_gamma": 1.0, "schedule": "doubling"}, **_FILLS,
)  # fmt: skip
