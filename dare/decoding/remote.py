"""Generation by a server over HTTP, behind one contract for every engine. Imports no torch.

    backend = connect("sglang", "http://127.0.0.1:30000")
    backend.wait_ready(600)
    answers = backend.generate(prompts, Sampling(max_tokens=512, stop_token_ids=(156892,)))

Answers come in the order of the prompts, however the server orders its own. What an engine does not report is null: none
of SGLang 0.5, lmdeploy 0.18 and vLLM 0.33 says how many forwards an answer took.
"""

from __future__ import annotations

from typing import Any

from dare_bench.dare.decoding.remote_backend import Backend
from dare_bench.dare.decoding.remote_engines import LMDeploy, SGLang
from dare_bench.dare.decoding.remote_http import Retry
from dare_bench.dare.decoding.remote_openai import VLLM, Chat, DareBench
from dare_bench.dare.decoding.remote_reading import RemoteError
from dare_bench.dare.decoding.remote_types import RemoteGeneration, Sampling, Unsupported

#: Kind -> back end.
BACKENDS: dict[str, type[Backend]] = {cls.kind: cls for cls in (SGLang, LMDeploy, VLLM, DareBench, Chat)}


def connect(kind: str, base: str, **options: Any) -> Backend:
    """The back end for a server.

    Args:
        kind: ``sglang`` (/generate), ``lmdeploy`` (/generate), ``vllm`` (/v1/completions), ``dare-bench``
            (/v1/completions of `dare-bench serve`), ``chat`` (/v1/chat/completions of any server).
        base: URL of the server.
        options: of `Backend`.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind not in BACKENDS:
        raise ValueError(f"unknown kind of server {kind!r}; allowed: {', '.join(sorted(BACKENDS))}")
    return BACKENDS[kind](base, **options)


__all__ = ["BACKENDS", "Backend", "RemoteError", "RemoteGeneration", "Retry", "Sampling", "Unsupported", "connect"]
