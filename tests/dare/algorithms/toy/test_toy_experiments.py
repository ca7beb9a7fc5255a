"""Every algorithm raises the reward (or lowers the loss) of its experiment over three seeds; shuffled advantages do not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import toy_experiments as toys

SEEDS = (0, 1, 2)
Runs = Callable[..., list[toys.Outcome]]
NAMES = toys.experiments()
SUPERVISED = [name for name in NAMES if toys.needs(name).rollout == "none" and not toys.needs(name).pairs]
PAIRS = [name for name in NAMES if toys.needs(name).pairs]
COPIED = [name for name in NAMES if toys.of(name).task is toys.COPY and name not in SUPERVISED + PAIRS]
COUNTED = [name for name in NAMES if toys.of(name).task is toys.COUNT]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """The outcomes of three seeds, two at a time."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:

        def go(name: str, *, control: bool = False) -> list[toys.Outcome]:
            return [job.result() for job in [pool.submit(toys.run, name, seed, control=control) for seed in SEEDS]]

        yield go


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_every_algorithm_has_an_experiment() -> None:
    assert sorted(SUPERVISED + PAIRS + COPIED + COUNTED) == sorted(NAMES)
    assert {name.split(",")[0] for name in NAMES} == toys.trainable()


@pytest.mark.toy
@pytest.mark.parametrize("name", SUPERVISED)
def test_the_loss_falls_and_greedy_decoding_is_right(runs: Runs, name: str) -> None:
    for outcome in runs(name):
        assert outcome.first > 1.0
        assert outcome.last < 0.1
        assert outcome.values["before"] < 0.3
        assert outcome.values["accuracy"] > 0.95


@pytest.mark.toy
@pytest.mark.parametrize("name", PAIRS)
def test_preferences_are_learned(runs: Runs, name: str) -> None:
    for outcome in runs(name):
        if name == "vrpo":  # the policy is its reference, and noise is shared
            assert outcome.values["initial"] == pytest.approx(0.6931, abs=1e-4)
        assert outcome.last < outcome.first - 0.1
        assert outcome.values["held-out accuracy"] > 0.9
        assert outcome.values["held-out margin"] > 0.3
        assert outcome.values["accuracy"] >= outcome.values["before"] - 0.02


@pytest.mark.toy
@pytest.mark.parametrize("name", COPIED)
def test_the_reward_rises_and_shuffled_advantages_do_not_raise_it(runs: Runs, name: str) -> None:
    trained, control = runs(name), runs(name, control=True)
    for outcome in trained:
        assert outcome.last > toys.of(name).bound
        assert outcome.last > 2 * mean([other.last for other in control])


@pytest.mark.toy
@pytest.mark.parametrize("name", COUNTED)
def test_the_mean_reward_rises(runs: Runs, name: str) -> None:
    found = runs(name)
    assert mean([outcome.last for outcome in found]) >= toys.of(name).bound
    assert mean([outcome.last - outcome.first for outcome in found]) >= 0.15
