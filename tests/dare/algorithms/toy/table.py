"""Prints first -> last per algorithm and seed: `python tests/dare/algorithms/toy/table.py [name ...]`, in two processes."""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import toy_experiments as experiments

SEEDS = (0, 1, 2)


def timed(name: str, seed: int, control: bool) -> tuple[experiments.Outcome, float]:
    """One run and its seconds."""
    began = time.perf_counter()
    return experiments.run(name, seed, control=control), time.perf_counter() - began


def main(names: list[str]) -> None:
    chosen = names or experiments.experiments()
    jobs = [(name, control) for name in chosen for control in (False, True) if not control or name in CONTROLLED]
    began = time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = {job: [pool.submit(timed, job[0], seed, job[1]) for seed in SEEDS] for job in jobs}
        for (name, control), futures in runs.items():
            found = [future.result() for future in futures]
            shown = ", ".join(f"{outcome.first:.3f}->{outcome.last:.3f}" for outcome, _ in found)
            more = "; ".join(
                f"{key} {'/'.join(f'{outcome.values[key]:.3f}' for outcome, _ in found)}" for key in found[0][0].values
            )
            seconds = "/".join(f"{spent:.0f}" for _, spent in found)
            print(f"{name + (' (shuffled)' if control else ''):26} {shown}   {seconds} s   {more}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s in all")


#: Experiments with a control.
CONTROLLED = ("d1", "coupled_grpo", "mdpo", "cj_grpo")

if __name__ == "__main__":
    main(sys.argv[1:])
