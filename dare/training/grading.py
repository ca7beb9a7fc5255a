"""What rollouts are paid: reward functions called with the examples' columns, and the metrics of their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: TRL's signature: (prompts, completions, **columns) -> one float per completion, null = not this function's business.
RewardFunction = Callable[..., Sequence[float | None]]

#: What one function says about one response: the value, and the rule that decided ("" = not told).
Verdict = tuple[float | None, str]


def columns_of(rows: Sequence[Mapping[str, Any]], tokens_left: Sequence[int]) -> dict[str, list[Any]]:
    """The columns that reward functions get.

    Args:
        rows: columns of the example behind each response; the benchmarks of a mixed run have unlike ones.
        tokens_left: room that each response left unused.

    Returns:
        name -> one entry per response, null where its example has no such column.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names} | {"tokens_left": list(tokens_left)}


def grade(
    functions: Sequence[RewardFunction],
    prompts: Sequence[Any],
    texts: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
) -> list[list[Verdict]]:
    """Every function's verdict on every response.

    Args:
        functions: one that has `rules` after a call (one text per completion) has them in its verdicts.
        prompts: chat messages, one conversation per response.
        texts: responses.
        columns: see `columns_of`.

    Returns:
        One list per response, one verdict per function.
    """
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    by_function = []
    for function in functions:
        values = function(prompts=prompts, completions=completions, **columns)
        rules = getattr(function, "rules", None) or [""] * len(texts)
        by_function.append(
            [(None if v is None else float(v), str(rule)) for v, rule in zip(values, rules, strict=True)]
        )
    return [list(verdicts) for verdicts in zip(*by_function, strict=True)]


def combine(
    functions: Sequence[RewardFunction], weights: Sequence[float] | None, graded: Sequence[Sequence[Verdict]]
) -> tuple[list[float], dict[str, float]]:
    """The weighted sum per response, and what is logged.

    Args:
        functions: as of `grade`.
        weights: default 1 each; a null verdict is left out of the sum.
        graded: verdicts of all responses.

    Returns:
        (rewards, metrics): ``reward/NAME`` is the mean over the responses that the function judged (0 if none), and
        ``reward/NAME/RULE`` the share of them in which the rule decided.
    """
    factors = [1.0] * len(functions) if weights is None else list(weights)
    totals = [
        sum(factor * value for factor, (value, _) in zip(factors, verdicts, strict=True) if value is not None)
        for verdicts in graded
    ]
    metrics: dict[str, float] = {}
    for index, function in enumerate(functions):
        label = f"reward/{getattr(function, '__name__', 'reward')}"
        judged = [verdicts[index] for verdicts in graded if verdicts[index][0] is not None]
        metrics[label] = sum(value for value, _ in judged if value is not None) / max(1, len(judged))
        fired = Counter(rule for _, rule in judged if rule)
        metrics |= {f"{label}/{rule}": count / len(judged) for rule, count in sorted(fired.items())}
    return [float(total) for total in totals], metrics
