"""The whole application in this process, on the fake engine and a store in memory, opened and closed around a test."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from antiphon.config import Config
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.reply import Gate
from antiphon.stores.base import Store
from antiphon.transport.middleware.app import App
from antiphon.wiring import build_app
from tests.support.asgi_client import DEADLINE, HOST, JSON, Answer, Header, call, http_scope


class Api:
    """A client of it."""

    def __init__(self, app: App, engine: FakeEngine) -> None:
        self.app = app
        self.engine = engine

    async def get(self, path: str) -> Answer:
        return await call(self.app, "GET", f"/v1/{path}")

    async def delete(self, path: str) -> Answer:
        return await call(self.app, "DELETE", f"/v1/{path}")

    async def post(self, path: str, body: Any = None, *headers: Header) -> Answer:
        if body is None:
            return await call(self.app, "POST", f"/v1/{path}", *headers)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = (b"content-length", b"%d" % len(content))
        return await call(self.app, "POST", f"/v1/{path}", JSON, length, *headers, body=[content])

    async def made(self, path: str, body: Any) -> Any:
        """What a good request gives."""
        answer = await self.post(path, body)
        assert answer.status == 200, answer.body
        return answer.json()

    async def create(self, **fields: Any) -> Any:
        """A response, as JSON."""
        return await self.made("responses", {"model": "fake", "input": "hi", **fields})


@asynccontextmanager
async def api(store: Store | None = None, engine: FakeEngine | None = None, **settings: Any) -> AsyncIterator[Api]:
    engine = engine or FakeEngine()
    app = build_app(Config(**{"engine": "fake", "store": "memory", **settings}), engine, store)
    await app.lifecycle.open()
    try:
        yield Api(app, engine)
    finally:
        await app.lifecycle.close()


def events_in(answer: Answer) -> list[dict[str, Any]]:
    """Of a stream that ended as it should."""
    *frames, done, rest = answer.body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


class Client:
    """A client whose every move a test decides."""

    def __init__(self, app: App, *asked: str, **body: Any) -> None:
        """`asked`: a method and a path, if it is not a response that is to be made."""
        given = body if asked else {"model": "fake", "input": "hi", "stream": True, **body}
        content = json.dumps(given).encode() if given else b""
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": content, "more_body": False})
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        method, path = asked or ("POST", "responses")
        scope = http_scope(method, f"/v1/{path}".encode(), (HOST, JSON))
        self.request = asyncio.ensure_future(app(scope, self._inbox.get, self._hear))

    async def _hear(self, message: Any) -> None:
        self.heard.put_nowait(dict(message))

    def leaves(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            async with asyncio.timeout(DEADLINE):
                message = await self.heard.get()
            for line in message.get("body", b"").decode().split("\n"):
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    async def whole(self, gate: Gate, breaks: str, times: int = 1) -> list[dict[str, Any]]:
        """All events of a stream whose engine waits at `gate` until its silence was broken so often."""
        heard: list[dict[str, Any]] = []
        async for event in self.events():
            heard.append(event)
            if [one["type"] for one in heard].count(breaks) == times:
                gate.open()
            if event["type"] == "response.completed":
                break
        async with asyncio.timeout(DEADLINE):
            await self.request
        return heard
