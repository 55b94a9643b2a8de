"""The application inside other applications and servers: mounted, with its lifespan, on uvicorn and on our own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from antiphon import create_app
from antiphon.errors import StartupError
from antiphon.transport.middleware.app import App
from tests.api.app import parse_events
from tests.support import asgi_client
from tests.support.asgi_client import DEADLINE, JSON, AsgiResponse, call
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

BODY = {"model": "fake", "input": "hi"}


@pytest.fixture
def app() -> App:
    return create_app(engine="fake", store="memory")


@asynccontextmanager
async def mount(app: App) -> AsyncIterator[Starlette]:
    """Mount the application, and run the lifespan of the outer one."""
    outer = Starlette(routes=[Mount("/llm", app)], lifespan=app.lifespan)
    async with outer.router.lifespan_context(outer):
        yield outer


async def post(app: Any, path: str, **fields: Any) -> AsgiResponse:
    return await call(app, "POST", path, JSON, body=[json.dumps({**BODY, **fields}).encode()])


@pytest.mark.parametrize("server", [None, "own", "uvicorn"])
async def test_a_mounted_application_answers_below_its_mount_point(
    app: App, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi_client, "server_kind", server)
    async with mount(app) as outer:
        reply = await post(outer, "/llm/v1/responses")
        assert (reply.status, reply.json()["status"]) == (200, "completed")
        events = parse_events(await post(outer, "/llm/v1/responses", stream=True))
        assert events[-1]["type"] == "response.completed"
        assert (await call(outer, "GET", f"/llm/v1/responses/{reply.json()['id']}")).status == 200
        assert (await call(outer, "GET", "/llm/v1/nothing")).error["type"] == "not_found_error"
        assert (await call(outer, "GET", "/v1/models")).status == 404


async def test_a_mounted_application_accepts_websockets(app: App) -> None:
    async with mount(app) as outer, open_websocket(outer, path="/llm/v1/responses") as client:
        assert (await client.create())["status"] == "completed"


async def test_the_lifespan_may_come_as_messages(app: App) -> None:
    inbox, sent = asyncio.Queue[Any](), asyncio.Queue[Any]()
    inbox.put_nowait({"type": "lifespan.startup"})
    running = asyncio.ensure_future(app({"type": "lifespan"}, inbox.get, sent.put))
    async with asyncio.timeout(DEADLINE):
        assert await sent.get() == {"type": "lifespan.startup.complete"}
        assert (await post(app, "/v1/responses")).status == 200
        inbox.put_nowait({"type": "lifespan.shutdown"})
        assert await sent.get() == {"type": "lifespan.shutdown.complete"}
        await running


async def test_a_failure_to_start_is_reported_in_the_lifespan(tmp_path: Any) -> None:
    app = create_app(engine="fake", store=str(tmp_path / "missing" / "folder" / "a.db"))
    (tmp_path / "missing").write_text("a file, not a folder")
    inbox, sent = asyncio.Queue[Any](), asyncio.Queue[Any]()
    inbox.put_nowait({"type": "lifespan.startup"})
    async with asyncio.timeout(DEADLINE):
        await app({"type": "lifespan"}, inbox.get, sent.put)
        assert (await sent.get())["type"] == "lifespan.startup.failed"


def test_settings_are_checked() -> None:
    with pytest.raises(StartupError, match="wheel: not a setting"):
        create_app(engine="fake", wheel=1)
    with pytest.raises(StartupError, match="--queue"):
        create_app(engine="fake", store="memory", queue="many")
    assert isinstance(create_app(engine=["fake", "fake"], store="memory", queue=3), App)
