"""An engine that cannot be had: names that nobody resolves, connections that nobody accepts, handshakes and answers
that never come. Each is a typed error within its deadline, on the event loop of the server and on Python's, and leaves
no connection behind.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.engines.client import Client, Deadlines
from antiphon.engines.connection import Address, TcpAddress, UnixAddress, trusted
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.base import HttpSettings
from antiphon.errors import AntiphonError, EngineFailed, Unavailable
from tests.engines.http.stubs.chat_stub import tcp
from tests.engines.http.stubs.generation import ask
from tests.engines.unix_server import STREAM, Reader, Writer, event, request
from tests.support.paths import TLS

DEADLINE = 0.4  # of everything here
SOON = 20.0  # what is more is a hang, even on a busy machine
HELLO = event(b'{"choices":[{"index":0,"delta":{"content":"a"}}]}')


class Anything(Struct):
    pass


ANYTHING = Decoder(Anything)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


pytestmark = pytest.mark.anyio


def client(address: Address, connect: float = SOON) -> Client:
    deadlines = Deadlines(connect=connect, first=DEADLINE, idle=DEADLINE)
    return Client(address, "The engine", deadlines, host="engine.example", key="sk-secret")


def engine(address: Address, first: float = DEADLINE) -> Vllm:
    settings = HttpSettings(
        engine="vllm://engine.example", engine_key="sk-secret", first_token_timeout=first, idle_timeout=DEADLINE
    )
    return Vllm(settings, address)


async def told(work: Awaitable[Any]) -> AntiphonError:
    """The error that it ends with, which must come in time and not give the key away."""
    begun = monotonic()
    with pytest.raises((EngineFailed, Unavailable)) as caught:
        async with asyncio.timeout(2 * SOON):
            await work
    assert monotonic() - begun < SOON
    assert "sk-secret" not in str(caught.value)
    return caught.value


async def every_way(address: Address, connect: float = SOON) -> list[AntiphonError]:
    """What comes of asking for JSON, of posting, and of a stream."""
    asking = client(address, connect)
    try:
        return [
            await told(asking.get("/v1/models", ANYTHING)),
            await told(asking.post("/tokenize", b"{}", ANYTHING)),
            await told(asking.stream("/v1/chat/completions", b"{}", ANYTHING)),
        ]
    finally:
        asking.close()


@contextlib.contextmanager
def silent_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A resolver that does not answer before this is over."""
    over = threading.Event()
    resolve = socket.getaddrinfo

    def wait(host: Any, *given: Any, **named: Any) -> Any:
        if host == "never.example":
            over.wait(4 * SOON)
            raise socket.gaierror
        return resolve(host, *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    try:
        yield
    finally:
        over.set()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
@pytest.mark.shows("C.28")
async def test_a_name_that_nobody_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with Python's own loop can a resolver be held up from here."""
    with silent_names(monkeypatch):
        for error in await every_way(TcpAddress("never.example", 80), DEADLINE):
            assert isinstance(error, Unavailable)


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose connections nobody accepts, and whose queue is full: the first packet is not even answered."""
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(8):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


@pytest.mark.shows("C.28")
async def test_a_connection_that_nobody_accepts() -> None:
    with full_backlog() as port:
        for tls in (None, trusted()):
            for error in await every_way(TcpAddress("127.0.0.1", port, tls), DEADLINE):
                assert isinstance(error, Unavailable)


class Silent:
    """Accepts, listens, and says nothing; or says `first` and then nothing more."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.open = 0
        self.gone = asyncio.Event()

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.open += 1
        try:
            writer.write(self.first)
            while await reader.read(65536):
                pass
        finally:
            self.open -= 1
            if not self.open:
                self.gone.set()


@pytest.mark.shows("C.28")
async def test_a_handshake_that_never_ends() -> None:
    silent = Silent()
    async with tcp(silent.serve) as port:
        for error in await every_way(TcpAddress("127.0.0.1", port, trusted()), DEADLINE):
            assert isinstance(error, Unavailable)
        async with asyncio.timeout(SOON):
            await silent.gone.wait()


@pytest.mark.shows("C.28")
async def test_a_handshake_with_somebody_who_does_not_speak_tls() -> None:
    silent = Silent(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    async with tcp(silent.serve) as port:
        for error in await every_way(TcpAddress("127.0.0.1", port, trusted())):
            assert isinstance(error, Unavailable)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nX: y\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["nothing", "half a line", "half a head", "an announcement", "half a refusal"],
)
@pytest.mark.shows("C.28")
async def test_an_answer_that_never_comes(first: bytes, secure: bool) -> None:
    silent = Silent(first)
    tls = _server_tls() if secure else None
    async with tcp(silent.serve, ssl=tls) as port:
        address = TcpAddress("localhost", port, trusted(str(TLS / "certificate.pem")) if secure else None)
        for error in await every_way(address):
            assert isinstance(error, EngineFailed)
            assert "in time" in error.message or "silent" in error.message
        async with asyncio.timeout(SOON):
            await silent.gone.wait()


def _server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return context


async def test_a_request_that_nobody_reads() -> None:
    """Larger than all that the network holds."""
    stays = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a transport for reading, too
        await stays.wait()

    async with tcp(serve) as port:
        asking = client(TcpAddress("127.0.0.1", port))
        body = b"x" * (32 * 1024 * 1024)
        for ask_for in (asking.post("/", body, ANYTHING), asking.stream("/", body, ANYTHING)):
            assert "in time" in (await told(ask_for)).message
        asking.close()
        stays.set()


async def dripping(head: bytes, drop: bytes, writer: Writer) -> None:
    """So slowly that it never ends, and never silent for long."""
    writer.write(head)
    while not writer.is_closing():
        writer.write(drop)
        await asyncio.sleep(DEADLINE / 8)


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 60000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n", b" "),
    ],
    ids=["a head", "announcements", "a refusal", "an answer"],
)
@pytest.mark.shows("C.28")
async def test_an_answer_that_drips(head: bytes, drop: bytes) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        await dripping(head, drop, writer)

    async with tcp(serve) as port:
        for error in await every_way(TcpAddress("127.0.0.1", port)):
            assert isinstance(error, EngineFailed)


@pytest.mark.parametrize("first", [b"", HELLO], ids=["from the beginning", "in the middle"])
@pytest.mark.shows("C.28")
async def test_a_stream_that_falls_silent(first: bytes) -> None:
    silent = Silent(STREAM + first)
    async with tcp(silent.serve) as port:
        begun = monotonic()
        said = await ask(engine(TcpAddress("127.0.0.1", port), SOON if first else DEADLINE))
        assert isinstance(said.error, EngineFailed)
        assert monotonic() - begun < SOON
        assert said.text == ("a" if first else "")
        async with asyncio.timeout(SOON):
            await silent.gone.wait()


@pytest.mark.shows("C.28")
async def test_a_socket_that_is_not_there_or_is_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (tmp_path / "missing", file):
        for error in await every_way(UnixAddress(str(path))):
            assert isinstance(error, Unavailable)
