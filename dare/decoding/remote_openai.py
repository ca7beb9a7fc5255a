"""OpenAI-compatible routes: any server's, vLLM's, and those of `dare-bench serve`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dare_bench.dare.decoding.remote_backend import Backend
from dare_bench.dare.decoding.remote_prompts import as_ids, as_messages
from dare_bench.dare.decoding.remote_reading import Failure
from dare_bench.dare.decoding.remote_types import Prompt, RemoteGeneration, Sampling


class _OpenAI(Backend):
    """What the routes have in common."""

    #: Key of the prompt in the body.
    key: ClassVar[str]

    def body(self, prompts: Sequence[Any], sampling: Sampling, seeds: Sequence[int] | None) -> dict[str, Any]:
        """The request for one prompt."""
        (prompt,) = prompts
        optional = {
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            **self.seeded(None if seeds is None else seeds[0]),
        }
        return {
            "model": self.model,
            self.key: prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            **{name: value for name, value in optional.items() if value is not None},
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **({"stop_token_ids": list(sampling.stop_token_ids)} if sampling.stop_token_ids else {}),
            "n": 1,
            "stream": False,
            **sampling.extra,
        }

    def seeded(self, seed: int | None) -> dict[str, Any]:
        """Keys that carry the seed of one prompt."""
        return {"seed": seed}

    def streaming(self, body: dict[str, Any]) -> dict[str, Any]:
        """With the counts of tokens behind the last chunk."""
        return {**body, "stream": True, "stream_options": {"include_usage": True}}

    def read(self, answer: Any, body: Mapping[str, Any], count: int) -> list[RemoteGeneration]:
        """The first choice."""
        choice = _choice(answer)
        if choice is None:
            raise Failure("the answer holds no choice", body=str(answer), again=False)
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        return [_usage(_filled(choice, text or "", choice.get("finish_reason") or "unknown"), answer)]

    def grow(self, last: RemoteGeneration | None, event: Any) -> RemoteGeneration:
        """Chunks hold what is new; the one behind the last holds only the counts."""
        choice = _choice(event)
        so_far = last or RemoteGeneration("", None, None, None, None)
        if choice is None:
            return _usage(so_far, event)
        delta = choice.get("delta")
        new = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        reason = choice.get("finish_reason") or so_far.finish_reason
        grown = _filled(choice, so_far.text + (new or ""), reason)
        ids = so_far.token_ids if grown.token_ids is None else grown.token_ids
        if "token_ids" in choice:  # vLLM's chunks hold the new tokens
            ids = [*(so_far.token_ids or ()), *(choice["token_ids"] or ())]
        kept = replace(
            grown,
            token_ids=ids,
            prompt_tokens=so_far.prompt_tokens,
            completion_tokens=so_far.completion_tokens,
        )
        return _usage(kept, event)


class Chat(_OpenAI):
    """``/v1/chat/completions`` of any server: takes conversations, gives text (token ids only where it says them)."""

    kind = "chat"
    route = "/v1/chat/completions"
    key = "messages"

    def prepare(self, prompt: Prompt, index: int) -> list[dict[str, Any]]:
        """The conversation."""
        return as_messages(prompt, index, self.kind)


class _Completions(_OpenAI):
    route = "/v1/completions"
    key = "prompt"

    def prepare(self, prompt: Prompt, index: int) -> list[int] | str:
        """Token ids or text; conversations are encoded."""
        return prompt if isinstance(prompt, str) and prompt else as_ids(prompt, index, self.encode, self.kind)


class VLLM(_Completions):
    """vLLM ``/v1/completions`` with token ids both ways.

    Diffusion settings of a request are ``extra={"vllm_xargs": {"diffusion_max_steps": ...}}``.
    """

    kind = "vllm"
    instead: ClassVar[str] = (
        "vLLM receives weights through its transfer engine (/init_weight_transfer_engine, then transfer_weights), or "
        "restart it with the new checkpoint"
    )

    def body(self, prompts: Sequence[Any], sampling: Sampling, seeds: Sequence[int] | None) -> dict[str, Any]:
        """The request for one prompt, its token ids wanted back."""
        return {"return_token_ids": True, **super().body(prompts, sampling, seeds)}

    def transfer_weights(self, update: Mapping[str, Any]) -> None:
        """Receive weights through the transfer engine that was set up before; generation is paused meanwhile.

        Args:
            update: body of ``/update_weights``, as the transfer engine wants it.

        Raises:
            RemoteError: a step failed.
        """
        with self.quiet("/pause", "/resume"):
            self.client.post("/start_weight_update", {})
            self.client.post("/update_weights", update)
            self.client.post("/finish_weight_update", {})


class DareBench(_Completions):
    """`dare-bench serve`: token ids, forwards and step maps come back; seeds are those of the engine's `generate`.

    The same prompts, seeds and decoder give the same answers as `dare_bench.dare.decoding.dispatch.generate` here.
    """

    kind = "dare-bench"

    def seeded(self, seed: int | None) -> dict[str, Any]:
        """The engine's own seed, not one to derive it from."""
        wanted: dict[str, Any] = {"token_ids": True, "step_map": True}
        return {"dare": wanted if seed is None else {**wanted, "stream_seed": seed}}


def _choice(answer: Any) -> Mapping[str, Any] | None:
    """The first choice; null when there is none."""
    if not isinstance(answer, dict):
        raise Failure("the answer is no object", body=str(answer), again=False)
    if answer.get("error") or answer.get("object") == "error":
        raise Failure("the server reports an error", body=str(answer.get("error") or answer), again=False)
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _filled(choice: Mapping[str, Any], text: str, reason: str | None) -> RemoteGeneration:
    """A choice with what its server adds to the standard."""
    ours = choice.get("dare") if isinstance(choice.get("dare"), dict) else {}
    ids = choice.get("token_ids", ours.get("token_ids"))
    return RemoteGeneration(
        text=text,
        token_ids=ids,
        finish_reason=reason,
        prompt_tokens=None,
        completion_tokens=None,
        nfe=ours.get("nfe"),
        step_map=ours.get("step_map"),
        convention=ours.get("convention") if ours.get("step_map") is not None else None,
    )


def _usage(found: RemoteGeneration, answer: Mapping[str, Any]) -> RemoteGeneration:
    """The answer with its counts, where they are given."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return found
    return replace(found, prompt_tokens=usage.get("prompt_tokens"), completion_tokens=usage.get("completion_tokens"))
