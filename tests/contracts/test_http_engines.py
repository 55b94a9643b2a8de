"""Contract suite of HTTP engines: runs against every registered HTTP engine with a stub upstream.

Checks that each answer costs one request, that the key is sent only to the engine and never exposed, and that every
failure of the upstream becomes an error in time.

Covers `engines/http/base.py` and `engines/http/endpoints.py`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic

import msgspec
import pytest

from antiphon.core.prompt import GenerationRequest
from antiphon.engines.base import Engine
from antiphon.engines.http.base import HttpEngine, HttpSettings
from antiphon.errors import EngineFailed, StartupError, Unavailable
from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.generation import make_request, open_engine, run_generation
from tests.engines.unix_server import END, STREAM, json_response, read_request, sse_event
from tests.support.local_servers import Reader, Writer, serve_tcp
from tools.engines_page import ENGINE_CLASSES

pytestmark = pytest.mark.anyio

KEY = "sk-canary-7f3a9c"
MAX_SECONDS = 30.0
SHORT_TIMEOUT = 0.4  # seconds until a silent upstream times out
MODELS = json_response(b'{"object":"list","data":[{"id":"m"}],"models":[{"name":"m"}]}')
BAD_REQUEST = json_response(b'{"error":{"message":"This is not how to ask."}}', "400 Bad Request")
HELLO = sse_event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
STOP = sse_event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}') + sse_event(b"[DONE]") + END
ReplyWriter = Callable[[Writer], Awaitable[None]]


@pytest.fixture(params=sorted(ENGINE_CLASSES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Upstream:
    """Answers model lists correctly, and each stream request with the next configured reply."""

    def __init__(self, *replies: bytes | ReplyWriter) -> None:
        self._replies = list(replies)
        self.heads: list[bytes] = []
        self.stream_requests = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            body = await reader.readexactly(int(sizes[0])) if sizes else b""
            self.heads.append(head)
            if b'"stream":true' not in body:
                writer.write(MODELS if b"/models " in head or b"/tags " in head else BAD_REQUEST)
                continue
            reply = self._replies[min(self.stream_requests, len(self._replies) - 1)]
            self.stream_requests += 1
            if isinstance(reply, bytes):
                writer.write(reply)
            else:
                await reply(writer)
            if not reply or not isinstance(reply, bytes) or not reply.endswith(END):
                return


@asynccontextmanager
async def connect_engine(
    name: str, upstream: Upstream, key: str | None = None, failure: str = ""
) -> AsyncIterator[HttpEngine]:
    async with serve_tcp(upstream.serve) as port:
        settings = HttpSettings(
            engine=f"{name}://127.0.0.1:{port}",
            engine_key=key,
            model=("m",),
            first_token_timeout=SHORT_TIMEOUT if failure == "sends nothing" else 2 * MAX_SECONDS,
            idle_timeout=SHORT_TIMEOUT if failure == "stalls" else 2 * MAX_SECONDS,
        )
        engine = ENGINE_CLASSES[name](settings)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


async def send_nothing(writer: Writer) -> None:
    await asyncio.Event().wait()


async def send_hello_and_stall(writer: Writer) -> None:
    writer.write(STREAM + HELLO)
    await send_nothing(writer)


FAILURES: dict[str, bytes | ReplyWriter] = {
    "closes at once": b"",
    "closes mid-stream": STREAM + HELLO,
    "sends nothing": send_nothing,
    "stalls": send_hello_and_stall,
    "sends invalid JSON": STREAM + HELLO + sse_event(b"{]") + END,
    "does not send HTTP": b"SSH-2.0-OpenSSH\r\n",
    "sends an error event": STREAM + HELLO + sse_event(b'{"error":{"message":"boom"}}') + END,
    "sends no finish reason": STREAM + HELLO + sse_event(b"[DONE]") + END,
    "returns 502": json_response(b"<html>", "502 Bad Gateway"),
    "returns HTML": json_response(b"<html>"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.shows("C.28")
async def test_a_failing_engine_results_in_an_error_in_time(name: str, failure: str) -> None:
    async with connect_engine(name, Upstream(FAILURES[failure]), KEY, failure) as engine:
        begun = monotonic()
        result = await run_generation(engine)
        assert isinstance(result.error, EngineFailed | Unavailable)
        assert monotonic() - begun < MAX_SECONDS
        assert not any(chunk.finish for chunk in result.chunks)
        assert KEY not in str(result.error)


@pytest.mark.shows("C.28")
async def test_an_unreachable_engine_is_unavailable(name: str) -> None:
    engine = ENGINE_CLASSES[name](HttpSettings(engine=f"{name}://127.0.0.1:9", engine_key=KEY, model=("m",)))
    await engine.open()
    result = await run_generation(engine)
    assert isinstance(result.error, Unavailable)
    assert not engine.is_healthy()
    await engine.close()


@pytest.mark.parametrize("failure", ["closes mid-stream", "stalls", "sends invalid JSON", "sends an error event"])
async def test_a_failure_after_the_first_token_is_not_retried(name: str, failure: str) -> None:
    upstream = Upstream(FAILURES[failure], STREAM + HELLO + STOP)
    async with connect_engine(name, upstream, failure=failure) as engine:
        result = await run_generation(engine)
        assert result.text == "Hello"
        assert result.error is not None
        assert upstream.stream_requests == 1


async def test_a_closed_pooled_connection_is_retried_at_most_once(name: str) -> None:
    upstream = Upstream(STREAM + HELLO + STOP, b"", STREAM + HELLO + STOP, b"")
    async with connect_engine(name, upstream) as engine:
        assert (await run_generation(engine)).error is None
        assert (await run_generation(engine)).error is None  # closes the pooled one; retried over a new one
        assert upstream.stream_requests == 3
        assert (await run_generation(engine)).error is not None  # over a pooled or a new connection
        assert upstream.stream_requests <= 5


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(name: str, status: int) -> None:
    visits = 0

    async def count_visit(reader: Reader, writer: Writer) -> None:
        nonlocal visits
        visits += 1

    async with serve_tcp(count_visit) as port:
        redirect = f"HTTP/1.1 {status} Elsewhere\r\nLocation: http://127.0.0.1:{port}/v1/chat/completions\r\n"
        upstream = Upstream(f"{redirect}Content-Length: 0\r\n\r\n".encode())
        async with connect_engine(name, upstream, KEY) as engine:
            result = await run_generation(engine)
            assert isinstance(result.error, EngineFailed)
            assert "redirect" in str(result.error)
        assert (visits, upstream.stream_requests) == (0, 1)


async def test_the_key_is_sent_with_every_request_and_never_exposed(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the engine repeats the key in its errors."""
    caplog.set_level(logging.DEBUG)
    echo = json_response(f'{{"error":{{"message":"The key {KEY} is wrong."}}}}'.encode(), "401 Unauthorized")
    wrong = echo.replace(b"401 Unauthorized", b"400 Bad Request")
    upstream = Upstream(echo, wrong, STREAM + sse_event(f'{{"error":"the key {KEY} is tired"}}'.encode()) + END)
    async with connect_engine(name, upstream, KEY) as engine:
        outputs = [str(engine), repr(engine.settings), repr(await engine.capabilities("m"))]
        outputs.append(msgspec.json.encode(await engine.capabilities("m"), enc_hook=repr).decode())
        for _ in range(3):
            error = (await run_generation(engine)).error
            outputs += [str(error), repr(error)]
    assert all(f"Authorization: Bearer {KEY}".encode() in head for head in upstream.heads)
    assert upstream.stream_requests == 3
    assert KEY not in "".join([*outputs, caplog.text])


