"""What a client may ask of `dare-bench serve`: the body of a request, checked. Imports no torch.

Keys that would change the answer are honoured or refused, never ignored.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.randomness import stream_seed
from dare_bench.harness.errors import nearest, shorten
from dare_bench.harness.serve_decoder import decoder_of
from dare_bench.harness.serve_errors import Refusal
from dare_bench.harness.serve_prompts import Prompt, conversation, prompts

#: Keys of OpenAI's routes that change nothing here.
_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
#: Keys that this server has no counterpart for, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "echo": (False,), "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},),
    "logprobs": (False,), "top_logprobs": (0,), "suffix": ("",), "tools": ([],), "tool_choice": ("none",),
    "parallel_tool_calls": (True, False), "response_format": ({"type": "text"},), "min_p": (0,),
    "repetition_penalty": (1,), "ignore_eos": (False,), "skip_special_tokens": (True,), "functions": ([],),
}  # fmt: skip
_OWN = {
    "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "stream",
    "stream_options", "decoder", "dare",
}  # fmt: skip
_DARE = {"token_ids", "step_map", "stream_seed"}
MAX_SEED = 2**63 - 1
MAX_STOPS = 64


@dataclass(frozen=True)
class Defaults:
    """What the server serves.

    Attributes:
        names: of the model; requests may use any, answers carry the first.
        family: of the model.
        decoder: settings that requests do not give.
    """

    names: tuple[str, ...]
    family: str
    decoder: DecoderConfig


@dataclass(frozen=True)
class Ask:
    """A checked request.

    Attributes:
        is_chat: which route.
        prompts: as given; a conversation is one prompt.
        n: answers per prompt.
        seeds: of the engine, one per answer of a prompt; the same for every prompt.
        seed: what they were derived from; null when the engine's seed was given.
        decoder: complete settings.
        stop: texts that end an answer.
        stream: whether finished blocks are sent as they come.
        with_usage: whether the stream ends with the counts.
        token_ids, step_map: whether they are wanted.
    """

    is_chat: bool
    prompts: list[Prompt]
    n: int
    seeds: list[int]
    seed: int | None
    decoder: DecoderConfig
    stop: list[str] = field(default_factory=list)
    stream: bool = False
    with_usage: bool = False
    token_ids: bool = False
    step_map: bool = False


def parse(raw: bytes, *, is_chat: bool, defaults: Defaults) -> Ask:
    """Check a request.

    Args:
        raw: the body.
        is_chat: which route it was sent to.
        defaults: of the server.

    Raises:
        Refusal: 400 for what is wrong with it, 404 for another model.
    """
    body = {key: value for key, value in _object(raw).items() if value is not None}
    prompt_key = "messages" if is_chat else "prompt"
    _check_keys(body, {*_OWN, prompt_key})
    _check_model(body.get("model"), defaults)
    if prompt_key not in body:
        raise Refusal(400, f"{prompt_key} is missing", param=prompt_key, code="missing")
    asked = [conversation(body["messages"])] if is_chat else prompts(body["prompt"])
    count = number(body, "n", 1, low=1, high=1024)
    options = mapping(body, "dare")
    if unknown := sorted(set(options) - _DARE):
        raise unknown_key(f"dare.{unknown[0]}", unknown[0], _DARE)
    seed, seeds = _seeds(body, options, count)
    stream_options = mapping(body, "stream_options")
    if unknown := sorted(set(stream_options) - {"include_usage"}):
        raise unknown_key(f"stream_options.{unknown[0]}", unknown[0], {"include_usage"})
    return Ask(
        is_chat=is_chat,
        prompts=asked,
        n=count,
        seeds=seeds,
        seed=seed,
        decoder=decoder_of(body, defaults.decoder, defaults.family),
        stop=_stops(body.get("stop", [])),
        stream=flag(body, "stream"),
        with_usage=flag(stream_options, "include_usage", "stream_options."),
        token_ids=flag(options, "token_ids", "dare."),
        step_map=flag(options, "step_map", "dare."),
    )


def _object(raw: bytes) -> dict[str, Any]:
    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=refuse_constant)
    except RecursionError as error:
        raise Refusal(400, "the body is nested too deeply", code="invalid_json") from error
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON in UTF-8: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise Refusal(400, f"the body is {shorten(body, 40)}; allowed: a JSON object", code="invalid_json")
    return body


def _check_keys(body: Mapping[str, Any], known: set[str]) -> None:
    for key, value in body.items():
        if key in known or key in _IGNORED:
            continue
        if key not in _NEUTRAL:
            raise unknown_key(key, key, known)
        # 1 == True in Python: a flag is not a number here.
        if not any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in _NEUTRAL[key]):
            raise Refusal(
                400, f"{key} is {shorten(value)}, which this server does not support; leave it out", param=key,
                code="unsupported",
            )  # fmt: skip


def unknown_key(param: str, key: str, known: set[str]) -> Refusal:
    """The refusal of a key that nothing knows."""
    near = nearest(key, known)
    hint = f" (did you mean {near}?)" if near else ""
    return Refusal(
        400, f"unknown key {param}{hint}; allowed: {', '.join(sorted(known))}", param=param, code="unknown_key"
    )


def _check_model(name: Any, defaults: Defaults) -> None:
    if name is None or name in defaults.names:
        return
    said = f"the model {shorten(name)} is not here; this server has {defaults.names[0]}"
    raise Refusal(404 if isinstance(name, str) else 400, said, param="model", code="model_not_found")


def _seeds(body: Mapping[str, Any], options: Mapping[str, Any], count: int) -> tuple[int | None, list[int]]:
    """The request's seed and the engine's, one per answer.

    The derivation is that of `dare-bench generate`: its answer for a prompt is the first one here for the same seed.
    """
    if "stream_seed" in options:
        if count != 1 or "seed" in body:
            raise Refusal(
                400, "dare.stream_seed is the engine's own seed of one answer; give it without seed and with n = 1",
                param="dare.stream_seed", code="invalid_value",
            )  # fmt: skip
        return None, [number(options, "stream_seed", 0, low=0, high=MAX_SEED, prefix="dare.")]
    # Without a seed every request draws anew, as OpenAI's clients expect; the answer says which seed it was.
    seed = number(body, "seed", None, low=0, high=MAX_SEED)
    seed = secrets.randbelow(2**31) if seed is None else seed
    return seed, [stream_seed(seed, "decode", "prompt", index) for index in range(count)]


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        said = f"stop is {shorten(value)}; allowed: a text, or a list of up to {MAX_STOPS} texts, none empty"
        raise Refusal(400, said, param="stop", code="invalid_value")
    return stops


def number(body: Mapping[str, Any], key: str, default: Any, *, low: int, high: int, prefix: str = "") -> Any:
    """A whole number of the body."""
    value = body.get(key, default)
    if value is default:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        said = f"{prefix}{key} is {shorten(value)}; allowed: a whole number from {low} to {high}"
        raise Refusal(400, said, param=prefix + key, code="invalid_value")
    return value


def flag(body: Mapping[str, Any], key: str, prefix: str = "") -> bool:
    """A flag of the body."""
    value = body.get(key, False)
    if not isinstance(value, bool):
        said = f"{prefix}{key} is {shorten(value)}; allowed: true or false"
        raise Refusal(400, said, param=prefix + key, code="invalid_value")
    return value


def mapping(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object of the body."""
    value = body.get(key, {})
    if not isinstance(value, dict):
        raise Refusal(400, f"{key} is {shorten(value)}; allowed: an object", param=key, code="invalid_value")
    return value
