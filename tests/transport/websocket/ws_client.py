"""A client of a WebSocket that calls the application without any server between them; every move is a test's.

Whatever it is told is held against the types of the openai package.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from antiphon.transport.middleware.app import App
from tests.oracles.responses import check_socket_event
from tests.support.asgi_client import DEADLINE, HOST, Answer, Header

ENDS = {"response.completed", "response.incomplete", "response.failed"}
ANSWERS: dict[str, Any] = {"websocket.http.response": {}}

Told = dict[str, Any]


def socket_scope(path: str, headers: Iterable[Header], query: bytes = b"") -> dict[str, Any]:
    return {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [*headers],
        "extensions": ANSWERS,
    }


class Talk:
    def __init__(self, app: App, scope: dict[str, Any]) -> None:
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "websocket.connect"})
        self.going = asyncio.ensure_future(app(scope, self._inbox.get, self._hear))

    async def _hear(self, message: Any) -> None:
        if message["type"] == "websocket.close":  # as servers do
            self._inbox.put_nowait({"type": "websocket.disconnect", "code": message["code"]})
        self._heard.put_nowait(dict(message))

    async def message(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE):
            return await self._heard.get()

    async def next(self) -> Told:
        """What it is told next."""
        message = await self.message()
        assert message["type"] == "websocket.send", message
        told: Told = json.loads(message["text"])
        check_socket_event(told)
        return told

    def quiet(self) -> bool:
        return self._heard.empty()

    def sends(self, text: str) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})

    def sends_bytes(self, data: bytes) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "bytes": data})

    def asks(self, **fields: Any) -> None:
        self.sends(json.dumps({"type": "response.create", "model": "fake", "input": "hi", **fields}))

    async def end(self) -> Told:
        """The end of a response, or an error in its place."""
        while (told := await self.next())["type"] not in ENDS | {"error"}:
            pass
        return told

    async def made(self, **fields: Any) -> Any:
        """A response that is asked for while nothing else is under way."""
        self.asks(**fields)
        told = await self.end()
        assert told["type"] == "response.completed", told
        return told["response"]

    async def refused(self, **fields: Any) -> Told:
        """The error of a request that begins nothing."""
        self.asks(**fields)
        told = await self.next()
        assert told["type"] == "error", told
        return told

    def leaves(self) -> None:
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def over(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.going


@asynccontextmanager
async def talking(app: App, *headers: Header, path: str = "/v1/responses", host: Header = HOST) -> AsyncIterator[Talk]:
    talk = Talk(app, socket_scope(path, (host, *headers)))
    accepted = await talk.message()
    assert accepted["type"] == "websocket.accept", accepted
    try:
        yield talk
    finally:
        talk.leaves()
        await talk.over()


async def knock(app: App, *headers: Header, path: str = "/v1/responses", query: bytes = b"") -> Answer:
    """The answer to a client that is not let in."""
    talk = Talk(app, socket_scope(path, headers, query))
    begun, body = await talk.message(), await talk.message()
    assert (begun["type"], body["type"]) == ("websocket.http.response.start", "websocket.http.response.body"), begun
    await talk.over()
    return Answer(begun["status"], begun["headers"], body["body"], True)
