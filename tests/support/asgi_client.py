"""A test client that calls an ASGI application: directly, or with a server in between (`server_kind`)."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from tests.support.http_servers import ServerKind, ThroughServer

DEADLINE = 30.0
server_kind: ServerKind | None = None  # set by a fixture
Header = tuple[bytes, bytes]
HOST: Header = (b"host", b"localhost:8000")
JSON: Header = (b"content-type", b"application/json")


class AsgiResponse(Struct):
    """A complete response of the application."""

    status: int = 0
    headers: list[Header] = []
    body: bytes = b""
    ended: bool = False

    def header(self, name: bytes) -> bytes | None:
        """Return the value of a header that occurs at most once."""
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, f"{name!r} occurs {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error object of the body, after checking the shape that all errors share."""
        assert self.header(b"content-type") == b"application/json"
        body = self.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["message"]
        assert isinstance(body["error"]["type"], str)
        return dict(body["error"])


def route_through_server(app: Any) -> Any:
    """Return the application, or a caller that sends requests through the server that a fixture has chosen."""
    return app if server_kind is None else ThroughServer(app, server_kind)


def build_http_scope(method: str, path: bytes, headers: Iterable[Header]) -> dict[str, Any]:
    raw_path, _, query = path.partition(b"?")
    return {
        "type": "http",
        "method": method,
        "path": raw_path.decode("latin-1"),
        "raw_path": raw_path,
        "query_string": query,
        "headers": list(headers),
    }


async def call(
    app: Any,
    method: str,
    path: str | bytes,
    *headers: Header,
    body: Sequence[bytes] = (b"",),
    host: Sequence[Header] = (HOST,),
) -> AsgiResponse:
    """Send one request and return its response.

    Each piece of `body` is one `http.request` message; after the last one the client stays connected.
    """
    pieces = list(body)
    response = AsgiResponse()

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        assert not response.ended, "a message was sent after the end of the response"
        if message["type"] == "http.response.start":
            assert not response.status, "the response was started twice"
            response.status, response.headers = message["status"], list(message["headers"])
        else:
            assert response.status, "a body was sent before the status"
            response.body += message.get("body", b"")
            response.ended = not message.get("more_body", False)

    raw = path.encode() if isinstance(path, str) else path
    async with asyncio.timeout(DEADLINE):
        await route_through_server(app)(build_http_scope(method, raw, (*host, *headers)), receive, send)
    if (length := response.header(b"content-length")) is not None and method != "HEAD":
        assert int(length) == len(response.body)
    return response
