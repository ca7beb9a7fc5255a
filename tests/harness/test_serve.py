"""`dare-bench serve` with real models: answers equal those of the engine, alone or in a crowd."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.dispatch import generate
from dare_bench.dare.decoding.generation import Generation
from dare_bench.dare.decoding.remote import RemoteError, RemoteGeneration, Retry, Sampling, connect
from dare_bench.dare.families import places
from dare_bench.dare.families.base import DiffusionLM
from dare_bench.dare.randomness import stream_seed
from dare_bench.harness.jobs.serving import ServedModel
from dare_bench.harness.serve import Server, Service
from dare_bench.harness.serve_request import Defaults

DECODER = DecoderConfig(gen_length=24)
QUESTIONS = [f"Tom has {a} apples and buys {b} more. How many apples does Tom have now?" for a, b in
             [(12, 7), (3, 4), (25, 14), (8, 9), (31, 5), (6, 6)]]  # fmt: skip


class Running:
    """A server of one model in this process."""

    def __init__(self, folder: str, family: str, slots: int = 4) -> None:
        def load() -> ServedModel:
            return ServedModel(folder, family, device="cpu", dtype="float32", slots=slots)

        self.service = Service(Defaults(("m",), family, DECODER), load, slots=slots, max_queue=100)
        self.service.start()
        self.server = Server(self.service, "127.0.0.1", 0)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def lm(self) -> DiffusionLM:
        """The model, for what it gives without a server."""
        return self.service.model.lm  # type: ignore[attr-defined]

    def connect(self, kind: str = "dare-bench", **options: Any) -> Any:
        """Our client on our server."""
        return connect(kind, self.server.url, retry=Retry(attempts=1), timeout_s=120, **options)

    def stop(self) -> None:
        """End it."""
        self.server.shutdown()
        self.server.server_close()
        self.service.finish(5.0)


@pytest.fixture(scope="module")
def sdar() -> Iterator[Running]:
    running = Running(str(places.package_folder("tiny-sdar")), "sdar")
    yield running
    running.stop()


def prompts_of(lm: DiffusionLM) -> list[list[int]]:
    return [lm.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]


def check_equal(found: list[RemoteGeneration], wanted: list[Generation], lm: DiffusionLM) -> None:
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in wanted]
    assert [answer.step_map for answer in found] == [answer.step_map for answer in wanted]
    assert [answer.text for answer in found] == [lm.decode(answer.text_ids) for answer in wanted]
    for answer, offline in zip(found, wanted, strict=True):
        assert (answer.nfe, answer.finish_reason, answer.convention) == (
            offline.cost.nfe, offline.finish_reason, offline.convention,
        )  # fmt: skip
        assert answer.completion_tokens == len(offline.text_ids)


@pytest.mark.parametrize(
    ("decoder", "sampling"),
    [
        ({}, Sampling(24)),
        ({"temperature": 0.8}, Sampling(24, temperature=0.8)),
        ({"gen_length": 9, "temperature": 1.0, "top_p": 0.9}, Sampling(9, temperature=1.0, top_p=0.9)),
        (
            {"selector": "threshold", "selector_options": {"threshold": 0.7}, "steps_per_block": 2},
            Sampling(24, extra={"decoder": {"selector": {"threshold": 0.7}, "steps_per_block": 2}}),
        ),
        ({"selector": "random"}, Sampling(24, extra={"decoder": {"selector": "random"}})),
    ],
    ids=["greedy", "sampled", "filtered", "threshold", "random"],
)
def test_answers_equal_those_of_the_engine(sdar: Running, decoder: dict[str, Any], sampling: Sampling) -> None:
    prompts, seeds = prompts_of(sdar.lm), [11, 22, 33, 44, 55, 66]
    wanted = generate(sdar.lm, prompts, replace(DECODER, **decoder), seeds)
    found = sdar.connect().generate(prompts, sampling, seeds=seeds)
    check_equal(found, wanted, sdar.lm)
    # Alone, and in another order, they are the same.
    alone = sdar.connect(concurrency=1).generate(prompts[::-1], sampling, seeds=seeds[::-1])
    check_equal(alone[::-1], wanted, sdar.lm)


def test_requests_with_different_settings_at_once(sdar: Running) -> None:
    prompt, settings = prompts_of(sdar.lm)[0], [4, 8, 12, 16, 20]
    results: dict[int, RemoteGeneration] = {}

    def ask(length: int) -> None:
        results[length] = sdar.connect().generate([prompt], Sampling(length))[0]

    threads = [threading.Thread(target=ask, args=(length,)) for length in settings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = [generate(sdar.lm, [prompt], replace(DECODER, gen_length=length), [0])[0] for length in settings]
    check_equal([results[length] for length in settings], wanted, sdar.lm)


def test_a_conversation_and_a_seed_give_what_the_command_gives(sdar: Running, invoke: Callable[..., Any]) -> None:
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS[:2]]
    found = sdar.connect("chat").generate(messages, Sampling(24, temperature=1.0), seeds=[5, 5])
    seeds = [stream_seed(5, "decode", "prompt", 0)] * 2
    wanted = generate(sdar.lm, prompts_of(sdar.lm)[:2], replace(DECODER, temperature=1.0), seeds)
    assert [answer.text for answer in found] == [sdar.lm.decode(answer.text_ids) for answer in wanted]
    assert found[0].nfe == wanted[0].cost.nfe and found[0].token_ids is None
    said = invoke(
        "generate",
        "tiny-sdar",
        QUESTIONS[0],
        "--seed",
        "5",
        "--gen-length",
        "24",
        "--temperature",
        "1",
        "--device",
        "cpu",
    )
    assert said.out.strip() == found[0].text.strip()


def test_answers_of_one_prompt_have_seeds_of_their_own(sdar: Running) -> None:
    prompt = prompts_of(sdar.lm)[0]
    body = {"prompt": [prompt, prompt], "n": 3, "seed": 7, "temperature": 1.0, "dare": {"token_ids": True}}
    said = sdar.connect().client.post("/v1/completions", body)
    ids = [choice["dare"]["token_ids"] for choice in said["choices"]]
    seeds = [stream_seed(7, "decode", "prompt", index) for index in range(3)]
    wanted = generate(sdar.lm, [prompt] * 3, replace(DECODER, temperature=1.0), seeds)
    assert ids == [answer.token_ids for answer in wanted] * 2
    assert all(choice["dare"]["seed"] == 7 for choice in said["choices"])
    # Without a seed each request draws anew, and says with which seed it can be had again.
    first, second = (
        sdar.connect().client.post("/v1/completions", {"prompt": prompt, "temperature": 1.0}) for _ in range(2)
    )
    drawn = [said["choices"][0]["dare"]["seed"] for said in (first, second)]
    again = sdar.connect().client.post("/v1/completions", {"prompt": prompt, "temperature": 1.0, "seed": drawn[0]})
    assert drawn[0] != drawn[1] and again["choices"][0]["text"] == first["choices"][0]["text"]


@pytest.mark.parametrize("kind", ["dare-bench", "chat"])
def test_a_stream_ends_in_the_whole_answer(sdar: Running, kind: str) -> None:
    backend = sdar.connect(kind)
    chat = [{"role": "user", "content": QUESTIONS[0]}]
    prompt: Any = chat if kind == "chat" else sdar.lm.encode_chat(chat)
    whole = backend.generate([prompt], Sampling(24))[0]
    seen = list(backend.stream(prompt, Sampling(24)))
    assert len(seen) > 3 and all(b.text.startswith(a.text) for a, b in itertools.pairwise(seen))
    assert replace(seen[-1], latency_s=0.0) == replace(whole, latency_s=0.0)


def test_settings_that_the_engine_refuses(sdar: Running) -> None:
    backend, prompt = sdar.connect(), prompts_of(sdar.lm)[0]
    for decoder, message in (({"cache": "nonsense"}, "nonsense"), ({"cache": "dual"}, "dual")):
        with pytest.raises(RemoteError, match=message) as caught:
            backend.generate([prompt], Sampling(8, extra={"decoder": decoder}))
        assert caught.value.status == 400
    assert backend.generate([prompt], Sampling(8))[0].nfe


@pytest.mark.parametrize("family", ["llada", "autoregressive"])
def test_other_engines(family: str, tmp_path: Path) -> None:
    maker = Path(__file__).with_name("tiny_checkpoint.py")
    subprocess.run([sys.executable, str(maker), family, str(tmp_path / "c")], check=True)
    running = Running(str(tmp_path / "c"), family)
    try:
        prompts, seeds = prompts_of(running.lm), [1, 2, 3, 4, 5, 6]
        wanted = generate(running.lm, prompts, replace(DECODER, temperature=1.0), seeds)
        check_equal(running.connect().generate(prompts, Sampling(24, temperature=1.0), seeds=seeds), wanted, running.lm)
        last = list(running.connect().stream(prompts[0], Sampling(24, temperature=1.0), seed=1))[-1]
        assert last.token_ids == wanted[0].token_ids
        if family == "autoregressive":
            with pytest.raises(RemoteError, match=r"decoder.cache: the family autoregressive .*does not honour"):
                running.connect().generate(prompts[:1], Sampling(8, extra={"decoder": {"cache": "none"}}))
    finally:
        running.stop()


class Process:
    """`dare-bench serve` as users start it."""

    def __init__(self, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "dare_bench.harness.cli",
            "serve",
            "tiny-sdar",
            "--port",
            "0",
            "--device",
            "cpu",
        ]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + self.end()[2]
        self.url = found.group()

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_finishes_running_requests(number: int) -> None:
    server = Process("--slots", "4")
    backend = connect("chat", server.url, retry=Retry(attempts=1), concurrency=8)
    messages = [[{"role": "user", "content": question}] for question in (QUESTIONS * 2)[:8]]
    sampling = Sampling(240, extra={"decoder": {"early_stop": False}})
    results: list[Any] = []
    asking = threading.Thread(target=lambda: results.extend(backend.generate(messages, sampling)))
    asking.start()
    while sum(backend.client.get("/health")[key] for key in ("waiting", "running")) < 8:
        time.sleep(0.01)
    code, out, err = server.end(number)
    asking.join(60)
    assert code == 0 and "stopping" in out and not err, err
    assert len(results) == 8 and results[:6] == [
        replace(item, latency_s=results[i].latency_s) for i, item in enumerate(results[:6])
    ]
    assert [item.nfe for item in results] == [results[i % 6].nfe for i in range(8)] and results[0].text == results[
        6
    ].text
    assert not backend.is_healthy()


def test_requests_that_outlast_the_grace_are_told() -> None:
    server = Process("--slots", "2", "--grace", "0.2")
    backend = connect("chat", server.url, retry=Retry(attempts=1))
    errors: list[RemoteError] = []

    def ask() -> None:
        try:
            backend.generate(
                [[{"role": "user", "content": "x"}]], Sampling(8000, extra={"decoder": {"early_stop": False}})
            )
        except RemoteError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not backend.client.get("/health")["running"]:
        time.sleep(0.01)
    code, out, _ = server.end(signal.SIGTERM)
    asking.join(60)
    assert code == 1 and "cut off" in out
    assert [error.status for error in errors] == [503] and "shut down" in str(errors[0])


def test_what_the_command_refuses(invoke: Callable[..., Any], sdar: Running) -> None:
    unknown = invoke("serve", "tiny-sdr")
    assert unknown.code == 2 and "Did you mean 'tiny-sdar'" in unknown.err
    port = str(sdar.server.server_address[1])
    taken = invoke("serve", "tiny-sdar", "--port", port, "--device", "cpu")
    assert taken.code == 2 and f"--port {port}" in taken.err and "--port 0 takes a free one" in taken.err
    family = invoke("serve", "tiny-sdar", "--family", "llada")
    assert family.code == 2 and "--family llada: tiny-sdar is of the family sdar" in family.err
    assert invoke("serve", "tiny-sdar", "--selector", "nonsense").code == 2


@pytest.mark.slow
def test_two_hundred_clients_at_once(sdar: Running, tmp_path: Path) -> None:
    lm, count = sdar.lm, 200
    texts = [
        f"Tom has {3 + i % 50} apples and buys {2 + i % 37} more. How many apples does Tom have now?"
        for i in range(count)
    ]
    decoders: list[dict[str, Any]] = [{}, {"selector": {"threshold": {"threshold": 0.8}}}]
    good = [
        {
            "path": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": text}], "max_tokens": 32, "temperature": float(i % 3 == 0),
                "seed": i, "decoder": decoders[i % 2], "dare": {"token_ids": True, "step_map": True},
            },
        }
        for i, text in enumerate(texts)
    ]  # fmt: skip
    bad = [
        {"path": "/v1/chat/completions", "raw": "{"},
        {"path": "/v1/chat/completions", "body": {"messages": []}},
        {"path": "/v1/completions", "body": {"prompt": [10**9]}},
        {"path": "/v1/completions", "body": {"prompt": "x", "decoder": {"treshold": 0.9}}},
        {"path": "/v1/completions", "body": {"prompt": "x", "model": "other"}},
        {"path": "/v1/nothing", "body": {}},
        {"path": "/v1/completions", "body": {"prompt": "x", "decoder": {"cache": "nonsense"}}},
    ]
    crowd, is_bad = [], []
    for index, item in enumerate(good):
        crowd.append(item)
        is_bad.append(False)
        if index % 5 == 0:
            crowd.append(bad[(index // 5) % len(bad)])
            is_bad.append(True)
    file = tmp_path / "requests.json"
    file.write_text(json.dumps({"requests": crowd}))
    server = Process("--slots", "16")
    started = time.monotonic()
    client = [sys.executable, str(Path(__file__).with_name("serve_client.py")), server.url, str(file)]
    done = subprocess.run(client, capture_output=True, text=True, check=True, timeout=400)
    wall = time.monotonic() - started
    answers = json.loads(done.stdout)
    refused = [status for (status, _), wrong in zip(answers, is_bad, strict=True) if wrong]
    assert len(refused) == 40 and set(refused) == {400, 404}
    choices = [body["choices"][0] if status == 200 else (status, body)
               for (status, body), wrong in zip(answers, is_bad, strict=True) if not wrong]  # fmt: skip
    assert len(choices) == count and all(isinstance(choice, dict) for choice in choices), choices[:3]
    prompts = [lm.encode_chat([{"role": "user", "content": text}]) for text in texts]
    threshold = {"selector": "threshold", "selector_options": {"threshold": 0.8}}
    tokens = 0
    for rule in (0, 1):
        for hot in (False, True):
            index = [i for i in range(count) if i % 2 == rule and (i % 3 == 0) == hot]
            decoder = DecoderConfig(gen_length=32, temperature=float(hot), **(threshold if rule else {}))
            seeds = [stream_seed(i, "decode", "prompt", 0) for i in index]
            for i, wanted in zip(index, generate(lm, [prompts[i] for i in index], decoder, seeds), strict=True):
                assert choices[i]["dare"]["token_ids"] == wanted.token_ids, i
                assert choices[i]["dare"]["step_map"] == wanted.step_map, i
                assert choices[i]["message"]["content"] == lm.decode(wanted.text_ids)
                tokens += len(wanted.text_ids)
    assert connect("chat", server.url).is_healthy()
    code, _, err = server.end(signal.SIGTERM)
    assert code == 0 and not err
    print(f"\n{count} answers and {len(refused)} refusals in {wall:.1f} s, {tokens / wall:.0f} tokens/s of text")
