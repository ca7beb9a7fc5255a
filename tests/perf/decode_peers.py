"""The published LLaDA and Fast-dLLM samplers behind one line of JSON per run; started by ``decode.py --peers``.

Runs in an environment of its own (the published network code wants transformers 4.54). Nothing of theirs is stored here:
DIR/LLaDA/generate.py and DIR/Fast-dLLM/llada (or v1/llada) are loaded from the copies the user has. All samplers use the
network of Fast-dLLM. Usage: ``python decode_peers.py DIR MODEL``; requests come on standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch


def load(path: Path, name: str) -> types.ModuleType:
    """A module from a file."""
    module = types.ModuleType(name)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def samplers(peers: Path, checkpoint: Path) -> tuple[Callable[..., Any], list[int]]:
    """The call (name, row, settings) -> canvas, and the counters [forwards, positions fed]."""
    folder = next(path for path in (peers / "Fast-dLLM/llada", peers / "Fast-dLLM/v1/llada") if path.is_dir())
    sys.path.insert(0, str(folder))
    from model.configuration_llada import LLaDAConfig
    from model.modeling_llada import LLaDAModelLM
    from safetensors.torch import load_file

    official = load(peers / "LLaDA/generate.py", "llada_generate")
    fast = load(folder / "generate.py", "fastdllm_generate")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    known = LLaDAConfig().to_dict()
    model = LLaDAModelLM(
        LLaDAConfig(**{key: value for key, value in config.items() if key in known}), init_params=False
    )
    model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=True)
    model.eval()
    counters = [0, 0]
    plain = model.forward

    def counted(*arguments: Any, **options: Any) -> Any:
        ids = options.get("input_ids", arguments[0] if arguments else None)
        counters[0] += 1
        counters[1] += ids.numel()
        return plain(*arguments, **options)

    model.forward = counted

    @torch.no_grad()
    def decode(name: str, row: list[int], threshold: float | None, settings: dict[str, Any]) -> torch.Tensor:
        prompt = torch.tensor([row])
        given = {"temperature": 0.0, "remasking": "low_confidence", "mask_id": config["mask_token_id"], **settings}
        if name == "llada":
            return official.generate(model, prompt, **given)
        call = {
            "none": fast.generate,
            "prefix": fast.generate_with_prefix_cache,
            "dual": fast.generate_with_dual_cache,
        }[name]
        return call(model, prompt, threshold=threshold, **given)[0]

    return decode, counters


def main() -> None:
    """Answer requests {sampler, threads, rows, threshold, settings} with {wall, cpu, ids, nfe, fed}."""
    decode, counters = samplers(Path(sys.argv[1]), Path(sys.argv[2]))
    for line in sys.stdin:
        request = json.loads(line)
        torch.set_num_threads(request["threads"])
        counters[:] = [0, 0]
        wall, cpu, ids = time.perf_counter(), time.process_time(), []
        for row in request["rows"]:
            found = decode(request["sampler"], row, request["threshold"], request["settings"])
            ids.append(found[0, len(row) :].tolist())
        answer = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "ids": ids}
        print(json.dumps(answer | {"nfe": counters[0], "fed": counters[1]}), flush=True)


if __name__ == "__main__":
    main()
