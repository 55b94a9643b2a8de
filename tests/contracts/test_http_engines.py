"""What every engine over HTTP in the registry keeps, whoever is at the other end: one request for one answer, a key
that goes nowhere else and is never told, and an error in time for whatever comes.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic

import msgspec
import pytest

from antiphon.core.prompt import Work
from antiphon.engines.base import Engine
from antiphon.engines.http.base import HttpEngine, HttpSettings
from antiphon.engines.registry import ENGINES
from antiphon.errors import EngineFailed, StartupError, Unavailable
from tests.engines.http.stubs.chat_stub import DIALECTS, standing_in, tcp
from tests.engines.http.stubs.generation import ask, opened, work
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, request

pytestmark = pytest.mark.anyio

KEY = "sk-canary-7f3a9c"
SOON = 30.0
BRIEF = 0.4  # seconds that a silent one has
MODELS = answer(b'{"object":"list","data":[{"id":"m"}],"models":[{"name":"m"}]}')
WRONG = answer(b'{"error":{"message":"This is not how to ask."}}', "400 Bad Request")
HELLO = event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
STOP = event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}') + event(b"[DONE]") + END
Telling = Callable[[Writer], Awaitable[None]]


def _kinds() -> dict[str, type[HttpEngine]]:
    found = {}
    for name, place in ENGINES.items():
        module, _, attribute = place.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
        if issubclass(kind, HttpEngine):
            found[name] = kind
    return found


KINDS = _kinds()


@pytest.fixture(params=sorted(KINDS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Upstream:
    """Answers about itself as it should, and streams as a test tells it to."""

    def __init__(self, *tellings: bytes | Telling) -> None:
        self._tellings = list(tellings)
        self.heads: list[bytes] = []
        self.asked = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            body = await reader.readexactly(int(sizes[0])) if sizes else b""
            self.heads.append(head)
            if b'"stream":true' not in body:
                writer.write(MODELS if b"/models " in head or b"/tags " in head else WRONG)
                continue
            telling = self._tellings[min(self.asked, len(self._tellings) - 1)]
            self.asked += 1
            if isinstance(telling, bytes):
                writer.write(telling)
            else:
                await telling(writer)
            if not telling or not isinstance(telling, bytes) or not telling.endswith(END):
                return


@asynccontextmanager
async def before(name: str, upstream: Upstream, key: str | None = None, fate: str = "") -> AsyncIterator[HttpEngine]:
    async with tcp(upstream.serve) as port:
        settings = HttpSettings(
            engine=f"{name}://127.0.0.1:{port}",
            engine_key=key,
            model=("m",),
            first_token_timeout=BRIEF if fate == "is silent" else 2 * SOON,
            idle_timeout=BRIEF if fate == "falls silent" else 2 * SOON,
        )
        engine = KINDS[name](settings)
        await engine.open()
        try:
            yield engine
        finally:
            await engine.close()


async def silence(writer: Writer) -> None:
    await asyncio.Event().wait()


async def hello_and_silence(writer: Writer) -> None:
    writer.write(STREAM + HELLO)
    await silence(writer)


FATES: dict[str, bytes | Telling] = {
    "hangs up at once": b"",
    "hangs up in the middle": STREAM + HELLO,
    "is silent": silence,
    "falls silent": hello_and_silence,
    "talks nonsense": STREAM + HELLO + event(b"{]") + END,
    "does not speak HTTP": b"SSH-2.0-OpenSSH\r\n",
    "says that it failed": STREAM + HELLO + event(b'{"error":{"message":"boom"}}') + END,
    "ends without an end": STREAM + HELLO + event(b"[DONE]") + END,
    "fails": answer(b"<html>", "502 Bad Gateway"),
    "answers with a page": answer(b"<html>"),
}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.shows("C.28")
async def test_an_engine_that_does_not_do_well_is_an_error_in_time(name: str, fate: str) -> None:
    async with before(name, Upstream(FATES[fate]), KEY, fate) as engine:
        begun = monotonic()
        said = await ask(engine)
        assert isinstance(said.error, EngineFailed | Unavailable)
        assert monotonic() - begun < SOON
        assert not any(chunk.finish for chunk in said.chunks)
        assert KEY not in str(said.error)


@pytest.mark.shows("C.28")
async def test_an_engine_that_is_not_there_is_unavailable(name: str) -> None:
    engine = KINDS[name](HttpSettings(engine=f"{name}://127.0.0.1:9", engine_key=KEY, model=("m",)))
    await engine.open()
    said = await ask(engine)
    assert isinstance(said.error, Unavailable)
    assert not engine.healthy()
    await engine.close()


@pytest.mark.parametrize("fate", ["hangs up in the middle", "falls silent", "talks nonsense", "says that it failed"])
async def test_nothing_is_asked_for_again_once_a_token_came(name: str, fate: str) -> None:
    upstream = Upstream(FATES[fate], STREAM + HELLO + STOP)
    async with before(name, upstream, fate=fate) as engine:
        said = await ask(engine)
        assert said.text == "Hello"
        assert said.error is not None
        assert upstream.asked == 1


async def test_a_connection_that_was_closed_meanwhile_is_no_failure_and_asks_once_more_at_most(name: str) -> None:
    upstream = Upstream(STREAM + HELLO + STOP, b"", STREAM + HELLO + STOP, b"")
    async with before(name, upstream) as engine:
        assert (await ask(engine)).error is None
        assert (await ask(engine)).error is None  # over the kept connection, which ends; then over a new one
        assert upstream.asked == 3
        assert (await ask(engine)).error is not None  # whether that came over a kept connection or a new one
        assert upstream.asked <= 5


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed_so_no_key_gets_elsewhere(name: str, status: int) -> None:
    visits = 0

    async def visited(reader: Reader, writer: Writer) -> None:
        nonlocal visits
        visits += 1

    async with tcp(visited) as port:
        there = f"HTTP/1.1 {status} Elsewhere\r\nLocation: http://127.0.0.1:{port}/v1/chat/completions\r\n"
        upstream = Upstream(f"{there}Content-Length: 0\r\n\r\n".encode())
        async with before(name, upstream, KEY) as engine:
            said = await ask(engine)
            assert isinstance(said.error, EngineFailed)
            assert "redirect" in str(said.error)
        assert (visits, upstream.asked) == (0, 1)


async def test_the_key_is_sent_with_every_request_and_told_to_nobody(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even if the engine says it."""
    caplog.set_level(logging.DEBUG)
    echo = answer(f'{{"error":{{"message":"The key {KEY} is wrong."}}}}'.encode(), "401 Unauthorized")
    wrong = echo.replace(b"401 Unauthorized", b"400 Bad Request")
    upstream = Upstream(echo, wrong, STREAM + event(f'{{"error":"the key {KEY} is tired"}}'.encode()) + END)
    async with before(name, upstream, KEY) as engine:
        told = [str(engine), repr(engine.settings), repr(await engine.capabilities("m"))]
        told.append(msgspec.json.encode(await engine.capabilities("m"), enc_hook=repr).decode())
        for _ in range(3):
            error = (await ask(engine)).error
            told += [str(error), repr(error)]
    assert all(f"Authorization: Bearer {KEY}".encode() in head for head in upstream.heads)
    assert upstream.asked == 3
    assert KEY not in "".join([*told, caplog.text])


