"""Rollouts from a server: a stub that really loads the folders it is told, and decodes with the weights in them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dare_bench.dare.algorithms.cj_grpo import CJGRPO, CJGRPOConfig
from dare_bench.dare.algorithms.d1 import D1, D1Config
from dare_bench.dare.algorithms.justgrpo import JustGRPO
from dare_bench.dare.algorithms.mdpo import MDPO
from dare_bench.dare.algorithms.sft import SFT
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.engine import generate
from dare_bench.dare.decoding.generation import UNKNOWN
from dare_bench.dare.decoding.remote import RemoteError, RemoteGeneration, Retry, connect
from dare_bench.dare.families import loading
from dare_bench.dare.training import engine, rollout, rollout_remote
from dare_bench.dare.training.config import LoraConfig, TrainConfig
from dare_bench.dare.training.data import Encoded
from dare_bench.dare.training.engine import EngineConfig
from dare_bench.dare.training.rollout_remote import EngineError, RemoteSampler, generation_of
from dare_bench.dare.training.world import World

LENGTH = 6
DECODER = DecoderConfig(gen_length=LENGTH, steps_per_block=2)
Change = Callable[[dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """SGLang's routes, as far as training needs them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.stub.answer(self.path, body)
        raw = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class Engine:
    """A server with a model; `fail` are statuses to answer first, by route, and `change` edits each answer."""

    def __init__(self) -> None:
        self.lm: Any = None
        self.log: list[tuple[str, Any]] = []
        self.fail: dict[str, list[int]] = {}
        self.change: Change = lambda answer: None
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.stub = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        with self.lock:
            if self.fail.get(path):
                return self.fail[path].pop(0), {"error": {"message": "cuda is busy"}}
            if path == "/generate":
                self.log.append((path, body["sampling_params"]))
                return 200, [self.decode(body)]
            if path == "/update_weights_from_disk":
                folder = Path(body["model_path"])
                self.lm = loading.load(folder, device="cpu").eval()
                self.log.append((path, (body["weight_version"], sorted(each.name for each in folder.parent.iterdir()))))
            return 200, {"success": True, "message": ""}

    def decode(self, body: Any) -> dict[str, Any]:
        (prompt,), (settings,), (name,) = body["input_ids"], body["sampling_params"], body["rid"]
        assert set(settings["stop_token_ids"]) == set(self.lm.stop_token_ids)
        decoder = DecoderConfig(
            gen_length=settings["max_new_tokens"], steps_per_block=2, temperature=settings["temperature"]
        )
        (made,) = generate(self.lm, [prompt], decoder, [settings["sampling_seed"]])
        is_stop = made.finish_reason == "stop"
        answer = {
            "text": "",
            "output_ids": rollout.through_stop(made),
            "meta_info": {"id": name, "finish_reason": {"type": "stop" if is_stop else "length"}},
        }
        self.change(answer)
        return answer

    def loads(self) -> list[Any]:
        """Versions that were loaded, with the folders that lay there then."""
        return [what for path, what in self.log if path == "/update_weights_from_disk"]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    quick = Retry(attempts=3, first_s=0.01, longest_s=0.05)
    monkeypatch.setattr(rollout_remote, "connect", partial(connect, retry=quick))
    found = Engine()
    yield found
    found.stop()


def settings(**changed: Any) -> TrainConfig:
    return TrainConfig(**{"steps": 3, "batch_size": 3, "lr": 1e-2} | changed)


def weights(lm: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in lm.model.state_dict().items()}


def same(one: Any, two: Any) -> bool:
    return all(torch.equal(value, weights(two)[name]) for name, value in weights(one).items())


