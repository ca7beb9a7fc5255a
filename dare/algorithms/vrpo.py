"""VRPO: preference optimisation on ELBO estimates of low variance (LLaDA 1.5, arXiv 2505.19223)."""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.dare.algorithms.preference import ELBOPreference, PreferenceOptions
from dare_bench.dare.algorithms.registry import register


@dataclass(frozen=True)
class VRPOConfig(PreferenceOptions):
    """Options of `vrpo`; see `PreferenceOptions`."""

    sft_weight: float = 0.05


@register(
    "vrpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=VRPOConfig,
    presets={
        "paper": {"beta": 0.2, "draws": 8, "masks_per_count": 1, "shared_noise": True, "sft_weight": 0.05},
        "dare": {"beta": 0.2, "draws": 4, "masks_per_count": 1, "shared_noise": True, "sft_weight": 0.0,
                 "elbo_norm": "padded_length", "padded_length": 512},
    },
    train_presets={
        "paper": {"lr": 5e-7, "betas": (0.9, 0.95), "weight_decay": 0.01, "warmup_steps": 15, "schedule": "cosine",
                  "batch_size": 64},
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "batch_size": 64},
    },
)  # fmt: skip
class VRPO(ELBOPreference):
    """VRPO: more draws, one mask per count, policy and reference on the same masks; pairs of chosen and rejected answers.

    `dare` divides estimates by 512 tokens: its effective beta is 4e-4. On block families the doubled layout is read, and
    the draws over the whole response are unbiased for the sum of the blocks' ELBOs.

    Source:
        arXiv 2505.19223 (no training code is published); mask counts of ML-GSAI/LLaDA `get_log_likelihood.py`.
    """

    name = "vrpo"
    Config = VRPOConfig
