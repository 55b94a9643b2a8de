"""HttpServer with applications that are not ours: plain ASGI, and Starlette."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect

from antiphon.http_server import server as module
from antiphon.http_server.server import HttpServer
from antiphon.http_server.settings import ConnectionLimits, HttpServerSettings

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serve(app: Any, **settings: Any) -> AsyncIterator[str]:
    """Serve an application, and yield the address of the server without its scheme."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        host, port = listening.getsockname()
        server = HttpServer(HttpServerSettings(app, **settings))
        running = asyncio.create_task(server.serve([listening]))
        async with asyncio.timeout(30):
            while not server.started:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0)
            try:
                yield f"{host}:{port}"
            finally:
                server.should_exit = True
                await running


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    app.state.closed = False
    yield {"greeting": "hello"}
    app.state.closed = True


async def show(request: Request) -> JSONResponse:
    return JSONResponse(
        {
            "body": (await request.body()).decode(),
            "path": request.url.path,
            "greeting": request.state.greeting,
            "query": request.url.query,
        }
    )


async def stream(request: Request) -> StreamingResponse:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d;" % number
            await asyncio.sleep(0)

    return StreamingResponse(pieces())


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text((await websocket.receive_text()).upper())
    await websocket.send_bytes(await websocket.receive_bytes())
    await websocket.close()


@pytest.fixture
def starlette_app() -> Starlette:
    routes = [
        Route("/show/{name}", show, methods=["POST"]),
        Route("/stream", stream),
        WebSocketRoute("/socket", echo),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def test_a_starlette_application_is_served_with_its_lifespan(starlette_app: Starlette) -> None:
    async with serve(starlette_app) as address, httpx2.AsyncClient(base_url=f"http://{address}") as client:
        reply = await client.post("/show/a%20b?q=1", content=b"x" * 100_000)
        assert reply.json() == {"body": "x" * 100_000, "path": "/show/a b", "greeting": "hello", "query": "q=1"}
        assert (await client.get("/stream")).content == b"0;1;2;"
        assert (await client.get("/nothing")).status_code == 404
    assert starlette_app.state.closed is True


async def test_a_starlette_application_can_use_websockets(starlette_app: Starlette) -> None:
    async with serve(starlette_app) as address, connect(f"ws://{address}/socket") as client:
        await client.send("straße")
        assert await client.recv() == "STRASSE"
        await client.send(b"\xff")
        assert await client.recv() == b"\xff"
        with pytest.raises(Exception, match="1000"):
            await client.recv()


async def test_an_application_without_lifespan_and_error_handling_is_served() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        raise ZeroDivisionError

    async with serve(app) as address, httpx2.AsyncClient() as client:
        reply = await client.get(f"http://{address}/")
        assert (reply.status_code, reply.text) == (500, "The server ended this request without an answer.")


async def test_a_client_that_connected_just_before_the_shutdown_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(module, "_NEWCOMER_POLLS", 1000)  # on a busy machine the client needs longer
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = HttpServer(HttpServerSettings(app, lifespan="off"))
        running = asyncio.create_task(server.serve([listening]))
        async with asyncio.timeout(30):
            while not server.started:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            server.should_exit = True
            while listening.fileno() != -1:  # noqa: ASYNC110 - nothing signals that the server is shutting down
                await asyncio.sleep(0)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 204")
            writer.close()
            await running


async def test_an_application_that_fails_to_start_stops_the_server() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        with pytest.raises(RuntimeError, match="failed to start"):
            await HttpServer(HttpServerSettings(app, lifespan="on")).serve([listening])


async def test_refusals_are_reported_and_plain_text() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the request is refused")

    statuses: list[int] = []
    limits = ConnectionLimits(header_bytes=1000)
    async with (
        serve(app, limits=limits, on_refusal=statuses.append, lifespan="off") as address,
        httpx2.AsyncClient() as client,
    ):
        reply = await client.get(f"http://{address}/", headers={"x": "x" * 2000})
    assert (reply.status_code, statuses) == (431, [431])
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