async def test_a_key_that_is_not_accepted_is_one_sentence_without_it(name: str) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(answer(f'{{"error":{{"message":"{KEY}?"}}}}'.encode(), "401 Unauthorized"))
        await reader.read()

    async with tcp(serve) as port:
        engine = KINDS[name](HttpSettings(engine=f"{name}://127.0.0.1:{port}", engine_key=KEY))
        with pytest.raises(StartupError) as caught:
            await engine.open()
        assert "--engine-key" in str(caught.value)
        assert KEY not in str(caught.value)
        await engine.close()


async def test_without_a_key_none_is_sent(name: str) -> None:
    upstream = Upstream(STREAM + HELLO + STOP)
    async with before(name, upstream) as engine:
        assert (await ask(engine)).error is None
    assert not [head for head in upstream.heads if b"authorization" in head.lower()]


async def salted(engine: Engine) -> Work:
    return work(salt="0123456789abcdef0123456789abcdef", affinity="k")


async def test_a_tenants_salt_is_sent_to_who_knows_it_and_harms_nobody_else(name: str) -> None:
    """The stand-in refuses what its server does not know."""
    async with standing_in(name) as stub, opened(stub.url) as engine:
        assert (await ask(engine, await salted(engine))).error is None
        (body,) = [one for one in stub.seen if one.get("stream")]
        knows = "cache_salt" in DIALECTS[name].takes
        assert body.get("cache_salt") == ("0123456789abcdef0123456789abcdef" if knows else None)
        assert (await ask(engine)).error is None
        assert "cache_salt" not in stub.seen[-1]