def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling in this process, with seeds cut as for a server."""
    seed = rollout.stream_seed
    monkeypatch.setattr(rollout, "stream_seed", lambda *parts: seed(*parts) & rollout_remote.SEED_BITS)


ALGORITHM = D1(D1Config(group_size=3, beta=0.1))


@pytest.mark.parametrize("inner", [1, 2])
def test_equals_the_run_in_process(tiny, run, server, monkeypatch, inner) -> None:
    algorithm = D1(D1Config(group_size=3, inner_iterations=inner))
    config = settings(steps=3 * inner)
    remote = run(tiny("llada"), algorithm, config, out="remote", engine=EngineConfig("sglang", server.url, 4))
    local(monkeypatch)
    inside = run(tiny("llada"), algorithm, config, out="inside")
    assert same(remote.lm, inside.lm)
    assert remote.result.sha256 == inside.result.sha256
    unknown = {"rollout_nfe", "rollout_nfe_known"}
    for step, point in inside.points.items():
        assert point["reward"] > 0
        assert remote.points[step]["rollout_nfe_known"] == 0.0 and "rollout_nfe" not in remote.points[step]
        assert "rollout_nfe_known" not in point
        told = {name: value for name, value in point.items() if name not in unknown}
        assert {name: value for name, value in remote.points[step].items() if name not in unknown} == told
    assert remote.result.totals["rollout_nfe"] == 0 and remote.result.totals["rollout_tokens"] > 0
    # Weights come before the answers of each rollout; what lay there before goes once the new ones are taken.
    paths = [path for path, _ in server.log]
    assert paths == (["/update_weights_from_disk"] + ["/generate"] * 9) * 3
    assert server.loads() == [("0", ["0"]), ("1", ["0", "1"]), ("2", ["1", "2"])]
    assert sorted(path.name for path in remote.out.iterdir()) == ["final", "finished.json"]
    asked = [given for path, found in server.log if path == "/generate" for given in found]
    assert len({given["sampling_seed"] for given in asked}) == len(asked)
    assert all(0 <= given["sampling_seed"] < 2**31 and given["max_new_tokens"] == LENGTH for given in asked)


def test_a_busy_server_is_asked_again(tiny, run, server) -> None:
    calm = run(tiny("llada"), ALGORITHM, settings(steps=1), out="calm", engine=EngineConfig("sglang", server.url, 4))
    server.fail = {"/generate": [503, 503], "/update_weights_from_disk": [503]}
    busy = run(tiny("llada"), ALGORITHM, settings(steps=1), out="busy", engine=EngineConfig("sglang", server.url, 4))
    assert not any(server.fail.values())
    assert busy.points == calm.points and busy.result.sha256 == calm.result.sha256


def test_a_dead_server_is_said_and_a_continuation_pushes_again(tiny, run, server, monkeypatch) -> None:
    config = settings(steps=3, batch_size=2, checkpoint_every=1)
    where = EngineConfig("sglang", server.url, 4)
    straight = run(tiny("llada"), ALGORITHM, config, out="straight", engine=where)
    server.log.clear()
    push = RemoteSampler._push

    def die(self: RemoteSampler, step: int) -> None:
        if step == 2:
            server.fail["/generate"] = [500] * 50
        push(self, step)

    monkeypatch.setattr(RemoteSampler, "_push", die)
    # Requests beside the one that was given up first are given up, too: how often each was tried is left to chance.
    with pytest.raises(RemoteError, match=r"/generate: HTTP 500: the server cannot answer now.*cuda is busy"):
        run(tiny("llada"), ALGORITHM, config, engine=where)
    monkeypatch.setattr(RemoteSampler, "_push", push)
    server.fail.clear()
    again = run(tiny("llada"), ALGORITHM, config, engine=where)
    assert again.resumed == [2]
    assert [version for version, _ in server.loads()] == ["0", "1", "2", "2"]
    assert again.result.sha256 == straight.result.sha256


def test_nobody_listens(tiny, run, server) -> None:
    server.stop()
    with pytest.raises(RemoteError, match=r"cannot be reached.*Check that the server runs"):
        run(tiny("llada"), ALGORITHM, settings(), engine=EngineConfig("sglang", server.url))


def test_a_folder_that_the_server_knows_by_another_name(tiny, server, tmp_path) -> None:
    written: list[Path] = []
    lm = tiny("llada")

    def write(folder: Path) -> None:
        written.append(folder)
        loading.save(lm, tmp_path / "seen" / folder.name)
        folder.mkdir(parents=True)

    where = EngineConfig("sglang", server.url, shared_folder=f"{tmp_path}/seen/")
    sampler = RemoteSampler(where, tmp_path / "run", write)
    for _ in range(2):  # the same weights are pushed once
        assert sampler(lm, [], DECODER, group_size=2, seed=1, step=7, batch_size=4) == []
    assert written == [tmp_path / "run" / "engine" / "7"]
    assert server.loads() == [("7", ["7"])]


def test_a_failure_reaches_every_process(tiny, server, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(World, "gather", lambda self, value: ["the weights were not updated", value])
    sampler = RemoteSampler(
        EngineConfig("sglang", server.url), tmp_path, lambda folder: folder.mkdir(parents=True), World(1, 2)
    )
    with pytest.raises(EngineError, match="process 0: the weights were not updated"):
        sampler(tiny("llada"), [], DECODER, group_size=2, seed=1, step=0, batch_size=4)
    assert server.log == []  # only the first process tells the server
    assert sampler.backend.concurrency == 32


def test_text_alone_does_not_do(tiny, run, server) -> None:
    server.change = lambda answer: answer.pop("output_ids")
    with pytest.raises(EngineError, match=r"sglang: the server answered with text only.*needs token ids"):
        run(tiny("llada"), ALGORITHM, settings(), engine=EngineConfig("sglang", server.url))


def test_algorithms_that_replay_need_the_steps(tiny, run, server) -> None:
    algorithm = CJGRPO(CJGRPOConfig(group_size=2))
    where = EngineConfig("sglang", server.url)
    with pytest.raises(ValueError, match="the step of no token is known"):
        run(tiny("llada"), algorithm, settings(), engine=where)
    server.change = lambda answer: answer["meta_info"].update(step_maps=[1] * len(answer["output_ids"]))
    done = run(tiny("llada"), algorithm, settings(steps=1), engine=where, out="told")
    assert done.result.step == 1


def answer_of(ids: list[int] | None, **given: Any) -> RemoteGeneration:
    return RemoteGeneration("", ids, **{"finish_reason": "length", "prompt_tokens": 1, "completion_tokens": 1} | given)


class TestConversion:
    def test_a_stop_token_that_was_cut_off_comes_back(self, tiny) -> None:
        lm = tiny("llada")
        found = generation_of(lm, 3, answer_of([5, 6], finish_reason="stop"), DECODER, "sglang")
        assert found.token_ids == [5, 6, lm.eos_token_id] and found.text_ids == [5, 6]
        assert found.finish_reason == "stop" and found.step_map == [UNKNOWN] * 3 and found.cost.nfe == 0
        kept = generation_of(lm, 3, answer_of([5, lm.eos_token_id], finish_reason="stop"), DECODER, "sglang")
        assert kept.token_ids == [5, lm.eos_token_id] and kept.text_ids == [5]

    def test_the_one_that_the_server_names(self, tiny) -> None:
        lm = SimpleNamespace(stop_token_ids={8, 9}, eos_token_id=8, is_block_causal=False, block_length=4)
        found = generation_of(lm, 3, answer_of([5], finish_reason="stop", stop_token=9), DECODER, "sglang")
        assert found.token_ids == [5, 9]

    @pytest.mark.parametrize(
        ("family", "given", "starts", "expected"),
        [
            ("sdar", [2, 2, 3, 2, 1, 2], [0, 1, 5], [1, 3, 4, 3, 2, 6]),
            ("llada", [2, 4, 3, 2, 0, 1], [0, 4], [1, 3, 2, 1, UNKNOWN, 4]),
        ],
    )
    def test_steps_count_on_from_block_to_block(self, tiny, family, given, starts, expected) -> None:
        """Block families: the grid begins at position 0, so a prompt of 7 leaves one place of its block of 4."""
        answer = answer_of([7] * 6, step_map=given, convention="block-local-1", nfe=9)
        found = generation_of(tiny(family), 7, answer, DECODER, "sglang")
        assert found.block_starts == starts and found.step_map == expected and found.cost.nfe == 9

    def test_tokens_without_a_step_are_kept(self, tiny) -> None:
        lm = tiny("llada")
        made = generation_of(lm, 2, answer_of([5, 6, 7]), DECODER, "sglang")
        row = Encoded("x", [1, 2], [], {})
        batch = rollout.assemble(lm, [row], [[made]], [[[(1.0, "")]]], [lambda **columns: [1.0]], None, LENGTH).batch
        assert batch.ids[0, 2:5].tolist() == [5, 6, 7] and batch.counted[0].sum() == 3
        assert (batch.trace.step_map == -1).all()

    def test_a_step_map_that_does_not_fit(self, tiny) -> None:
        answer = answer_of([5, 6], step_map=[1], convention="block-local-1")
        with pytest.raises(EngineError, match="a step map of 1 entries"):
            generation_of(tiny("llada"), 3, answer, DECODER, "sglang")


@pytest.mark.parametrize(
    ("algorithm", "given", "options", "said"),
    [
        (JustGRPO(), {}, {}, r"cannot sample for justgrpo: it decodes strictly left to right"),
        (MDPO(), {}, {}, r"cannot sample for mdpo: it denoises canvases step by step"),
        (SFT(), {}, {}, r"it samples no responses"),
        (ALGORITHM, {}, {"peft": LoraConfig(r=2)}, r"full fine-tuning only: an adapter would have to be merged"),
        (ALGORITHM, {"kind": "lmdeploy"}, {}, r"engine.kind: 'lmdeploy'.*allowed: sglang$"),
        (ALGORITHM, {"kind": "sglan"}, {}, r"engine.kind: 'sglan': unknown kind of server; allowed: sglang$"),
        (ALGORITHM, {"url": "localhost:3"}, {}, r"engine.url: 'localhost:3'.*a URL such as"),
        (ALGORITHM, {"concurrency": 0}, {}, r"engine.concurrency: 0: out of range"),
        (ALGORITHM, {"timeout_s": 0.0}, {}, r"engine.timeout_s: 0.0: out of range"),
    ],
)
def test_refusals(tiny, run, algorithm, given, options, said) -> None:
    where = EngineConfig(**{"kind": "sglang", "url": "http://127.0.0.1:9"} | given)
    with pytest.raises(ValueError, match=said):
        run(tiny("llada"), algorithm, settings(**options), engine=where, base="b")


def test_what_can_take_weights() -> None:
    assert engine.updatable() == ["sglang"]
    assert engine.problems(EngineConfig("sglang", "https://host:30000")) == {}
