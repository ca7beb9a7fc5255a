"""Selection by the shape of the predicted distribution: Dream's samplers and entropy budgets. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dare_bench.dare.decoding import schedulers
from dare_bench.dare.decoding.options import choice, number, or_null
from dare_bench.dare.decoding.selectors import BlockView, selector
from dare_bench.dare.lazy import lazy_import

if TYPE_CHECKING:
    from dare_bench.kernels import commit, select
    from torch import Tensor
else:
    commit = lazy_import("dare_bench.kernels.commit")
    select = lazy_import("dare_bench.kernels.select")

_ALG_TEMP = or_null(number("a number >= 0", lambda value: value >= 0, example=0.1))


def _best_or_drawn(view: BlockView, alg_temp: float | None) -> Tensor:
    """The best positions, or a draw without replacement from softmax(confidence / alg_temp), as the scheduler asks."""
    if not alg_temp:
        return commit.select_top(view.confidence, view.candidates, view.quota)
    scores = view.confidence / alg_temp
    if "torch_rng" in view.compat:
        assert view.draw is not None
        weights = scores.masked_fill(~view.candidates, float("-inf")).softmax(-1)
        return view.draw(weights.nan_to_num(nan=0.0), view.quota)
    assert view.uniform is not None
    # In log space, where no weight can vanish.
    return select.draw_without_replacement(scores, view.candidates, view.uniform(), view.quota)


@selector("maskgit_plus", alg_temp=_ALG_TEMP)
def maskgit_plus(view: BlockView, *, alg_temp: float | None) -> Tensor:
    """Commit by probability, as many as the scheduler asks for; drawn at random with an `alg_temp`.

    Source: Dream `generation_utils.py`.
    """
    return _best_or_drawn(view, alg_temp)


@selector("topk_margin", measure="margin", alg_temp=_ALG_TEMP)
def topk_margin(view: BlockView, *, alg_temp: float | None) -> Tensor:
    """Commit by the margin between the two best tokens, as many as the scheduler asks for.

    Source: Dream `generation_utils.py`.
    """
    return _best_or_drawn(view, alg_temp)


@selector("entropy", measure="entropy", alg_temp=_ALG_TEMP)
def entropy(view: BlockView, *, alg_temp: float | None) -> Tensor:
    """Commit the positions of lowest entropy, as many as the scheduler asks for.

    Source: Dream `generation_utils.py`.
    """
    return _best_or_drawn(view, alg_temp)


@selector("origin", eps=number("a number in [0, 1)", lambda value: 0 <= value < 1, default=1e-3))
def origin(view: BlockView, *, eps: float) -> Tensor:
    """Commit every position with the probability of Dream's time steps, and all of them in the last step.

    Source: Dream `generation_utils.py`. A step may commit nothing.
    """
    assert view.uniform is not None and view.step is not None and view.steps is not None
    return select.select_bernoulli(
        view.uniform(), view.candidates, schedulers.transfer_share(view.step, view.steps, eps)
    )


@selector(
    "entropy_bounded",
    needs_entropy=True,
    threshold=number("a positive number (nats)", lambda value: value > 0, example=0.35),
)
def entropy_bounded(view: BlockView, *, threshold: float) -> Tensor:
    """Commit positions from the lowest entropy up while their entropies sum to less than the threshold, at least one.

    Source: SDAR `entropy_bounded` as its JetEngine computes it; the published script cannot run.
    """
    assert view.entropy is not None
    return select.select_entropy_sum(view.entropy, view.candidates, threshold)


@selector(
    "eb",
    needs_entropy=True,
    gamma=number("a number >= 0 (nats)", lambda value: value >= 0, example=0.5),
    order=choice("entropy", "probability"),
)
def eb(view: BlockView, *, gamma: float, order: str) -> Tensor:
    """Commit the longest list, best first, whose entropies sum to at most gamma beyond the largest of them.

    Args:
        view: block.
        gamma: bound of the joint dependence error.
        order: best first by the lowest ``entropy`` or the highest ``probability``.

    Source: EB-sampler (arXiv 2505.24857).
    """
    assert view.entropy is not None and view.probability is not None
    error = view.entropy if order == "entropy" else -view.probability
    return select.select_entropy_bound(view.entropy, view.candidates, gamma, error=error)
