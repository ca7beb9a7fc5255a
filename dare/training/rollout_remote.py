"""Rollouts from a server: it gets the weights before each rollout, and its answers become generations."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import STEP_CONVENTION, UNKNOWN, Cost, Generation
from dare_bench.dare.decoding.remote import RemoteGeneration, Sampling, connect
from dare_bench.dare.decoding.remote_engines import BLOCK_LOCAL
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.dare.training.data import Encoded
from dare_bench.dare.training.engine import EngineConfig
from dare_bench.dare.training.world import ALONE, World

#: Servers hold seeds in 32 bits with a sign.
SEED_BITS = (1 << 31) - 1


class EngineError(RuntimeError):
    """Another process of the run could not use the server, or an answer lacks what training needs."""


class RemoteSampler:
    """Samples responses from a server that follows the weights.

    Every process of a run has one and calls it equally often: weights are written together, the first process tells the
    server, and a failure of one is raised by all.

    Args:
        config: of the server.
        out_dir: of the run; weights are written to ``engine/NUMBER`` in it, NUMBER being that of the rollout.
        write: writes the current weights to a folder; every process calls it.
        world: processes of the run.
    """

    def __init__(
        self, config: EngineConfig, out_dir: Path, write: Callable[[Path], None], world: World = ALONE
    ) -> None:
        self.config, self.folder, self.write, self.world = config, out_dir / "engine", write, world
        own = max(1, config.concurrency // world.size)
        # One prompt per request: a long answer then holds up no short one, and little is repeated after a failure.
        self.backend = connect(config.kind, config.url, concurrency=own, batch_size=1, timeout_s=config.timeout_s)
        self.pushed: int | None = None  # what the server holds after a restart of the run is not known

    def __call__(
        self,
        lm: DiffusionLM,
        prompts: Sequence[Encoded],
        decoder: DecoderConfig,
        *,
        group_size: int,
        seed: int,
        step: int,
        batch_size: int,
    ) -> list[list[Generation]]:
        """The responses of each prompt.

        Args:
            lm: the policy, for its special ids and blocks; the server decodes.
            prompts: this process's share, possibly none.
            decoder: length, temperature and filters are asked for; the rest is the server's.
            group_size: responses per prompt.
            seed: of the run; together with prompt and place in the group it seeds every answer.
            step: number of the rollout; another one means other weights.
            batch_size: not used, the server makes its own batches.

        Raises:
            RemoteError: the server does not load the weights, or does not answer.
            EngineError: see the class.
        """
        if step != self.pushed:
            self._push(step)
        length = int(decoder.gen_length or 0)
        sampling = Sampling(
            max_tokens=length,
            temperature=decoder.temperature,
            top_p=decoder.top_p,
            top_k=decoder.top_k,
            stop_token_ids=tuple(sorted(lm.stop_token_ids)),
        )
        rows = [prompt.prompt for prompt in prompts for _ in range(group_size)]
        seeds = [
            stream_seed(seed, "rollout", step, prompt.id, member) & SEED_BITS
            for prompt in prompts
            for member in range(group_size)
        ]
        found: list[Generation] = []

        def ask() -> None:
            answers = self.backend.generate(rows, sampling, seeds=seeds) if rows else []
            found.extend(
                generation_of(lm, len(row), answer, decoder, self.config.kind)
                for row, answer in zip(rows, answers, strict=True)
            )

        self._together(ask)
        return [found[begin : begin + group_size] for begin in range(0, len(found), group_size)]

    def close(self) -> None:
        """Remove the weights that were written for the server."""
        self.backend.client.close()
        if self.world.leads:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _push(self, step: int) -> None:
        own = self.folder / str(step)
        self.write(own)
        shared = self.config.shared_folder
        seen = str(own.resolve()) if shared is None else f"{shared.rstrip('/')}/{step}"

        def load() -> None:
            if self.world.leads:
                self.backend.update_weights_from_disk(seen, version=str(step))

        self._together(load)
        self.pushed = step
        if self.world.leads:
            for other in self.folder.iterdir():
                if other != own:
                    shutil.rmtree(other, ignore_errors=True)

    def _together(self, act: Callable[[], None]) -> None:
        """Act in every process; all of them fail when one does, instead of waiting for it for ever."""
        failed: Exception | None = None
        try:
            act()
        except Exception as error:
            failed = error
        told = self.world.gather(None if failed is None else str(failed) or type(failed).__name__)
        if failed is not None:
            raise failed
        for rank, text in enumerate(told):
            if text is not None:
                raise EngineError(f"process {rank}: {text}")


def generation_of(
    lm: DiffusionLM, prompt_length: int, answer: RemoteGeneration, decoder: DecoderConfig, engine: str
) -> Generation:
    """A server's answer as a record of our own decoder.

    Args:
        lm: the policy.
        prompt_length: tokens before the answer.
        answer: of the server.
        decoder: gives the longest answer, and the blocks under full attention.
        engine: kind of the server, for messages.

    Returns:
        The record. Steps that the server does not tell are `UNKNOWN`, forwards it does not tell count 0.

    Raises:
        EngineError: an answer without token ids, or a step map that does not fit it.
    """
    if answer.token_ids is None:
        raise EngineError(
            f"{engine}: the server answered with text only, and text does not tell its tokens; training needs token ids "
            "(SGLang: output_ids of /generate)"
        )
    length = int(decoder.gen_length or 0)
    ids = list(answer.token_ids)[:length]
    steps = None if answer.step_map is None else list(answer.step_map)
    stops = lm.stop_token_ids
    if answer.finish_reason == "stop" and not stops.intersection(ids) and len(ids) < length:
        # The server cut off the token that ended the answer; the network chose it, so training counts it.
        ids.append(answer.stop_token if answer.stop_token in stops else lm.eos_token_id)
        if steps is not None and len(steps) == len(ids) - 1:
            steps.append(0)
    starts = block_starts(lm, prompt_length, len(ids), decoder)
    end = next((place for place, token in enumerate(ids) if token in stops), len(ids))
    return Generation(
        token_ids=ids,
        text_ids=ids[:end],
        step_map=_forwards(steps, answer.convention, starts, len(ids), engine),
        confidence=[0.0] * len(ids),
        block_starts=starts,
        kinds=[],
        finish_reason="stop" if end < len(ids) else "length",
        cost=Cost(nfe=answer.nfe or 0, tokens_committed=len(ids), tokens_text=end, wall_s=answer.latency_s),
    )


def block_starts(lm: DiffusionLM, prompt_length: int, count: int, decoder: DecoderConfig) -> list[int]:
    """Where blocks begin in an answer: on the grid from position 0 for block families, from the answer's start otherwise.

    Args:
        lm: the policy.
        prompt_length: tokens before the answer.
        count: tokens of the answer.
        decoder: may name the block length under full attention.

    Returns:
        Indices into the answer; the first is 0, also inside a block that the prompt began.
    """
    size = lm.block_length if lm.is_block_causal else decoder.block_length or lm.block_length
    first = size - prompt_length % size if lm.is_block_causal else size
    return [0, *range(first, count, size)] if count else []


def _forwards(
    steps: Sequence[int] | None, convention: str | None, starts: Sequence[int], count: int, engine: str
) -> list[int]:
    """The forward of the row that committed each token, 0-based."""
    if steps is None:
        return [UNKNOWN] * count
    if len(steps) < count or convention not in (BLOCK_LOCAL, STEP_CONVENTION):
        raise EngineError(
            f"{engine}: a step map of {len(steps)} entries ({convention}) for {count} tokens; allowed: one entry per "
            f"token, {BLOCK_LOCAL} or {STEP_CONVENTION}, or no step map"
        )
    if convention == STEP_CONVENTION:
        return list(steps[:count])
    found, before = [], 0
    for begin, end in pairwise([*starts, count]):
        local = steps[begin:end]  # 1-based; anything below tells no step
        found += [before + step - 1 if step > 0 else UNKNOWN for step in local]
        before += max(0, *local)
    return found
