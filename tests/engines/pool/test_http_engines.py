"""A complete server in front of several HTTP engines: the responses that its clients receive when an engine fails."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.config.engines import ModelSpec
from antiphon.engines.factory import build_engine
from antiphon.transport.middleware.app import App
from antiphon.wiring import build_app
from tests.engines.unix_server import END, STREAM, json_response, sse_event
from tests.support.asgi_client import JSON, AsgiResponse, call
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

HELLO = sse_event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
LAST = sse_event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
USAGE = sse_event(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}')
GOOD_REPLY = STREAM + HELLO + LAST + USAGE + sse_event(b"[DONE]") + END
BUSY = json_response(b"{}", "429 Too Many Requests").replace(b"\r\n\r\n", b"\r\nRetry-After: 7\r\n\r\n", 1)
FAILURES = {
    "answers 500": json_response(b"{}", "500 Internal Server Error"),
    "answers 503": json_response(b"{}", "503 Service Unavailable"),
    "is overloaded": BUSY,
    "closes": b"",
    "closes before the first event": STREAM,
    "sends invalid JSON": STREAM + sse_event(b"{]") + END,
    "rejects the key": json_response(b"{}", "401 Unauthorized"),
    "does not have the model": json_response(b'{"error":{"message":"The model does not exist"}}', "404 Not Found"),
    "sends an error": STREAM + sse_event(b'{"error":{"message":"boom","code":500}}') + END,
}


class Upstream:
    """A stub engine with a configurable reply. `chats` counts chat requests; `keys` holds the authorization headers
    received.
    """

    def __init__(self, reply: bytes = GOOD_REPLY) -> None:
        self.reply = reply
        self.chats = 0
        self.keys: set[str] = set()
        self.bounds: list[int] = []
        self.address = ""

    @property
    def url(self) -> str:
        return f"openai://{self.address}"

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(lines.get("content-length", 0)))
            self.keys.add(lines.get("authorization", ""))
            if "/chat/completions" not in head.split("\r\n")[0]:
                writer.write(json_response(b'{"data":[{"id":"m"}]}'))
                continue
            self.chats += 1
            self.bounds.append(json.loads(body).get("max_completion_tokens"))
            writer.write(self.reply)
            if not self.reply.endswith(END) and b"Content-Length" not in self.reply:
                return


@asynccontextmanager
async def open_app(*upstreams: Upstream, **settings: Any) -> AsyncIterator[App]:
    """Breaker pauses are long, so that none ends during a test on a slow machine."""
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("antiphon.engines.pool.members.PAUSE", 60.0)
        for upstream in upstreams:
            port = await stack.enter_async_context(serve_tcp(upstream.serve))
            upstream.address = f"127.0.0.1:{port}"
        keys = tuple(f"{upstream.address}=sk-{number}" for number, upstream in enumerate(upstreams))
        config = Config.from_settings(
            engine=tuple(upstream.url for upstream in upstreams), engine_key=keys, store="memory", **settings
        )
        app = build_app(config, build_engine(config))
        await app.lifecycle.open()
        stack.push_async_callback(app.lifecycle.close)
        yield app


async def post_response(app: App, **body: Any) -> AsgiResponse:
    data = json.dumps({"model": "m", "input": "hi", **body}).encode()
    return await call(app, "POST", "/v1/responses", JSON, body=[data])


def last_response(result: AsgiResponse) -> dict[str, Any]:
    """Return the Response of the terminal event."""
    lines = [line[6:] for line in result.body.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    response: dict[str, Any] = json.loads(lines[-2])["response"]
    return response


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.shows("C.23", "C.25", "C.28")
async def test_a_failure_before_the_first_token_moves_the_request_to_another_engine(failure: str) -> None:
    ill, well = Upstream(FAILURES[failure]), Upstream()
    async with open_app(ill, well) as app:
        for number in range(12):  # whichever engine is called first
            result = await post_response(app, prompt_cache_key=f"{number}")
            assert (result.status, result.json()["status"]) == (200, "completed"), result.body
            streamed = last_response(await post_response(app, prompt_cache_key=f"{number}", stream=True))
            assert (streamed["status"], streamed["output"][0]["content"][0]["text"]) == ("completed", "Hello")
    assert well.chats == 24
    assert ill.chats >= 1
    assert ill.chats <= 3 or failure == "does not have the model", "its breaker opens after a few failures"


@pytest.mark.parametrize(
    "reply",
    [STREAM + HELLO, STREAM + HELLO + END, STREAM + HELLO + sse_event(b'{"error":"boom"}') + END],
    ids=["closes", "ends too early", "sends an error"],
)
@pytest.mark.shows("C.25")
async def test_a_failure_after_the_first_token_fails_the_response_without_a_retry(reply: bytes) -> None:
    ill, other = Upstream(reply), Upstream(reply)
    async with open_app(ill, other) as app:
        failed = last_response(await post_response(app, stream=True))
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert ill.chats + other.chats == 1
        assert (await post_response(app)).status == 500
        assert ill.chats + other.chats == 3, (
            "without a stream the client has received nothing yet, so the request is retried"
        )


async def test_a_rejected_request_is_not_retried() -> None:
    reply = json_response(b'{"error":{"message":"maximum context length is 8 tokens"}}', "400 Bad Request")
    one, two = Upstream(reply), Upstream(reply)
    async with open_app(one, two) as app:
        result = await post_response(app)
        assert (result.status, result.error["code"]) == (400, "context_length_exceeded")
        assert one.chats + two.chats == 1


async def test_overloaded_engines_result_in_a_retry_after() -> None:
    async with open_app(Upstream(BUSY), Upstream(BUSY)) as app:
        result = await post_response(app)
        assert (result.status, result.header(b"retry-after")) == (429, b"7")
        result = await post_response(app)
        assert result.status == 503, "no engine is called in the meantime"
        assert 1 <= int(result.header(b"retry-after") or 0) <= 7


async def test_every_engine_receives_only_its_own_key() -> None:
    one, two = Upstream(), Upstream()
    async with open_app(one, two) as app:
        for number in range(12):
            await post_response(app, prompt_cache_key=f"{number}")
        assert (one.keys, two.keys) == ({"bearer sk-0"}, {"bearer sk-1"})
        assert one.chats
        assert two.chats


@pytest.mark.shows("C.21", "H.6", "H.8")
async def test_the_state_of_each_engine_is_published() -> None:
    ill, well = Upstream(FAILURES["answers 500"]), Upstream()
    async with open_app(ill, well, engine_slots=5) as app:
        assert (await call(app, "GET", "/ready")).json() == {"status": "ready", "engines": {"up": 2, "all": 2}}
        for number in range(20):
            await post_response(app, prompt_cache_key=f"{number}")
        (shown,) = (await call(app, "GET", "/v1/capabilities")).json()["data"]
        assert (shown["engine"], shown["slots"]) == ("openai", 5), "the breaker of the other engine is open"
        assert [(one["name"], one["breaker"], one["slots"]) for one in shown["members"]] == [
            ("openai", "open", 5),
            ("openai-2", "closed", 5),
        ]
        metrics = (await call(app, "GET", "/metrics")).body.decode()
        assert 'antiphon_engine_up{engine="openai-2",model="m"} 1' in metrics
        assert 'antiphon_engine_breaker{engine="openai"} 1' in metrics
        assert 'antiphon_engine_failures_total{engine="openai"} 3' in metrics
        assert 'antiphon_engine_running{engine="openai-2"} 0' in metrics
        assert "127.0.0.1" not in json.dumps(shown), "clients do not see the addresses of engines"


@pytest.mark.shows("C1.1", "H.16")
async def test_models_have_their_own_aliases_and_token_limits() -> None:
    bounds = {"m": ModelSpec(max_output_tokens=9), "fast": ModelSpec(default_output_tokens=4)}
    one, two = Upstream(), Upstream()
    async with open_app(one, two, alias=("fast=m",), models=bounds, max_output_tokens=50) as app:
        assert (await post_response(app, model="fast")).json()["model"] == "fast"
        listed = (await call(app, "GET", "/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["m", "fast"]
        await post_response(app, model="fast", max_output_tokens=60)
        await post_response(app, max_output_tokens=60)
        await post_response(app)
    assert sorted(one.bounds + two.bounds) == [4, 9, 9, 50]
