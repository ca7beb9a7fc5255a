"""HTTP back ends against a stub server that misbehaves in every way a real one does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from dare_bench.dare.decoding.remote import BACKENDS, RemoteError, Retry, Sampling, Unsupported, connect

QUICK = Retry(attempts=4, first_s=0.01, longest_s=0.2)
SAMPLING_KEYS = {"max_new_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "sampling_seed"}
GREEDY = Sampling(max_tokens=8)
Reply = Callable[["Handler", Any], None]


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's `replies`, the last one for ever; without one as a well-behaved engine would."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Note the request, and answer it."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub: Stub = self.server.stub
        with stub.lock:
            stub.requests.append((self.path, body))
            stub.now += 1
            stub.most = max(stub.most, stub.now)
            queue = stub.replies.get(self.path, [])
            reply = queue.pop(0) if len(queue) > 1 else queue[0] if queue else None
        try:
            (reply or ENGINES[self.path])(self, body)
        finally:
            with stub.lock:
                stub.now -= 1

    def do_GET(self) -> None:
        """Health and models."""
        stub: Stub = self.server.stub
        if self.path == "/health" and stub.unready:
            stub.unready -= 1
            self.send(503, {"status": "loading"})
        else:
            self.send(200, {"data": [{"id": "stub-model"}]} if self.path == "/v1/models" else None)

    def send(self, status: int, body: Any, **headers: str) -> None:
        """A whole answer."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def events(self, *events: Any, done: bool = True) -> None:
        """A stream; None stands for a comment."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(b": still here\n\n" if event is None else f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
        if done:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class Stub:
    """A server for one test."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.replies: dict[str, list[Reply]] = {}
        self.lock = threading.Lock()
        self.now = self.most = self.unready = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.stub = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def connect(self, kind: str, **options: Any) -> Any:
        """A back end that talks to this server."""
        return connect(kind, self.url, **{"retry": QUICK, "timeout_s": 10, **options})

    def paths(self) -> list[str]:
        """Routes asked for, in order."""
        return [path for path, _ in self.requests]


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.server.shutdown()
    server.server.server_close()


def answer_of(ids: list[int], name: str | None) -> dict[str, Any]:
    """What the stub generates: the prompt's ids plus one, backwards."""
    out = [token + 1 for token in reversed(ids)]
    return {
        "text": " ".join(map(str, out)),
        "output_ids": out,
        "meta_info": {
            "id": name,
            "finish_reason": {"type": "stop", "matched": 0},
            "prompt_tokens": len(ids),
            "completion_tokens": len(out),
        },
    }


def generate(handler: Handler, body: Any) -> None:
    """Both `/generate` routes; SGLang's refuses sampling keys that it does not know."""
    if "sampling_params" not in body:
        return handler.send(200, answer_of(body["input_ids"], None))
    settings = body["sampling_params"]
    unknown = set(settings[0] if isinstance(settings, list) else settings) - SAMPLING_KEYS
    if unknown:
        return handler.send(400, {"error": {"message": f"Unexpected keyword argument {sorted(unknown)[0]!r}"}})
    pairs = zip(body["input_ids"], body["rid"], strict=True)
    return handler.send(200, [answer_of(ids, name) for ids, name in reversed(list(pairs))])


