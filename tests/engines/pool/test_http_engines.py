"""A whole server in front of several engines that speak HTTP: what its clients are told when one does not do well."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.config.engines import ModelSpec
from antiphon.engines.pool.breaker import Breaker
from antiphon.transport.middleware.app import App
from antiphon.wiring import build_app, build_engine
from tests.engines.http.stubs.chat_stub import tcp
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event
from tests.support.asgi_client import JSON, Answer, call

pytestmark = pytest.mark.anyio

HELLO = event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
LAST = event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
USAGE = event(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}')
WELL = STREAM + HELLO + LAST + USAGE + event(b"[DONE]") + END
BUSY = answer(b"{}", "429 Too Many Requests").replace(b"\r\n\r\n", b"\r\nRetry-After: 7\r\n\r\n", 1)
ELSEWHERE = {
    "answers 500": answer(b"{}", "500 Internal Server Error"),
    "answers 503": answer(b"{}", "503 Service Unavailable"),
    "has too much to do": BUSY,
    "hangs up": b"",
    "hangs up before it says a word": STREAM,
    "talks nonsense": STREAM + event(b"{]") + END,
    "does not take our key": answer(b"{}", "401 Unauthorized"),
    "lost the model": answer(b'{"error":{"message":"The model does not exist"}}', "404 Not Found"),
    "says that it failed": STREAM + event(b'{"error":{"message":"boom","code":500}}') + END,
}


class Upstream:
    """What it does with chats is up to the test; `chats` counts them, `keys` are those that it was shown."""

    def __init__(self, wire: bytes = WELL) -> None:
        self.wire = wire
        self.chats = 0
        self.keys: set[str] = set()
        self.bounds: list[int] = []
        self.place = ""

    @property
    def url(self) -> str:
        return f"openai://{self.place}"

    async def behave(self, reader: Reader, writer: Writer) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(lines.get("content-length", 0)))
            self.keys.add(lines.get("authorization", ""))
            if "/chat/completions" not in head.split("\r\n")[0]:
                writer.write(answer(b'{"data":[{"id":"m"}]}'))
                continue
            self.chats += 1
            self.bounds.append(json.loads(body).get("max_completion_tokens"))
            writer.write(self.wire)
            if not self.wire.endswith(END) and b"Content-Length" not in self.wire:
                return


@asynccontextmanager
async def served(*upstreams: Upstream, **settings: Any) -> AsyncIterator[App]:
    """Pauses are long, so that a slow machine does not see the end of one."""
    async with AsyncExitStack() as opened:
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("antiphon.engines.pool.member.Breaker", partial(Breaker, pause=60.0))
        for upstream in upstreams:
            port = await opened.enter_async_context(tcp(upstream.behave))
            upstream.place = f"127.0.0.1:{port}"
        keys = tuple(f"{upstream.place}=sk-{number}" for number, upstream in enumerate(upstreams))
        config = Config(
            engine=tuple(upstream.url for upstream in upstreams), engine_key=keys, store="memory", **settings
        )
        app = build_app(config, build_engine(config))
        await app.lifecycle.open()
        opened.push_async_callback(app.lifecycle.close)
        yield app


async def post(app: App, **body: Any) -> Answer:
    asked = json.dumps({"model": "m", "input": "hi", **body}).encode()
    return await call(app, "POST", "/v1/responses", JSON, body=[asked])


def last(told: Answer) -> dict[str, Any]:
    """The Response of the terminal event."""
    lines = [line[6:] for line in told.body.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    response: dict[str, Any] = json.loads(lines[-2])["response"]
    return response


@pytest.mark.parametrize("fate", ELSEWHERE)
@pytest.mark.shows("C.23", "C.25", "C.28")
async def test_whatever_goes_wrong_before_the_first_token_another_engine_answers(fate: str) -> None:
    ill, well = Upstream(ELSEWHERE[fate]), Upstream()
    async with served(ill, well) as app:
        for number in range(12):  # whichever of them is asked first
            told = await post(app, prompt_cache_key=f"{number}")
            assert (told.status, told.json()["status"]) == (200, "completed"), told.body
            streamed = last(await post(app, prompt_cache_key=f"{number}", stream=True))
            assert (streamed["status"], streamed["output"][0]["content"][0]["text"]) == ("completed", "Hello")
    assert well.chats == 24
    assert ill.chats >= 1
    assert ill.chats <= 3 or fate == "lost the model", "it is left alone after a while"


@pytest.mark.parametrize(
    "wire",
    [STREAM + HELLO, STREAM + HELLO + END, STREAM + HELLO + event(b'{"error":"boom"}') + END],
    ids=["hangs up", "ends too early", "says that it failed"],
)
@pytest.mark.shows("C.25")
async def test_after_the_first_token_the_response_fails_and_nobody_else_is_asked(wire: bytes) -> None:
    ill, other = Upstream(wire), Upstream(wire)
    async with served(ill, other) as app:
        failed = last(await post(app, stream=True))
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert ill.chats + other.chats == 1
        assert (await post(app)).status == 500
        assert ill.chats + other.chats == 3, "of what is told at once nobody has heard a token"


async def test_what_is_wrong_with_a_request_is_told_by_the_first_that_is_asked() -> None:
    wire = answer(b'{"error":{"message":"maximum context length is 8 tokens"}}', "400 Bad Request")
    one, two = Upstream(wire), Upstream(wire)
    async with served(one, two) as app:
        told = await post(app)
        assert (told.status, told.error["code"]) == (400, "context_length_exceeded")
        assert one.chats + two.chats == 1


async def test_when_all_have_too_much_to_do_the_client_is_told_when_to_come_back() -> None:
    async with served(Upstream(BUSY), Upstream(BUSY)) as app:
        told = await post(app)
        assert (told.status, told.header(b"retry-after")) == (429, b"7")
        told = await post(app)
        assert told.status == 503, "nobody is asked in the meantime"
        assert 1 <= int(told.header(b"retry-after") or 0) <= 7


async def test_every_engine_is_shown_its_own_key_and_no_other() -> None:
    one, two = Upstream(), Upstream()
    async with served(one, two) as app:
        for number in range(12):
            await post(app, prompt_cache_key=f"{number}")
        assert (one.keys, two.keys) == ({"bearer sk-0"}, {"bearer sk-1"})
        assert one.chats
        assert two.chats


@pytest.mark.shows("C.21", "H.6", "H.8")
async def test_the_state_of_each_engine_is_shown() -> None:
    ill, well = Upstream(ELSEWHERE["answers 500"]), Upstream()
    async with served(ill, well, engine_slots=5) as app:
        assert (await call(app, "GET", "/ready")).json() == {"status": "ready", "engines": {"up": 2, "all": 2}}
        for number in range(20):
            await post(app, prompt_cache_key=f"{number}")
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert (shown["engine"], shown["slots"]) == ("openai", 5), "the other one is left alone"
        assert [(one["name"], one["breaker"], one["slots"]) for one in shown["members"]] == [
            ("openai", "open", 5),
            ("openai-2", "closed", 5),
        ]
        metrics = (await call(app, "GET", "/metrics")).body.decode()
        assert 'antiphon_engine_up{engine="openai-2",model="m"} 1' in metrics
        assert 'antiphon_engine_breaker{engine="openai"} 1' in metrics
        assert 'antiphon_engine_failures_total{engine="openai"} 3' in metrics
        assert 'antiphon_engine_running{engine="openai-2"} 0' in metrics
        assert "127.0.0.1" not in json.dumps(shown), "where engines are is no business of clients"


@pytest.mark.shows("C1.1", "H.16")
async def test_models_have_aliases_and_bounds_of_their_own() -> None:
    bounds = {"m": ModelSpec(max_output_tokens=9), "fast": ModelSpec(default_output_tokens=4)}
    one, two = Upstream(), Upstream()
    async with served(one, two, alias=("fast=m",), models=bounds, max_output_tokens=50) as app:
        assert (await post(app, model="fast")).json()["model"] == "fast"
        listed = (await call(app, "GET", "/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["m", "fast"]
        await post(app, model="fast", max_output_tokens=60)
        await post(app, max_output_tokens=60)
        await post(app)
    assert sorted(one.bounds + two.bounds) == [4, 9, 9, 50]
