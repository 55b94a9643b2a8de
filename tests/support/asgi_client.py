"""A client that calls an ASGI application without any server between them."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.transport.middleware.app import App

DEADLINE = 30.0
Header = tuple[bytes, bytes]
HOST: Header = (b"host", b"localhost:8000")
JSON: Header = (b"content-type", b"application/json")


class Answer(Struct):
    status: int = 0
    headers: list[Header] = []
    body: bytes = b""
    ended: bool = False

    def header(self, name: bytes) -> bytes | None:
        found = [value for given, value in self.headers if given == name]
        assert len(found) <= 1, f"{name!r} is there {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body, whose shape is the same everywhere."""
        assert self.header(b"content-type") == b"application/json"
        body = self.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["message"]
        assert isinstance(body["error"]["type"], str)
        return dict(body["error"])


def http_scope(method: str, path: bytes, headers: Iterable[Header]) -> dict[str, Any]:
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
    app: App,
    method: str,
    path: str | bytes,
    *headers: Header,
    body: Sequence[bytes] = (b"",),
    host: Sequence[Header] = (HOST,),
) -> Answer:
    """Each piece of the body is one message; after the last of them the client stays on the line."""
    pieces = list(body)
    answer = Answer()

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        assert not answer.ended, "something was sent after the end"
        if message["type"] == "http.response.start":
            assert not answer.status, "a reply was started twice"
            answer.status, answer.headers = message["status"], list(message["headers"])
        else:
            assert answer.status, "a body came before its status"
            answer.body += message.get("body", b"")
            answer.ended = not message.get("more_body", False)

    raw = path.encode() if isinstance(path, str) else path
    async with asyncio.timeout(DEADLINE):
        await app(http_scope(method, raw, (*host, *headers)), receive, send)
    if (length := answer.header(b"content-length")) is not None:
        assert int(length) == len(answer.body)
    return answer
