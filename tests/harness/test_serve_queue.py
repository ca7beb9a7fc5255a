"""The queue of `dare-bench serve` and its HTTP side, with a model that does what a test wants. No torch."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import pytest
from dare_bench.dare.decoding.config import DecoderConfig
from dare_bench.dare.decoding.generation import Cost, Generation
from dare_bench.harness.serve import Server, Service
from dare_bench.harness.serve_errors import Refusal
from dare_bench.harness.serve_queue import Row, Scheduler, Ticket
from dare_bench.harness.serve_request import Defaults

DECODER = DecoderConfig(gen_length=8)


def generation(ids: list[int], reason: str = "length") -> Generation:
    return Generation(ids, ids, [0] * len(ids), [1.0] * len(ids), [0], ["denoise"], reason, Cost(nfe=1))


class FakeSession:
    """Each step finishes every row with the prompt backwards, when its model lets it."""

    def __init__(self, model: FakeModel, decoder: DecoderConfig) -> None:
        self.model, self.decoder, self.rows = model, decoder, {}

    def add(self, prompt: Sequence[int], seed: int, key: Hashable) -> None:
        self.rows[key] = list(prompt)

    def step(self) -> list[tuple[Hashable, Generation]]:
        self.model.most = max(self.model.most, len(self.rows))
        if self.model.error is not None:
            error, self.model.error = self.model.error, None
            raise error
        if not self.model.go.wait(0.01):
            return []
        rows, self.rows = self.rows, {}
        return [(key, generation(prompt[::-1])) for key, prompt in rows.items()]

    def cancel(self, key: Hashable) -> bool:
        self.model.cancelled += 1
        return self.rows.pop(key, None) is not None

    def finished_blocks(self, key: Hashable) -> list[int]:
        return self.model.partial


class FakeModel:
    """Letters are tokens."""

    longest, vocabulary, reads_text = 100, 128, True

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.partial: list[int] = []
        self.most = self.cancelled = self.opened = 0

    def encode_chat(self, messages: Sequence[Any]) -> list[int]:
        return self.encode_text(messages[-1]["content"])

    def encode_text(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    def open_session(self, decoder: DecoderConfig) -> FakeSession:
        if decoder.selector_options.get("refuse"):
            raise ValueError("no such rule")
        self.opened += 1
        return FakeSession(self, decoder)


class Running:
    """A server in this process."""

    def __init__(self, *, slots: int = 4, max_queue: int = 8) -> None:
        self.model = FakeModel()
        self.service = Service(
            Defaults(("fake",), "sdar", DECODER), lambda: self.model, slots=slots, max_queue=max_queue
        )
        self.service.start()
        self.server = Server(self.service, "127.0.0.1", 0, max_body=10_000)
        self.address = self.server.server_address[:2]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def ask(
        self, body: Any, path: str = "/v1/completions", method: str = "POST", **headers: str
    ) -> tuple[int, Any, Any]:
        """Status, headers and JSON of one request on its own connection."""
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        try:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, headers)
            answer = connection.getresponse()
            said = answer.read()
            return answer.status, answer.headers, json.loads(said) if said else None
        finally:
            connection.close()

    def stop(self) -> None:
        """End everything."""
        self.model.go.set()
        self.server.shutdown()
        self.server.server_close()
        self.service.finish(1.0)


@pytest.fixture
def running() -> Iterator[Running]:
    here = Running()
    yield here
    here.stop()


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_an_answer(running: Running) -> None:
    status, _, body = running.ask({"prompt": "abc"})
    assert status == 200 and body["object"] == "text_completion" and body["model"] == "fake"
    choice = body["choices"][0]
    assert choice["text"] == "cba" and choice["finish_reason"] == "length" and choice["dare"]["nfe"] == 1
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert "token_ids" not in choice["dare"] and "step_map" not in choice["dare"]
    _, _, body = running.ask({"messages": [{"role": "user", "content": "xy"}]}, "/v1/chat/completions")
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "yx"}


def test_several_prompts_and_answers_keep_their_order(running: Running) -> None:
    _, _, body = running.ask({"prompt": ["ab", "cde"], "n": 2, "dare": {"token_ids": True, "step_map": True}})
    assert [choice["text"] for choice in body["choices"]] == ["ba", "ba", "edc", "edc"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 5 and body["usage"]["completion_tokens"] == 10
    last = body["choices"][3]["dare"]
    assert (
        last["token_ids"] == [101, 100, 99] and last["step_map"] == [0, 0, 0] and last["convention"] == "row-forward-0"
    )


def test_stop_texts_end_an_answer(running: Running) -> None:
    _, _, body = running.ask({"prompt": "abcdef", "stop": ["cb", "d"]})
    assert body["choices"][0]["text"] == "fe" and body["choices"][0]["finish_reason"] == "stop"
    _, _, body = running.ask({"prompt": "abc", "stop": "x"})
    assert body["choices"][0]["text"] == "cba" and body["choices"][0]["finish_reason"] == "length"


GOOD = {"prompt": "ab"}
BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"prompt": ""}, 400, "at least one token"),
    ({"prompt": []}, 400, "a list of texts"),
    ({"prompt": ["a", [1]]}, 400, "not both"),
    ({"prompt": [1, True]}, 400, "prompt"),
    ({"prompt": [-1]}, 400, "prompt"),
    ({"prompt": [500]}, 400, "token id 500; allowed: 0 to 127"),
    ({"prompt": {"a": 1}}, 400, "prompt is"),
    ({"prompt": None}, 400, "prompt is missing"),
    ({"prompt": "a" * 95}, 400, "95 tokens and 8 are to be generated, 103 together; allowed: 100"),
    ({"prompt": "a", "max_tokens": 1000}, 400, "allowed: 100"),
    ({"max_tokens": 0}, 400, "max_tokens is 0; allowed: a positive whole number"),
    ({"max_tokens": "8"}, 400, "max_tokens"),
    ({"max_tokens": 8.5}, 400, "max_tokens"),
    ({"max_tokens": True}, 400, "max_tokens"),
    ({"max_tokens": 8, "max_completion_tokens": 9}, 400, "give one of them"),
    ({"temperature": -1}, 400, "temperature is -1; allowed: 0 (greedy)"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"temperature": [0.5]}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p is 0; allowed: a number above 0"),
    ({"top_p": 1.5}, 400, "top_p"),
    ({"top_k": 1.5}, 400, "top_k"),
    ({"n": 0}, 400, "n is 0; allowed: a whole number from 1 to 1024"),
    ({"n": "2"}, 400, "n is '2'"),
    ({"n": 9}, 400, "9 answers; allowed: at most 8"),
    ({"seed": -1}, 400, "seed"),
    ({"seed": 2**63}, 400, "seed"),
    ({"seed": "x"}, 400, "seed"),
    ({"stop": 5}, 400, "stop is 5"),
    ({"stop": [""]}, 400, "none empty"),
    ({"stop": ["a", 1]}, 400, "stop"),
    ({"stream": "yes"}, 400, "stream is 'yes'; allowed: true or false"),
    ({"stream_options": {"x": 1}}, 400, "stream_options.x"),
    ({"model": "gpt-4"}, 404, "'gpt-4' is not here; this server has fake"),
    ({"model": 5}, 400, "model"),
    ({"logprobs": 3}, 400, "logprobs is 3, which this server does not support"),
    ({"echo": True}, 400, "echo"),
    ({"best_of": True}, 400, "best_of"),
    ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
    ({"temprature": 0.5}, 400, "did you mean temperature?"),
    ({"messages": []}, 400, "unknown key messages"),
    ({"decoder": []}, 400, "decoder is []; allowed: an object with"),
    ({"decoder": {"treshold": 1}}, 400, "unknown decoder option 'treshold'"),
    ({"decoder": {"name": "x"}}, 400, "unknown decoder option 'name'"),
    ({"decoder": {"selector": "greedy"}}, 400, "greedy"),
    ({"decoder": {"selector": {"threshold": 2}}}, 400, "threshold"),
    ({"decoder": {"selector": {"a": 1, "b": 2}}}, 400, "one name"),
    ({"decoder": {"selector": {"low_confidence": 1}}}, 400, "low_confidence"),
    ({"decoder": {"selector": None}}, 400, "decoder.selector is null; allowed: a name, {name: value}"),
    ({"decoder": {"preset": "fastdllm_dul"}}, 400, "did you mean fastdllm_dual?"),
    ({"decoder": {"cache": {"vicinity": {"prefix": 1}}}}, 400, "prefix"),
    ({"decoder": {"scheduler": "nonsense"}}, 400, "decoder.scheduler: unknown scheduler: 'nonsense'; allowed:"),
    ({"decoder": {"compat": ["nonsense"]}}, 400, "nonsense"),
    ({"decoder": {"early_stop": "soon"}}, 400, "decoder.early_stop is 'soon'"),
    ({"decoder": {"cache_options": 5}}, 400, "decoder.cache_options is 5"),
    ({"decoder": {"selector": 5}}, 400, "selector"),
    ({"decoder": {"selector": "threshold", "selector_options": {"treshold": 1}}}, 400, "treshold"),
    ({"decoder": {"selector": {"threshold": {"threshold": 0.5}}, "selector_options": {}}}, 400, "beside the name"),
    ({"decoder": {"steps_per_block": 0}}, 400, "decoder.steps_per_block is 0"),
    ({"decoder": {"steps_per_block": "4"}}, 400, "decoder.steps_per_block"),
    ({"decoder": {"temperature": 0.5}, "temperature": 0.7}, 400, "give one of them"),
    ({"dare": 5}, 400, "dare is 5"),
    ({"dare": {"tokens": True}}, 400, "unknown key dare.tokens (did you mean token_ids?)"),
    ({"dare": {"token_ids": 1}}, 400, "dare.token_ids is 1; allowed: true or false"),
    ({"dare": {"stream_seed": 5}, "seed": 5}, 400, "without seed"),
    ({"dare": {"stream_seed": "5"}}, 400, "dare.stream_seed"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "status", "message"), BAD, ids=[json.dumps(change)[:50] for change, _, _ in BAD])
def test_a_bad_request(running: Running, change: dict[str, Any], status: int, message: str) -> None:
    given, _, body = running.ask(GOOD | change)
    assert given == status and message in body["error"]["message"] and body["error"]["type"]
    assert running.ask(GOOD)[0] == 200


CHATS: list[tuple[Any, str]] = [
    ([], "at least one message"),
    ("hello", "messages is 'hello'"),
    (["hello"], "messages[0]"),
    ([{"role": "user"}], "messages[0].content is null"),
    ([{"role": "robot", "content": "x"}], "messages[0].role is 'robot'; allowed: system"),
    ([{"role": ["user"], "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": 5}], "messages[0].content is 5"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "type text"),
    ([{"role": "user", "content": "\ud800"}], "whole characters"),
    ([{"role": "user", "content": ""}], "at least one token"),
    ([{"role": "assistant", "content": "x", "tool_calls": [1]}], "messages[0].tool_calls"),
]


@pytest.mark.parametrize(("messages", "message"), CHATS, ids=[str(index) for index in range(len(CHATS))])
def test_a_bad_conversation(running: Running, messages: Any, message: str) -> None:
    status, _, body = running.ask({"messages": messages}, "/v1/chat/completions")
    assert status == 400 and message in body["error"]["message"]


def test_neutral_keys_are_accepted(running: Running) -> None:
    body = {
        "prompt": "ab", "model": "fake", "user": "me", "logprobs": None, "echo": False, "best_of": 1, "top_p": 1.0,
        "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": None, "suffix": None, "stop": None, "top_k": -1,
    }  # fmt: skip
    assert running.ask(body)[0] == 200
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    _, _, said = running.ask(
        {"messages": [{"role": "developer", "content": parts, "name": "me"}]}, "/v1/chat/completions"
    )
    assert said["choices"][0]["message"]["content"] == "ba"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[1]", b"\xff\xfe", b'"x"', b'{"prompt": NaN}', b"[" * 5000, b'{"n": ' + b"9" * 5000 + b"}", b"null"],
    ids=range(9),
)
def test_a_body_that_is_no_json_object(running: Running, raw: bytes) -> None:
    status, _, body = running.ask(raw)
    assert status == 400 and body["error"]["code"] == "invalid_json"
    assert running.ask(GOOD)[0] == 200


def test_routes_and_methods(running: Running) -> None:
    assert running.ask(GOOD, "/v1/embeddings")[0] == 404
    status, headers, body = running.ask(b"", "/v1/completions", "GET")
    assert status == 405 and headers["Allow"] == "POST" and "allowed: POST" in body["error"]["message"]
    assert running.ask(GOOD, "/v1/models", "POST")[0] == 405
    assert running.ask(GOOD, "/v1/completions", "PUT")[0] == 405
    assert running.ask(GOOD, "/v1/completions", "BREW")[0] == 405
    assert running.ask(b"", "/v1/completions", "HEAD")[0] == 405
    status, _, body = running.ask(b"", "/v1/models", "GET")
    assert (
        status == 200 and [item["id"] for item in body["data"]] == ["fake"] and body["data"][0]["max_model_len"] == 100
    )
    assert running.ask(b"", "/v1/models/fake", "GET")[2]["id"] == "fake"
    assert running.ask(b"", "/health?x=1", "GET")[2] == {"status": "ok", "waiting": 0, "running": 0}


def test_bodies_that_are_too_large_or_have_no_length(running: Running) -> None:
    status, _, body = running.ask({"prompt": "a" * 2_000_000})
    assert status == 413 and "allowed: 10000" in body["error"]["message"]
    with socket.create_connection(running.address, timeout=10) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 411 ")
    with socket.create_connection(running.address, timeout=10) as client:
        client.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert running.ask(GOOD)[0] == 200


def test_a_connection_serves_many_requests(running: Running) -> None:
    connection = http.client.HTTPConnection(*running.address, timeout=10)
    local = set()
    for _ in range(3):
        connection.request("POST", "/v1/completions", json.dumps(GOOD))
        answer = connection.getresponse()
        assert answer.status == 200 and json.loads(answer.read())["choices"][0]["text"] == "ba"
        local.add(connection.sock.getsockname())
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "n": 0}))
        answer = connection.getresponse()
        assert answer.status == 400 and answer.read()
        local.add(connection.sock.getsockname())
    connection.close()
    assert len(local) == 1


def test_a_full_queue_says_when_to_come_again(running: Running) -> None:
    running.model.go.clear()
    threads = [threading.Thread(target=running.ask, args=({"prompt": "ab", "n": 4},)) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: running.service.scheduler.load == {"waiting": 8, "running": 4})
    status, headers, body = running.ask(GOOD)
    assert status == 503 and headers["Retry-After"] == "1" and body["error"]["code"] == "queue_full"
    running.model.go.set()
    for thread in threads:
        thread.join(10)
    assert running.ask(GOOD)[0] == 200 and running.model.most <= 4


def test_requests_share_a_session_when_their_settings_are_equal(running: Running) -> None:
    for body in (GOOD, GOOD | {"max_tokens": 8}, GOOD | {"seed": 3}, GOOD | {"max_tokens": 9}):
        assert running.ask(body)[0] == 200
    assert running.model.opened == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_is_forgotten(running: Running, stream: bool) -> None:
    running.model.go.clear()
    client = socket.create_connection(running.address)
    raw = json.dumps({"prompt": "ab", "n": 6, "stream": stream}).encode()
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw))
    until(lambda: running.service.scheduler.load == {"waiting": 2, "running": 4})
    client.close()
    until(lambda: running.service.scheduler.load == {"waiting": 0, "running": 0})
    assert running.model.cancelled == 4


def test_a_client_that_goes_away_while_it_asks(running: Running) -> None:
    with socket.create_connection(running.address) as client:
        client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prom')
    assert running.ask(GOOD)[0] == 200


def test_a_decoding_that_fails_fails_alone(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    running.model.error = RuntimeError("out of memory")
    status, _, body = running.ask(GOOD)
    assert status == 500 and "RuntimeError: out of memory" in body["error"]["message"]
    assert "out of memory" in capfd.readouterr().err
    running.model.error = ValueError("cache 'dual' does not fit")
    status, _, body = running.ask(GOOD)
    assert status == 400 and body["error"]["message"] == "cache 'dual' does not fit"
    assert running.ask(GOOD)[0] == 200


def events(raw: bytes) -> list[Any]:
    lines = [line[6:] for line in raw.decode().split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_stream_tells_finished_blocks(running: Running) -> None:
    running.model.go.clear()
    running.model.partial = list(b"fe")
    connection = http.client.HTTPConnection(*running.address, timeout=10)
    messages = [{"role": "user", "content": "abcdef"}]
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/event-stream")
    running.model.partial = list(b"fedc")
    time.sleep(0.1)
    running.model.go.set()
    chunks = events(answer.read())
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} and len(
        {chunk["id"] for chunk in chunks}
    ) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
    assert deltas == ["", "fe", "dc", "ba", ""]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length" and chunks[-2]["choices"][0]["dare"]["nfe"] == 1
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 12
    connection.request("POST", "/v1/completions", json.dumps(GOOD))
    assert connection.getresponse().status == 200
    connection.close()


def test_a_stream_holds_back_what_may_begin_a_stop_text(running: Running) -> None:
    running.model.go.clear()
    running.model.partial = list(b"fed")
    connection = http.client.HTTPConnection(*running.address, timeout=10)
    body = {"prompt": "abcdef", "stream": True, "stop": ["dcb"]}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    running.model.go.set()
    chunks = events(answer.read())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "fe"
    assert chunks[0]["choices"][0]["text"] == "f" and chunks[-1]["choices"][0]["finish_reason"] == "stop"
    connection.close()


def test_an_error_before_a_stream_is_an_error(running: Running) -> None:
    running.model.error = ValueError("does not fit")
    status, _, body = running.ask(GOOD | {"stream": True})
    assert status == 400 and body["error"]["message"] == "does not fit"


def test_stopping_finishes_what_runs_and_takes_nothing_new() -> None:
    running = Running(slots=2)
    running.model.go.clear()
    kept = http.client.HTTPConnection(*running.address, timeout=10)
    kept.request("GET", "/health")
    kept.getresponse().read()
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(running.ask(GOOD))) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: sum(running.service.scheduler.load.values()) == 5)
    results: list[bool] = []
    ending = threading.Thread(target=lambda: results.append(running.service.finish(10.0)))
    ending.start()
    until(lambda: running.service.stopping)
    kept.request("POST", "/v1/completions", json.dumps(GOOD))
    refused = kept.getresponse()
    assert (
        refused.status == 503
        and refused.headers["Connection"] == "close"
        and "shutting down" in refused.read().decode()
    )
    running.model.go.set()
    ending.join(10)
    for thread in threads:
        thread.join(10)
    assert results == [True] and [status for status, _, _ in answers] == [200] * 5
    running.stop()


def test_what_outlasts_the_grace_is_refused() -> None:
    running = Running(slots=2)
    running.model.go.clear()
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(running.ask(GOOD))) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: sum(running.service.scheduler.load.values()) == 3)
    assert running.service.finish(0.1) is False
    for thread in threads:
        thread.join(10)
    assert [status for status, _, _ in answers] == [503] * 3
    assert all("shut down" in body["error"]["message"] for _, _, body in answers)
    running.stop()


def test_rows_of_a_request_that_failed_do_not_enter() -> None:
    scheduler, model = Scheduler(2, 10), FakeModel()
    ticket = Ticket([Row([1], 0), Row([2], 0)], DecoderConfig(gen_length=8, selector_options={"refuse": True}))
    scheduler.submit(ticket)
    thread = threading.Thread(target=scheduler.run, args=(model.open_session,))
    thread.start()
    until(lambda: ticket.done)
    assert ticket.error is not None and ticket.error.status == 400 and ticket.error.message == "no such rule"
    scheduler.stop()
    thread.join(10)
    with pytest.raises(Refusal, match="shutting down"):
        scheduler.submit(Ticket([Row([1], 0)], DECODER))


def test_no_torch_is_loaded() -> None:
    code = "import sys, dare_bench.harness.serve, dare_bench.harness.commands.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_family_with_a_procedure_of_its_own() -> None:
    from dare_bench.dare.families.registry import get_family
    from dare_bench.harness.serve_decoder import decoder_of

    default = DecoderConfig(**{**get_family("diffusion_gemma").default_decoder, "gen_length": 8})
    body = {"decoder": {"steps_per_block": 3, "selector_options": {"entropy_bound": 0.2}}, "top_p": 1}
    found = decoder_of(body, default, "diffusion_gemma")
    assert found.steps_per_block == 3 and found.selector == default.selector
    assert found.selector_options == {**default.selector_options, "entropy_bound": 0.2}
    for refused in ({"top_p": 0.5}, {"decoder": {"selector": {"threshold": 0.9}}}, {"decoder": {"cache": "none"}}):
        with pytest.raises(Refusal, match="does not honour it"):
            decoder_of(refused, default, "diffusion_gemma")


def test_a_preset_is_the_published_decoder() -> None:
    from dare_bench.dare.decoding.presets import get
    from dare_bench.harness.serve_decoder import decoder_of

    found = decoder_of({"decoder": {"preset": "fastdllm_dual", "block_length": 16}}, DECODER, "llada")
    wanted = {**get("fastdllm_dual").fields, "block_length": 16, "gen_length": 8}
    assert {name: getattr(found, name) for name in wanted} == wanted