async def test_a_rejected_key_is_a_startup_error_that_omits_the_key(name: str) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(json_response(f'{{"error":{{"message":"{KEY}?"}}}}'.encode(), "401 Unauthorized"))
        await reader.read()

    async with serve_tcp(serve) as port:
        engine = ENGINE_CLASSES[name](HttpSettings(engine=f"{name}://127.0.0.1:{port}", engine_key=KEY))
        with pytest.raises(StartupError) as caught:
            await engine.open()
        assert "--engine-key" in str(caught.value)
        assert KEY not in str(caught.value)
        await engine.close()


async def test_no_authorization_header_is_sent_without_a_key(name: str) -> None:
    upstream = Upstream(STREAM + HELLO + STOP)
    async with connect_engine(name, upstream) as engine:
        assert (await run_generation(engine)).error is None
    assert not [head for head in upstream.heads if b"authorization" in head.lower()]


async def make_salted_request(engine: Engine) -> GenerationRequest:
    return make_request(salt="0123456789abcdef0123456789abcdef", affinity="k")


async def test_the_cache_salt_is_sent_only_to_engines_that_support_it(name: str) -> None:
    """The stub rejects fields that its server does not support."""
    async with run_stub(name) as stub, open_engine(stub.url) as engine:
        assert (await run_generation(engine, await make_salted_request(engine))).error is None
        (body,) = [one for one in stub.chat_bodies if one.get("stream")]
        is_supported = "cache_salt" in stub.dialect.accepted_fields
        assert body.get("cache_salt") == ("0123456789abcdef0123456789abcdef" if is_supported else None)
        assert (await run_generation(engine)).error is None
        assert "cache_salt" not in stub.chat_bodies[-1]
