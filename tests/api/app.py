"""The whole application in this process, on the fake engine and an in-memory store, opened and closed around a test."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from antiphon.config import Config
from antiphon.config.rate_limits import SheddingSettings
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.playback import Gate
from antiphon.stores.sql.store import Store
from antiphon.transport.middleware.app import App
from antiphon.wiring import build_app
from tests.support.asgi_client import (
    DEADLINE,
    HOST,
    JSON,
    AsgiResponse,
    Header,
    build_http_scope,
    call,
    route_through_server,
)


class ApiServer:
    """The application under test, with methods that send requests to it."""

    def __init__(self, app: App, engine: FakeEngine) -> None:
        self.app = app
        self.engine = engine

    async def get(self, path: str) -> AsgiResponse:
        return await call(self.app, "GET", f"/v1/{path}")

    async def delete(self, path: str) -> AsgiResponse:
        return await call(self.app, "DELETE", f"/v1/{path}")

    async def post(self, path: str, body: Any = None, *headers: Header) -> AsgiResponse:
        if body is None:
            return await call(self.app, "POST", f"/v1/{path}", *headers)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = (b"content-length", b"%d" % len(content))
        return await call(self.app, "POST", f"/v1/{path}", JSON, length, *headers, body=[content])

    async def post_ok(self, path: str, body: Any) -> Any:
        """POST a request that must succeed, and return its JSON body."""
        answer = await self.post(path, body)
        assert answer.status == 200, answer.body
        return answer.json()

    async def create(self, **fields: Any) -> Any:
        """Create a response and return it as JSON."""
        return await self.post_ok("responses", {"model": "fake", "input": "hi", **fields})


@asynccontextmanager
async def run_api(
    store: Store | None = None, engine: FakeEngine | None = None, **settings: Any
) -> AsyncIterator[ApiServer]:
    engine = engine or FakeEngine()
    # a busy machine must not make these servers shed load
    defaults = {"engine": "fake", "store": "memory", "shed": SheddingSettings(lag=0.0)}
    app = build_app(Config.from_settings(**{**defaults, **settings}), engine, store)
    await app.lifecycle.open()
    try:
        yield ApiServer(app, engine)
    finally:
        await app.lifecycle.close()


def parse_events(answer: AsgiResponse) -> list[dict[str, Any]]:
    """Parse the events of a stream that ended with `[DONE]`."""
    *frames, done, remainder = answer.body.decode().split("\n\n")
    assert (done, remainder) == ("data: [DONE]", "")
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


class Client:
    """An HTTP client that receives events one by one and disconnects when the test decides."""

    def __init__(self, app: App, *method_and_path: str, **body: Any) -> None:
        """Send the request. `method_and_path`: a method and a path; the default is POST responses with a streaming
        body.
        """
        fields = body if method_and_path else {"model": "fake", "input": "hi", "stream": True, **body}
        content = json.dumps(fields).encode() if fields else b""
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": content, "more_body": False})
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        method, path = method_and_path or ("POST", "responses")
        scope = build_http_scope(method, f"/v1/{path}".encode(), (HOST, JSON))
        self.request = asyncio.ensure_future(route_through_server(app)(scope, self._inbox.get, self._collect))

    async def _collect(self, message: Any) -> None:
        self.messages.put_nowait(dict(message))

    def disconnect(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            async with asyncio.timeout(DEADLINE):
                message = await self.messages.get()
            for line in message.get("body", b"").decode().split("\n"):
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    async def read_to_completion(self, gate: Gate, event_type: str, count: int = 1) -> list[dict[str, Any]]:
        """Read all events of a stream. The engine waits at `gate` until `event_type` was received `count` times."""
        events: list[dict[str, Any]] = []
        async for event in self.events():
            events.append(event)
            if [one["type"] for one in events].count(event_type) == count:
                gate.open()
            if event["type"] == "response.completed":
                break
        async with asyncio.timeout(DEADLINE):
            await self.request
        return events
