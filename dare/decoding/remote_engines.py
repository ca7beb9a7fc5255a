"""SGLang's and lmdeploy's own routes, which take and give token ids. Imports no torch."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dare_bench.dare.decoding.remote_backend import Backend
from dare_bench.dare.decoding.remote_http import RETRIED
from dare_bench.dare.decoding.remote_prompts import as_ids
from dare_bench.dare.decoding.remote_reading import Failure
from dare_bench.dare.decoding.remote_types import Prompt, RemoteGeneration, Sampling, Unsupported

#: Step maps of SGLang's branch for reinforcement learning: 1-based, counted anew in every block.
BLOCK_LOCAL = "block-local-1"


class _Generate(Backend):
    """What the two `/generate` routes have in common."""

    route = "/generate"

    def prepare(self, prompt: Prompt, index: int) -> list[int] | str:
        """Token ids or text; conversations are encoded."""
        return prompt if isinstance(prompt, str) and prompt else as_ids(prompt, index, self.encode, self.kind)


class SGLang(_Generate):
    """SGLang `/generate`: several prompts per request, answers matched by id.

    Diffusion settings (algorithm, thresholds) are the server's, not the request's. Seeds reach it for sampled decoding
    only: greedy decoding knows none. Step maps are asked for and null where the server does not know them.
    """

    kind = "sglang"
    takes_many = True

    def body(self, prompts: Sequence[Any], sampling: Sampling, seeds: Sequence[int] | None) -> dict[str, Any]:
        """One request for all `prompts`."""
        texts = [isinstance(prompt, str) for prompt in prompts]
        if any(texts) and not all(texts):
            raise Unsupported("sglang: a request holds token ids or texts, not both; give one kind of prompt")
        settings: dict[str, Any] = {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            **_given(top_p=sampling.top_p, top_k=sampling.top_k),
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **({"stop_token_ids": list(sampling.stop_token_ids)} if sampling.stop_token_ids else {}),
            **sampling.extra,
        }
        per_prompt = settings
        if seeds is not None and sampling.temperature > 0:
            per_prompt = [{**settings, "sampling_seed": seed} for seed in seeds]
        return {
            "text" if texts[0] else "input_ids": list(prompts),
            "sampling_params": per_prompt,
            "stream": False,
            "return_step_maps": True,
        }

    def streaming(self, body: dict[str, Any]) -> dict[str, Any]:
        """One prompt, not a list of one."""
        single = {key: value[0] if isinstance(value, list) else value for key, value in body.items()}
        return {**single, "stream": True}

    def fresh(self, body: dict[str, Any]) -> dict[str, Any]:
        """New ids: those of a broken attempt may still be in use on the server."""
        if body["stream"]:
            return {**body, "rid": uuid.uuid4().hex}
        return {**body, "rid": [uuid.uuid4().hex for _ in body.get("text") or body["input_ids"]]}

    def read(self, answer: Any, body: Mapping[str, Any], count: int) -> list[RemoteGeneration]:
        """Answers, put in order by their ids."""
        items = answer if isinstance(answer, list) else [answer]
        if len(items) != count or not all(isinstance(item, dict) for item in items):
            raise Failure(f"{count} answers expected, {len(items)} given", body=str(answer), again=False)
        ids = [_meta(item).get("id") for item in items]
        if any(name is not None for name in ids):
            place = {name: index for index, name in enumerate(body["rid"])}
            if sorted(map(str, ids)) != sorted(place):
                raise Failure("the ids of the answers are not those of the request", body=str(ids), again=False)
            items = [item for _, item in sorted(zip(ids, items, strict=True), key=lambda pair: place[pair[0]])]
        return [read_generate(item) for item in items]

    def grow(self, last: RemoteGeneration | None, event: Any) -> RemoteGeneration:
        """Chunks hold all of the text so far, or no text at all."""
        return read_generate(event, last, partial=True)

    def update_weights_from_disk(self, folder: str, *, version: str | None = None) -> None:
        """See `Backend`; generation is paused meanwhile."""
        self._update("/update_weights_from_disk", {"model_path": str(folder), **_given(weight_version=version)})

    def update_weights_from_tensors(self, tensors: Sequence[str], *, load_format: str | None = None) -> None:
        """See `Backend`; generation is paused meanwhile."""
        body = {"serialized_named_tensors": list(tensors), **_given(load_format=load_format)}
        self._update("/update_weights_from_tensor", body)

    def _update(self, path: str, body: dict[str, Any]) -> None:
        with self.quiet("/pause_generation", "/continue_generation"):
            # Keys and values in the prefix cache belong to the old weights.
            answer = self.client.post(path, {**body, "flush_cache": True})
            if not (isinstance(answer, dict) and answer.get("success") is True):
                raise self.client.error(path, Failure("the weights were not updated", body=str(answer)), 1)


class LMDeploy(_Generate):
    """lmdeploy `/generate`: one prompt per request; the route takes no seed and reports no steps."""

    kind = "lmdeploy"
    instead: ClassVar[str] = (
        "lmdeploy takes tensors: update_weights_from_tensors, or restart it with the new checkpoint"
    )

    def body(self, prompts: Sequence[Any], sampling: Sampling, seeds: Sequence[int] | None) -> dict[str, Any]:
        """The request for one prompt."""
        if seeds is not None and sampling.temperature > 0:
            raise Unsupported(
                "lmdeploy: its /generate route takes no seed; leave seeds out, or use the kind 'chat', whose route does"
            )
        (prompt,) = prompts
        # Greedy decoding is top_k 1 there; a temperature of 0 is outside what it promises.
        greedy = sampling.temperature == 0
        return {
            "prompt" if isinstance(prompt, str) else "input_ids": prompt,
            "max_tokens": sampling.max_tokens,
            **_given(
                temperature=None if greedy else sampling.temperature,
                top_k=1 if greedy else sampling.top_k,
                top_p=None if greedy else sampling.top_p,
            ),
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **({"stop_token_ids": list(sampling.stop_token_ids)} if sampling.stop_token_ids else {}),
            "stream": False,
            **sampling.extra,
        }

    def read(self, answer: Any, body: Mapping[str, Any], count: int) -> list[RemoteGeneration]:
        """The only answer."""
        return [read_generate(answer)]

    def grow(self, last: RemoteGeneration | None, event: Any) -> RemoteGeneration:
        """Chunks hold what is new."""
        new = read_generate(event, partial=True)
        if last is None:
            return new
        ids = (
            None
            if new.token_ids is None and last.token_ids is None
            else [*(last.token_ids or ()), *(new.token_ids or ())]
        )
        return RemoteGeneration(
            text=last.text + new.text,
            token_ids=ids,
            finish_reason=new.finish_reason,
            prompt_tokens=last.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
            completion_tokens=None if ids is None else len(ids),
        )

    def update_weights_from_tensors(self, tensors: Sequence[str], *, load_format: str | None = None) -> None:
        """See `Backend`; the call ends the update."""
        self._in_flight.close()
        try:
            self.client.post(
                "/update_weights",
                {"serialized_named_tensors": list(tensors), "load_format": load_format, "finished": True},
            )
        finally:
            self._in_flight.open()


def read_generate(item: Any, last: RemoteGeneration | None = None, *, partial: bool = False) -> RemoteGeneration:
    """An answer in the form of SGLang's route.

    Args:
        item: of the server.
        last: what a stream has given so far; keeps what `item` leaves out.
        partial: of a stream, where text and finish reason may be missing.

    Raises:
        Failure: an error, an aborted request, or neither text nor tokens.
    """
    if not isinstance(item, dict):
        raise Failure("the answer is no object", body=str(item), again=False)
    if "error" in item:
        raise Failure("the server reports an error", body=str(item["error"]), again=False)
    meta = _meta(item)
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind == "abort":
        status = reason.get("status_code") if isinstance(reason, dict) else None
        again = status in RETRIED
        raise Failure("the request was aborted", status=status, body=str(reason), again=again)
    text, ids = item.get("text"), item.get("output_ids")
    if text is None and ids is None and not partial:
        raise Failure("the answer holds neither text nor output_ids", body=str(item), again=False)
    if text is None:
        text = last.text if last else ""
    if ids is None and last:
        ids = last.token_ids
    steps = meta.get("step_maps")
    matched = reason.get("matched") if isinstance(reason, dict) else None
    made = meta.get("completion_tokens")
    return RemoteGeneration(
        text=text,
        token_ids=None if ids is None else [int(token) for token in ids],
        finish_reason=kind if kind is not None or partial else "unknown",
        prompt_tokens=meta.get("prompt_tokens", last.prompt_tokens if last else None),
        completion_tokens=len(ids) if made is None and ids is not None else made,
        nfe=meta.get("nfe"),
        step_map=None if steps is None else [int(step) for step in steps],
        convention=None if steps is None else BLOCK_LOCAL,
        stop_token=matched if isinstance(matched, int) else None,
    )


def _meta(item: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = item.get("meta_info")
    return meta if isinstance(meta, dict) else {}


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
