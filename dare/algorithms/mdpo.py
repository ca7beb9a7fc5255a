"""MDPO: every denoising step is rewarded by what its guess is worth, the steps that matter most are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dare_bench.dare.algorithms.base import Batch, Context, Needs, Rows, Steps
from dare_bench.dare.algorithms.options import ClipOptions, check_choice, check_range
from dare_bench.dare.algorithms.policy import GroupPolicy, clipped_rows, weighted_sum
from dare_bench.dare.algorithms.registry import register
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from dare_bench.dare.algorithms import advantages as group
    from dare_bench.dare.diffusion import block
    from torch import Tensor
else:
    torch = lazy_import("torch")
    group = lazy_import("dare_bench.dare.algorithms.advantages")
    block = lazy_import("dare_bench.dare.diffusion.block")

#: Added to temperatures and counts by the published code.
_TEMPERATURE_EPS, _COUNT_EPS = 2.0**-23, 1e-4


@dataclass(frozen=True)
class MDPOConfig(ClipOptions):
    """Options of `mdpo`, beside those of every clipped policy gradient.

    Attributes:
        temperature: of the rollout, positive.
        advantage: within the group, step by step.
        counted: ``canvas`` = all masked places count (all published numbers); ``eos`` = those of the final response
            through its stop token.
        kl: estimate of the KL, by default half the square.
        kept_steps: steps that are trained on (K), per prompt those with the largest sum of absolute advantages; more than
            there are = all.
        delta: added to the group's standard deviation.
        scored_at: ``rollout`` = log-probabilities at the temperature of the rollout; ``one`` = at temperature 1.
        lambda_floor: weight of the policy term, canvas length / masks: ``added`` = 1e-4 added to the masks, ``one`` = at
            least one mask.
        drop_first_dream: leave the first place of responses out of the loss, as the published code does on Dream (only
            there); lambda counts it all the same.
        remask: running-confidence remasking in the rollout: tokens committed with low confidence may be masked again.
    """

    advantage: str = "std"
    counted: str = "canvas"
    kl: str = "k2"
    kept_steps: int = 8
    delta: float = 1e-4
    scored_at: str = "rollout"
    lambda_floor: str = "added"
    drop_first_dream: bool = False
    remask: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, {"kept_steps": (1, float("inf")), "delta": (0, 1)})
        check_choice(self, {"scored_at": ("rollout", "one"), "lambda_floor": ("added", "one")})
        if self.temperature == 0 and self.scored_at == "rollout":
            raise ValueError(f"temperature: {self.temperature!r}; allowed: positive, or any with scored_at: 'one'")


@register(
    "mdpo",
    families={"dream", "llada", "llada_moe"},
    config=MDPOConfig,
    presets={
        "paper": {"advantage": "std", "counted": "canvas", "kl": "k2"},
        "repo": {"group_size": 8, "temperature": 0.4, "beta": 0.02, "eps_low": 0.2, "kept_steps": 8},
        "dare": {"group_size": 8, "temperature": 0.6, "eps_low": 0.2, "kept_steps": 16, "delta": 1e-6,
                 "scored_at": "one", "lambda_floor": "one"},
    },
    train_presets={
        "repo": {"lr": 7e-7, "batch_size": 2},
        "dare": {"lr": 5e-7, "betas": (0.9, 0.999), "weight_decay": 0.01, "grad_clip": 1.0, "batch_size": 16},
    },
)  # fmt: skip
class MDPO(GroupPolicy):
    """MDPO: clipped policy gradient on the denoising steps of largest advantage, all guesses of a step scored at once.

    A step's advantage is the gain of its guess over the one before, plus the mean reward of the later ones, normalised
    over the group. The loss of a step is the mean over its masks of all responses of the group, weighted by the confidence
    of the guesses; the loss is the mean over kept steps and prompts.

    Published settings: 512 tokens in one block with 128 steps (DARE: blocks of 32, half as many steps as tokens),
    schedulers ``linear``, ``cosine``, ``quota``, selectors ``low_confidence``, ``entropy``, ``topk_margin``, ``random``.

    Source:
        arXiv 2508.13148; autonomousvision/mdpo `mdpo_trainer.py`; yjyddq/DARE `mdpo_algos.py`.
    """

    name = "mdpo"
    needs = Needs(rollout="policy", trace="states", old=True, ref="frozen")
    separable = True
    Config = MDPOConfig

    def advantages(self, batch: Batch) -> Tensor:
        """Advantages of all steps, float [B, T]."""
        raw = step_advantages(_steps(batch).rewards)
        kind, delta = self.config.advantage, self.config.delta
        return torch.stack([group.group_advantages(now, batch.groups, kind, delta=delta) for now in raw.T], 1)

    def selected(self, batch: Batch) -> Tensor:
        """The kept steps of each response's prompt, int64 [B, K], earliest first; equal sums: the earlier step."""
        _, index = batch.groups.unique(return_inverse=True)
        size = self.advantages(batch).abs()
        sums = size.new_zeros(int(index.max()) + 1, size.shape[1]).index_add(0, index, size)
        best = sums.argsort(dim=1, descending=True, stable=True)[:, : self.config.kept_steps]
        return best.sort(1).values[index]

    def masked(self, batch: Batch, owner: Tensor, steps: Tensor) -> Tensor:
        """Masks that count of some responses (int64 [N]) at some steps (int64 [N]), bool [N, S]."""
        return (_steps(batch).inputs[owner, steps] == batch.mask_token_id) & self.counted(batch)[owner]

    def rows(self, batch: Batch, context: Context) -> Iterator[Rows]:
        """One row per response and kept step, a part per rank of the step; no random draws."""
        traced, selected = _steps(batch), self.selected(batch)
        _, index, sizes = batch.groups.unique(return_inverse=True, return_counts=True)
        everyone = torch.arange(len(index))
        first = torch.arange(batch.ids.shape[1]) == batch.prompt_lengths[:, None]
        for step in selected.T:
            mask = self.masked(batch, everyone, step)
            if self.config.drop_first_dream:
                mask = mask & ~first
            masks = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, index, mask.sum(1).double())
            share = 1 / ((masks + _COUNT_EPS) * len(sizes) * selected.shape[1])
            weight = traced.confidence[everyone, step].double() * share[index][:, None]
            rows = block.rows_from(batch, traced.inputs[everyone, step], mask, torch.where(mask, weight, 0.0))
            yield replace(
                rows,
                targets=traced.guesses[everyone, step].unsqueeze(-1),
                draw=step.clone(),
                temperature=1.0 if self.config.scored_at == "one" else self.config.temperature + _TEMPERATURE_EPS,
            )

    def scale(self, batch: Batch, owner: Tensor, steps: Tensor) -> Tensor:
        """Weight lambda of the policy term, canvas length / masks, of responses [N] at steps [N], float64 [N]."""
        masks = self.masked(batch, owner, steps).sum(1).double()
        masks = masks.clamp(min=1) if self.config.lambda_floor == "one" else masks + _COUNT_EPS
        return (batch.lengths - batch.prompt_lengths)[owner] / masks

    def loss(
        self, new: Tensor, old: Tensor | None, ref: Tensor | None, rows: Rows, advantages: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Clipped surrogate times lambda + beta x KL, summed with the rows' weights, which hold all means."""
        assert context.batch is not None, "the weight of a step needs the batch"
        scale = self.scale(context.batch, rows.owner.cpu(), rows.draw.cpu()).to(new.device)
        # Clipping is linear in the advantage: scaled advantages leave the KL as it is.
        per_token, metrics = clipped_rows(new, old, ref, rows, advantages[rows.owner, rows.draw] * scale, self.config)
        loss = weighted_sum(per_token, rows)
        return loss, metrics | {"loss": float(loss.detach())}


def step_advantages(rewards: Tensor) -> Tensor:
    """Raw advantages of denoising steps: gain over the step before + 1 + mean of the later rewards.

    Args:
        rewards: float [B, T], of the guess of each step.

    Returns:
        float [B, T]. The last step has no later one: its own reward stands in.
    """
    before = torch.nn.functional.pad(rewards[:, :-1], (1, 0))
    later = (rewards.flip(1).cumsum(1).flip(1) - rewards)[:, :-1]
    count = torch.arange(rewards.shape[1] - 1, 0, -1, dtype=rewards.dtype, device=rewards.device)
    return rewards - before + 1 + torch.cat([later / count, rewards[:, -1:]], 1)


def _steps(batch: Batch) -> Steps:
    if batch.trace is None or batch.trace.steps is None:
        raise ValueError(
            "trace: no denoising steps; mdpo trains on them: allowed is a batch of a rollout that kept them"
        )
    return batch.trace.steps
