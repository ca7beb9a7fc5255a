"""Naive DPO of diffusion models: one mask per likelihood, drawn anew for the reference (baseline of arXiv 2505.19223)."""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.dare.algorithms.preference import ELBOPreference, PreferenceOptions
from dare_bench.dare.algorithms.registry import register


@dataclass(frozen=True)
class DPOConfig(PreferenceOptions):
    """Options of `dpo` on diffusion models; see `PreferenceOptions`."""

    draws: int = 1
    shared_noise: bool = False


@register(
    "dpo",
    families={"dream", "llada", "llada2_moe", "llada_moe", "sdar", "sdar_moe"},
    config=DPOConfig,
    presets={
        "paper": {"beta": 0.2, "draws": 1, "shared_noise": False},
        "llada2": {"beta": 0.1, "draws": 1, "shared_noise": True},
        "dare": {"beta": 0.2, "draws": 4, "shared_noise": True, "elbo_norm": "padded_length", "padded_length": 512},
    },
    train_presets={
        "paper": {"lr": 5e-7, "betas": (0.9, 0.95), "weight_decay": 0.01, "warmup_steps": 15, "schedule": "cosine",
                  "batch_size": 64},
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "batch_size": 64},
    },
)  # fmt: skip
class DPO(ELBOPreference):
    """DPO on one-sample ELBO estimates, without the variance reduction of `vrpo`: other masks for the reference.

    `llada2` is what the LLaDA2.0 report states (beta 0.1, one sample); that policy and reference share it is not stated.

    Source:
        arXiv 2305.18290 on estimates of arXiv 2505.19223.
    """

    name = "dpo"
    Config = DPOConfig