def completions(handler: Handler, body: Any) -> None:
    found = answer_of(body["prompt"], None)
    choice = {"index": 0, "text": found["text"], "finish_reason": "length"}
    choice |= {"token_ids": found["output_ids"]} if body.get("return_token_ids") else {}
    handler.send(200, {"choices": [choice], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": 3}})


def chat(handler: Handler, body: Any) -> None:
    message = {"role": "assistant", "content": body["messages"][-1]["content"].upper()}
    handler.send(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def accept(handler: Handler, body: Any) -> None:
    handler.send(200, {"success": True, "message": "ok"})


def nothing(handler: Handler, body: Any) -> None:
    handler.send(200, None)


ENGINES: dict[str, Reply] = {
    "/generate": generate,
    "/v1/completions": completions,
    "/v1/chat/completions": chat,
    "/pause_generation": accept,
    "/continue_generation": accept,
    "/update_weights_from_disk": accept,
    "/update_weights_from_tensor": accept,
    **dict.fromkeys(("/update_weights", "/pause", "/resume", "/start_weight_update", "/finish_weight_update"), nothing),
}


def drop(handler: Handler, body: Any) -> None:
    handler.close_connection = True


def cut(handler: Handler, body: Any) -> None:
    """Half of a JSON text, sent as if it were whole."""
    handler.send(200, b'{"text": "hal')


def short(handler: Handler, body: Any) -> None:
    """Fewer bytes than announced."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"text": "hal')
    handler.close_connection = True


def status(code: int, **headers: str) -> Reply:
    return lambda handler, body: handler.send(code, {"error": {"message": f"status {code}"}}, **headers)


def slow(handler: Handler, body: Any) -> None:
    time.sleep(1.0)
    ENGINES[handler.path](handler, body)


def trickle(handler: Handler, body: Any) -> None:
    """A byte now and then: every read succeeds in time, the answer never comes."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def test_prompts_travel_together_and_come_back_in_order(stub: Stub) -> None:
    prompts = [[index, 10 * index, 7] for index in range(1, 12)]
    found = stub.connect("sglang", batch_size=4).generate(prompts, Sampling(8, stop_token_ids=(0,)))
    assert [answer.token_ids for answer in found] == [[8, 10 * i + 1, i + 1] for i in range(1, 12)]
    assert [len(body["input_ids"]) for _, body in sorted(stub.requests, key=lambda item: item[1]["input_ids"][0])] == [
        4,
        4,
        3,
    ]
    first = found[0]
    assert (first.text, first.finish_reason, first.prompt_tokens, first.completion_tokens) == ("8 11 2", "stop", 3, 3)
    assert first.nfe is None and first.step_map is None and first.convention is None and first.latency_s > 0
    names = [name for _, body in stub.requests for name in body["rid"]]
    assert len(set(names)) == len(prompts)


def test_a_400_is_said_at_once(stub: Stub) -> None:
    with pytest.raises(RemoteError, match=r"/generate: HTTP 400: .*'treshold'.*Correct the request") as caught:
        stub.connect("sglang").generate([[1]], Sampling(8, extra={"treshold": 0.9}))
    assert caught.value.status == 400 and caught.value.url == stub.url + "/generate" and caught.value.attempts == 1
    assert len(stub.requests) == 1


@pytest.mark.parametrize("code", [401, 404, 413, 422])
def test_no_other_4xx_is_repeated(stub: Stub, code: int) -> None:
    stub.replies["/generate"] = [status(code)]
    with pytest.raises(RemoteError) as caught:
        stub.connect("sglang").generate([[1]], GREEDY)
    assert caught.value.status == code and f"status {code}" in str(caught.value) and len(stub.requests) == 1


@pytest.mark.parametrize("kind", ["sglang", "lmdeploy", "vllm"])
@pytest.mark.parametrize("broken", [status(429), status(500), status(503), drop, cut, short])
def test_what_passes_is_repeated(stub: Stub, kind: str, broken: Reply) -> None:
    backend = stub.connect(kind)
    path = backend.route
    stub.replies[path] = [broken, broken, ENGINES[path]]
    found = backend.generate([[4, 5]], GREEDY)
    assert found[0].token_ids == [6, 5] and stub.paths() == [path] * 3


def test_ids_of_a_broken_attempt_are_not_used_again(stub: Stub) -> None:
    stub.replies["/generate"] = [drop, generate]
    stub.connect("sglang").generate([[1], [2]], GREEDY)
    first, second = (set(body["rid"]) for _, body in stub.requests)
    assert not first & second


def test_attempts_end(stub: Stub) -> None:
    stub.replies["/generate"] = [status(503)]
    with pytest.raises(RemoteError, match=r"HTTP 503: the server cannot answer now after 4 attempts.*concurrency"):
        stub.connect("sglang").generate([[1]], GREEDY)
    assert len(stub.requests) == 4


def test_the_server_says_when(stub: Stub) -> None:
    stub.replies["/generate"] = [status(429, Retry_After="1"), generate]
    started = time.monotonic()
    stub.connect("sglang", retry=Retry(first_s=0.0, longest_s=5)).generate([[1]], GREEDY)
    assert 0.9 < time.monotonic() - started < 4


def test_pauses_double_up_to_a_bound() -> None:
    retry = Retry(first_s=1.0, longest_s=10.0)
    pauses = [retry.pause(number, None) for number in range(1, 7)]
    assert all(2.0**i <= pause <= 1.25 * 2.0**i for i, pause in enumerate(pauses[:3])) and pauses[4:] == [10.0, 10.0]
    assert retry.pause(1, 7.0) == 7.0 and retry.pause(1, 1000.0) == 10.0


def test_nobody_listens(stub: Stub) -> None:
    stub.server.shutdown()
    stub.server.server_close()
    with pytest.raises(RemoteError, match=r"cannot be reached.*Check that the server runs") as caught:
        stub.connect("sglang").generate([[1]], GREEDY)
    assert caught.value.status is None and caught.value.attempts == 4


@pytest.mark.parametrize("late", [slow, trickle])
def test_a_request_has_a_time_limit(stub: Stub, late: Reply) -> None:
    stub.replies["/generate"] = [late]
    started = time.monotonic()
    with pytest.raises(RemoteError, match=r"no (whole )?answer within .*timeout_s \(now 0.3\)"):
        stub.connect("sglang", timeout_s=0.3, retry=Retry(attempts=1)).generate([[1]], GREEDY)
    assert time.monotonic() - started < 0.9


def test_a_late_answer_is_asked_for_again(stub: Stub) -> None:
    stub.replies["/generate"] = [slow, generate]
    assert stub.connect("sglang", timeout_s=0.3).generate([[1]], GREEDY)[0].token_ids == [2]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_at_once_than_allowed(stub: Stub, concurrency: int) -> None:
    def wait(handler: Handler, body: Any) -> None:
        time.sleep(0.05)
        completions(handler, body)

    stub.replies["/v1/completions"] = [wait]
    found = stub.connect("vllm", concurrency=concurrency).generate([[i] for i in range(9)], GREEDY)
    assert [answer.token_ids for answer in found] == [[i + 1] for i in range(9)]
    assert stub.most == concurrency


def test_answers_are_told_as_they_come(stub: Stub) -> None:
    told: dict[int, Any] = {}
    found = stub.connect("vllm").generate([[1], [2]], GREEDY, on_finish=told.__setitem__)
    assert told == dict(enumerate(found))


def test_the_rest_is_not_sent_after_a_refusal(stub: Stub) -> None:
    stub.replies["/v1/completions"] = [status(400)]
    with pytest.raises(RemoteError):
        stub.connect("vllm", concurrency=1).generate([[i] for i in range(50)], GREEDY)
    assert len(stub.requests) < 5


def test_foreign_ids_are_refused(stub: Stub) -> None:
    stub.replies["/generate"] = [
        lambda handler, body: handler.send(200, [answer_of([1], "other"), answer_of([1], "x")])
    ]
    with pytest.raises(RemoteError, match="ids of the answers are not those of the request"):
        stub.connect("sglang").generate([[1], [2]], GREEDY)


def test_answers_without_ids_are_taken_as_sent(stub: Stub) -> None:
    def bare(handler: Handler, body: Any) -> None:
        handler.send(200, [{"output_ids": ids} for ids in body["input_ids"]])

    stub.replies["/generate"] = [bare]
    found = stub.connect("sglang").generate([[1], [2]], GREEDY)
    assert [answer.token_ids for answer in found] == [[1], [2]]
    assert found[0].text == "" and found[0].finish_reason == "unknown" and found[0].prompt_tokens is None


def test_a_missing_answer_is_an_error(stub: Stub) -> None:
    stub.replies["/generate"] = [lambda handler, body: handler.send(200, [answer_of([1], body["rid"][0])])]
    with pytest.raises(RemoteError, match="2 answers expected, 1 given"):
        stub.connect("sglang").generate([[1], [2]], GREEDY)


@pytest.mark.parametrize("kind", ["vllm", "chat", "lmdeploy"])
@pytest.mark.parametrize("empty", [{}, {"choices": []}, [], {"error": {"message": "no"}}], ids=str)
def test_an_answer_that_holds_none(stub: Stub, kind: str, empty: Any) -> None:
    backend = stub.connect(kind)
    stub.replies[backend.route] = [lambda handler, body: handler.send(200, empty)]
    prompt: Any = [{"role": "user", "content": "x"}] if kind == "chat" else [1]
    with pytest.raises(RemoteError, match=backend.route):
        backend.generate([prompt], GREEDY)
    assert len(stub.requests) == 1


def test_an_aborted_request_is_repeated_only_when_the_server_was_full(stub: Stub) -> None:
    def abort(code: int) -> Reply:
        reason = {"type": "abort", "message": "gone", "status_code": code}
        return lambda handler, body: handler.send(200, [{"text": "", "meta_info": {"finish_reason": reason}}])

    stub.replies["/generate"] = [abort(503), generate]
    assert stub.connect("sglang").generate([[1]], GREEDY)[0].token_ids == [2]
    stub.replies["/generate"] = [abort(400)]
    with pytest.raises(RemoteError, match=r"aborted.*gone"):
        stub.connect("sglang").generate([[1]], GREEDY)


def test_step_maps_are_asked_for_and_kept(stub: Stub) -> None:
    def mapped(handler: Handler, body: Any) -> None:
        found = answer_of(body["input_ids"][0], body["rid"][0])
        found["meta_info"]["step_maps"] = [1, 1]
        handler.send(200, [found])

    stub.replies["/generate"] = [mapped]
    found = stub.connect("sglang").generate([[1, 2]], GREEDY)[0]
    assert stub.requests[0][1]["return_step_maps"] is True
    assert found.step_map == [1, 1] and found.convention == "block-local-1"


def test_conversations(stub: Stub) -> None:
    hello = [{"role": "user", "content": "hello"}]
    found = stub.connect("chat").generate(
        [hello, hello], Sampling(8, temperature=0.7, top_p=0.9, stop=("x",)), seeds=[3, 4]
    )
    assert [answer.text for answer in found] == ["HELLO", "HELLO"]
    assert found[0].token_ids is None and found[0].prompt_tokens is None and found[0].finish_reason == "stop"
    bodies = sorted((body for _, body in stub.requests), key=lambda body: body["seed"])
    assert bodies[0] == {
        "model": "stub-model", "messages": hello, "max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "seed": 3,
        "stop": ["x"], "n": 1, "stream": False,
    }  # fmt: skip
    encoded = stub.connect("sglang", encode=lambda messages: [len(messages)]).generate([hello], GREEDY)
    assert encoded[0].token_ids == [2]


def test_what_a_route_has_no_place_for(stub: Stub) -> None:
    hello = [{"role": "user", "content": "hello"}]
    with pytest.raises(Unsupported, match=r"encode=lm.encode_chat"):
        stub.connect("sglang").generate([hello], GREEDY)
    with pytest.raises(Unsupported, match="is no conversation"):
        stub.connect("chat").generate([[1, 2]], GREEDY)
    with pytest.raises(Unsupported, match="takes no seed"):
        stub.connect("lmdeploy").generate([[1]], Sampling(8, temperature=1.0), seeds=[1])
    with pytest.raises(Unsupported, match="not both"):
        stub.connect("sglang").generate([[1], "one"], GREEDY)
    for empty in ([], ""):
        with pytest.raises(ValueError, match="prompt 0 is empty"):
            stub.connect("sglang").generate([empty], GREEDY)
    with pytest.raises(ValueError, match="holds 'a'"):
        stub.connect("vllm", model="m").generate([["a"]], GREEDY)
    with pytest.raises(ValueError, match="1 seeds for 2 prompts"):
        stub.connect("sglang").generate([[1], [2]], GREEDY, seeds=[1])
    with pytest.raises(
        ValueError, match="unknown kind of server 'tgi'; allowed: chat, dare-bench, lmdeploy, sglang, vllm"
    ):
        stub.connect("tgi")
    with pytest.raises(ValueError, match="allowed: a URL"):
        connect("sglang", "localhost:30000")
    assert stub.requests == []


def test_seeds_and_greedy_settings(stub: Stub) -> None:
    stub.connect("sglang").generate([[1], [2]], Sampling(8, temperature=1.0), seeds=[5, 6])
    stub.connect("sglang").generate([[1], [2]], GREEDY, seeds=[5, 6])
    stub.connect("lmdeploy").generate([[1]], Sampling(8, stop_token_ids=(3,)), seeds=[5])
    sampled, greedy, lmdeploy = (body for _, body in stub.requests)
    assert [settings["sampling_seed"] for settings in sampled["sampling_params"]] == [5, 6]
    assert "sampling_seed" not in greedy["sampling_params"]
    assert lmdeploy == {"input_ids": [1], "max_tokens": 8, "top_k": 1, "stop_token_ids": [3], "stream": False}


def test_a_stream_is_cumulative(stub: Stub) -> None:
    def sglang(handler: Handler, body: Any) -> None:
        assert body["stream"] is True and body["input_ids"] == [1, 2] and isinstance(body["rid"], str)
        handler.events(
            {"text": "one", "output_ids": [1], "meta_info": {"finish_reason": None}},
            None,
            {"text": None, "meta_info": {"prompt_tokens": 2}},
            {"text": "one two", "output_ids": [1, 2], "meta_info": {"finish_reason": {"type": "stop"}}},
        )

    stub.replies["/generate"] = [sglang]
    seen = list(stub.connect("sglang").stream([1, 2], GREEDY))
    assert [item.text for item in seen] == ["one", "one", "one two"]
    assert [item.finish_reason for item in seen] == [None, None, "stop"]
    assert seen[-1].token_ids == [1, 2] and seen[-1].prompt_tokens == 2 and seen[-1].latency_s > 0


def test_deltas_are_put_together(stub: Stub) -> None:
    def choice(**delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "finish_reason": None, **delta}]}

    def vllm(handler: Handler, body: Any) -> None:
        last = choice(text=" c", token_ids=[3], finish_reason="length")
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}
        handler.events(choice(text="a", token_ids=[1, 2]), last, usage)

    def lmdeploy(handler: Handler, body: Any) -> None:
        end = {"text": " c", "output_ids": [3], "meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 1}}
        handler.events({"text": "a", "output_ids": [1, 2]}, end)

    def openai(handler: Handler, body: Any) -> None:
        first = choice(delta={"role": "assistant", "content": None})
        handler.events(first, choice(delta={"content": "a c"}), choice(delta={}, finish_reason="stop"))

    stub.replies = {"/v1/completions": [vllm], "/generate": [lmdeploy], "/v1/chat/completions": [openai]}
    final = list(stub.connect("vllm").stream([1], GREEDY))[-1]
    assert (final.text, final.token_ids, final.finish_reason, final.completion_tokens) == (
        "a c",
        [1, 2, 3],
        "length",
        3,
    )
    final = list(stub.connect("lmdeploy").stream([1], GREEDY))[-1]
    assert (final.text, final.token_ids, final.finish_reason, final.prompt_tokens) == ("a c", [1, 2, 3], "stop", 1)
    seen = list(stub.connect("chat").stream([{"role": "user", "content": "x"}], GREEDY))
    assert [item.text for item in seen] == ["", "a c", "a c"] and seen[-1].finish_reason == "stop"


def test_a_stream_that_breaks_off(stub: Stub) -> None:
    chunk = {"text": "one", "output_ids": [1], "meta_info": {"finish_reason": None}}
    stub.replies["/generate"] = [lambda handler, body: handler.events(chunk, done=False)]
    stream = stub.connect("sglang").stream([1], GREEDY)
    assert next(stream).text == "one"
    with pytest.raises(RemoteError, match=r"the stream ended before \[DONE\]"):
        next(stream)
    stub.replies["/generate"] = [lambda handler, body: handler.events(chunk)]
    with pytest.raises(RemoteError, match="without a finish reason"):
        list(stub.connect("sglang").stream([1], GREEDY))
    stub.replies["/generate"] = [lambda handler, body: handler.events({"error": {"message": "out of memory"}})]
    with pytest.raises(RemoteError, match="out of memory"):
        list(stub.connect("sglang").stream([1], GREEDY))


def test_weights_from_disk(stub: Stub) -> None:
    stub.connect("sglang").update_weights_from_disk("ckpt/7", version="7")
    assert stub.paths() == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert stub.requests[1][1] == {"model_path": "ckpt/7", "weight_version": "7", "flush_cache": True}


def test_generation_goes_on_after_a_failed_update(stub: Stub) -> None:
    refused = {"success": False, "message": "no such folder"}
    stub.replies["/update_weights_from_disk"] = [lambda handler, body: handler.send(200, refused)]
    backend = stub.connect("sglang")
    with pytest.raises(RemoteError, match=r"the weights were not updated.*no such folder"):
        backend.update_weights_from_disk("ckpt/8")
    assert stub.paths()[-1] == "/continue_generation"
    assert backend.generate([[1]], GREEDY)[0].token_ids == [2]


def test_an_update_waits_for_what_is_in_flight(stub: Stub) -> None:
    stub.replies["/generate"] = [slow, generate]
    backend = stub.connect("sglang")
    running = threading.Thread(target=backend.generate, args=([[1]], GREEDY))
    running.start()
    while not stub.requests:
        time.sleep(0.01)
    backend.update_weights_from_disk("ckpt/9")
    assert stub.most == 1
    running.join()
    assert stub.paths() == ["/generate", "/pause_generation", "/update_weights_from_disk", "/continue_generation"]


def test_weights_as_each_engine_takes_them(stub: Stub) -> None:
    stub.connect("sglang").update_weights_from_tensors(["abc"], load_format="flattened_bucket")
    stub.connect("lmdeploy").update_weights_from_tensors(["abc"])
    stub.connect("vllm").transfer_weights({"names": ["w"]})
    bodies = dict(stub.requests)
    assert bodies["/update_weights_from_tensor"] == {
        "serialized_named_tensors": ["abc"], "load_format": "flattened_bucket", "flush_cache": True,
    }  # fmt: skip
    assert stub.requests[3][1] == {"serialized_named_tensors": ["abc"], "load_format": None, "finished": True}
    assert stub.paths()[4:] == [
        "/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(set(BACKENDS) - {"sglang"}))
def test_a_server_that_cannot_load_from_disk(stub: Stub, kind: str) -> None:
    with pytest.raises(Unsupported, match=r"no route that loads weights from a folder; .*restart"):
        stub.connect(kind).update_weights_from_disk("ckpt")
    assert stub.requests == []


def test_waiting_for_a_server(stub: Stub) -> None:
    stub.unready = 2
    backend = stub.connect("sglang")
    assert not backend.is_healthy()
    backend.wait_ready(5, every_s=0.01)
    assert backend.is_healthy() and stub.unready == 0
    stub.unready = 10**9
    with pytest.raises(RemoteError, match=r"/health: HTTP 503: not ready within 0.1 s"):
        backend.wait_ready(0.1, every_s=0.02)


def test_an_address_with_v1_is_the_same(stub: Stub) -> None:
    backend = connect("vllm", stub.url + "/v1/", retry=QUICK)
    assert backend.generate([[1]], GREEDY)[0].token_ids == [2] and backend.model == "stub-model"


def test_no_torch_is_loaded() -> None:
    code = "import sys, dare_bench.dare.decoding.remote; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
