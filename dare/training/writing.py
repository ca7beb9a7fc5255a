"""Write trained weights, adapters or full, from one process or several."""

from __future__ import annotations

from pathlib import Path

from dare_bench.dare.families import loading
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.training import adapters, checkpoint, sharding
from dare_bench.dare.training.config import TrainConfig
from dare_bench.dare.training.world import ALONE, World


def write_weights(lm: DiffusionLM, config: TrainConfig, folder: Path, base: str, world: World = ALONE) -> None:
    """Write a checkpoint beside its place and move it there.

    Args:
        lm: the trained model.
        config: tells adapters from full weights.
        folder: of the checkpoint; another one there is replaced.
        base: name of an adapter's base.
        world: its first process writes; every process must call.
    """
    tensors = sharding.whole_state(lm.model)
    with sharding.gathered(lm):
        if world.leads:
            temporary = checkpoint.scratch(folder)
            if config.peft is not None:
                adapters.save_adapter(lm, temporary, config.peft, base)
            else:
                loading.save(lm, temporary, tensors=tensors)
            checkpoint.publish(temporary, folder)
    world.wait()
