"""Self-distillation within a group: what the better responses chose, as soft targets of the state they share."""

from __future__ import annotations

import torch
from torch import Tensor


def distillation(new: Tensor, targets: Tensor, active: Tensor, advantage: Tensor, tau: float) -> Tensor:
    """KL of the better siblings' tokens to the parent's prediction, mean over places.

    Children of positive advantage have weights softmax(advantage / tau). At a place q(v) is the share of those that
    committed the token v among those that committed any; the term is sum q (log q - logp).

    Args:
        new: float [N, S, K], log-probabilities of the children's tokens in the parent's state.
        targets: int64 [N, S, K].
        active: bool [N, K, S].
        advantage: float [N, K].
        tau: temperature.

    Returns:
        Scalar; 0 without such a child.
    """
    kept = advantage > 0
    weight = torch.where(kept, advantage.double() / tau, -torch.inf).softmax(1).nan_to_num(0.0)
    present = (active & kept[..., None]).transpose(1, 2)
    share = torch.where(present, weight[:, None, :], 0.0)
    share = share / share.sum(2, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
    same = (targets[..., :, None] == targets[..., None, :]) & present[..., None, :]
    q = torch.where(same, share[..., None, :], 0.0).sum(3)  # mass of the token a child committed
    log_q = torch.where(present, q, 1.0).clamp(min=torch.finfo(q.dtype).tiny).log()
    # Summed over children, with their shares: equal tokens add up to their mass.
    term = torch.where(present, share * (log_q - torch.where(present, new, 0.0)), 0.0).sum(2)
    return term.sum() / present.any(2).sum().clamp(min=1)
