"""Engines that cannot be reached: names that do not resolve, connections that are not accepted, and TLS handshakes and
responses that never finish. Each gives a typed error within its timeout, on uvloop and on asyncio's own event loop, and
leaves no connection open.
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

from antiphon.engines.client import EngineClient, EngineTimeouts
from antiphon.engines.connection import EngineAddress, TcpAddress, UnixAddress, create_tls_context
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.base import HttpSettings
from antiphon.errors import AntiphonError, EngineFailed, Unavailable
from tests.engines.http.stubs.generation import run_generation
from tests.engines.unix_server import STREAM, read_request, sse_event
from tests.support.local_servers import Reader, Writer, serve_tcp
from tests.support.paths import TLS

TIMEOUT_SECONDS = 0.4  # all timeouts under test
HANG_SECONDS = 20.0  # anything longer is a hang, even on a busy machine
HELLO = sse_event(b'{"choices":[{"index":0,"delta":{"content":"a"}}]}')


class AnyObject(Struct):
    pass


ANY_OBJECT = Decoder(AnyObject)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


pytestmark = pytest.mark.anyio


def make_client(address: EngineAddress, connect: float = HANG_SECONDS) -> EngineClient:
    timeouts = EngineTimeouts(connect=connect, first_byte=TIMEOUT_SECONDS, idle=TIMEOUT_SECONDS)
    return EngineClient(address, "The engine", timeouts, host="engine.example", key="sk-secret")


def make_engine(address: EngineAddress, first: float = TIMEOUT_SECONDS) -> Vllm:
    settings = HttpSettings(
        engine="vllm://engine.example", engine_key="sk-secret", first_token_timeout=first, idle_timeout=TIMEOUT_SECONDS
    )
    return Vllm(settings, address)


async def expect_error(operation: Awaitable[Any]) -> AntiphonError:
    """Return the error that `operation` raises; it must come in time and must not contain the key."""
    started = monotonic()
    with pytest.raises((EngineFailed, Unavailable)) as caught:
        async with asyncio.timeout(2 * HANG_SECONDS):
            await operation
    assert monotonic() - started < HANG_SECONDS
    assert "sk-secret" not in str(caught.value)
    return caught.value


async def collect_errors(address: EngineAddress, connect: float = HANG_SECONDS) -> list[AntiphonError]:
    """Return the errors of a GET for JSON, of a POST and of a stream."""
    http_client = make_client(address, connect)
    try:
        return [
            await expect_error(http_client.get("/v1/models", ANY_OBJECT)),
            await expect_error(http_client.post("/tokenize", b"{}", ANY_OBJECT)),
            await expect_error(http_client.post_stream("/v1/chat/completions", b"{}", ANY_OBJECT)),
        ]
    finally:
        http_client.close()


@contextlib.contextmanager
def block_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Block the resolution of never.example until the context ends."""
    finished = threading.Event()
    resolve = socket.getaddrinfo

    def wait(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "never.example":
            finished.wait(4 * HANG_SECONDS)
            raise socket.gaierror
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    try:
        yield
    finally:
        finished.set()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
@pytest.mark.shows("C.28")
async def test_an_unresolved_name_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the resolver of asyncio's own event loop can be blocked by a test."""
    with block_resolver(monkeypatch):
        for error in await collect_errors(TcpAddress("never.example", 80), TIMEOUT_SECONDS):
            assert isinstance(error, Unavailable)


@contextlib.contextmanager
def fill_backlog() -> Iterator[int]:
    """Yield a port whose accept queue is full, so that even the SYN packet gets no answer."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            pending = stack.enter_context(socket.socket())
            pending.setblocking(False)
            pending.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.shows("C.28")
async def test_an_unaccepted_connection_is_unavailable() -> None:
    with fill_backlog() as port:
        for tls in (None, create_tls_context()):
            for error in await collect_errors(TcpAddress("127.0.0.1", port, tls), TIMEOUT_SECONDS):
                assert isinstance(error, Unavailable)


class SilentServer:
    """Accepts connections and reads, but sends nothing after `first`."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.open_connections = 0
        self.all_closed = asyncio.Event()

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.open_connections += 1
        try:
            writer.write(self.first)
            while await reader.read(65536):
                pass
        finally:
            self.open_connections -= 1
            if not self.open_connections:
                self.all_closed.set()


@pytest.mark.shows("C.28")
async def test_an_endless_tls_handshake_is_unavailable() -> None:
    silent = SilentServer()
    async with serve_tcp(silent.serve) as port:
        for error in await collect_errors(TcpAddress("127.0.0.1", port, create_tls_context()), TIMEOUT_SECONDS):
            assert isinstance(error, Unavailable)
        async with asyncio.timeout(HANG_SECONDS):
            await silent.all_closed.wait()


@pytest.mark.shows("C.28")
async def test_a_server_without_tls_is_unavailable() -> None:
    silent = SilentServer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    async with serve_tcp(silent.serve) as port:
        for error in await collect_errors(TcpAddress("127.0.0.1", port, create_tls_context())):
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
    ids=["nothing", "half a line", "half a head", "an interim response", "half an error"],
)
@pytest.mark.shows("C.28")
async def test_an_incomplete_response_fails_in_time(first: bytes, secure: bool) -> None:
    silent = SilentServer(first)
    tls = _server_tls() if secure else None
    async with serve_tcp(silent.serve, ssl=tls) as port:
        address = TcpAddress("localhost", port, create_tls_context(str(TLS / "certificate.pem")) if secure else None)
        for error in await collect_errors(address):
            assert isinstance(error, EngineFailed)
            assert "in time" in error.message or "silent" in error.message
        async with asyncio.timeout(HANG_SECONDS):
            await silent.all_closed.wait()


def _server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    return context


async def test_an_unread_request_fails_in_time() -> None:
    """The request is larger than all socket buffers."""
    finished = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is also a ReadTransport
        await finished.wait()

    async with serve_tcp(serve) as port:
        http_client = make_client(TcpAddress("127.0.0.1", port))
        body = b"x" * (32 * 1024 * 1024)
        for operation in (http_client.post("/", body, ANY_OBJECT), http_client.post_stream("/", body, ANY_OBJECT)):
            assert "in time" in (await expect_error(operation)).message
        http_client.close()
        finished.set()


async def drip(head: bytes, piece: bytes, writer: Writer) -> None:
    """Send so slowly that the response never ends, but never pause for long."""
    writer.write(head)
    while not writer.is_closing():
        writer.write(piece)
        await asyncio.sleep(TIMEOUT_SECONDS / 8)


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 60000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n", b" "),
    ],
    ids=["a head", "interim responses", "an error", "a response"],
)
@pytest.mark.shows("C.28")
async def test_a_dripping_response_fails_in_time(head: bytes, piece: bytes) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        await drip(head, piece, writer)

    async with serve_tcp(serve) as port:
        for error in await collect_errors(TcpAddress("127.0.0.1", port)):
            assert isinstance(error, EngineFailed)


@pytest.mark.parametrize("first", [b"", HELLO], ids=["from the beginning", "in the middle"])
@pytest.mark.shows("C.28")
async def test_a_silent_stream_fails_in_time(first: bytes) -> None:
    silent = SilentServer(STREAM + first)
    async with serve_tcp(silent.serve) as port:
        started = monotonic()
        result = await run_generation(
            make_engine(TcpAddress("127.0.0.1", port), HANG_SECONDS if first else TIMEOUT_SECONDS)
        )
        assert isinstance(result.error, EngineFailed)
        assert monotonic() - started < HANG_SECONDS
        assert result.text == ("a" if first else "")
        async with asyncio.timeout(HANG_SECONDS):
            await silent.all_closed.wait()


@pytest.mark.shows("C.28")
async def test_a_missing_or_invalid_unix_socket_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (tmp_path / "missing", file):
        for error in await collect_errors(UnixAddress(str(path))):
            assert isinstance(error, Unavailable)
