"""HttpChannel: the path below a mount point, and disconnects, with and without the direct extension of a server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.transport.http.channel import ClientGone, HttpChannel
from tests.http_server.recording_transport import RecordingConnection, run_loop_once
from tests.support.asgi_client import build_http_scope

pytestmark = pytest.mark.anyio

Disconnect = Callable[[], None]


def count_cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def make_plain_channel() -> tuple[HttpChannel, Disconnect]:
    """Make a channel of a server without the extension."""
    inbox: asyncio.Queue[Any] = asyncio.Queue()

    async def send(message: Any) -> None: ...

    channel = HttpChannel(build_http_scope("POST", b"/", []), inbox.get, send)
    return channel, lambda: inbox.put_nowait({"type": "http.disconnect"})


def make_direct_channel() -> tuple[HttpChannel, Disconnect]:
    exchange, channel = RecordingConnection().make_channel()
    return channel, exchange.disconnect


async def wait_for_client(channel: HttpChannel) -> None:
    async with asyncio.timeout(30):
        with channel:
            await asyncio.Event().wait()


@pytest.fixture(params=[make_plain_channel, make_direct_channel])
async def channel_and_disconnect(request: pytest.FixtureRequest) -> tuple[HttpChannel, Disconnect]:
    made: tuple[HttpChannel, Disconnect] = request.param()
    return made


async def test_a_disconnect_raises_client_gone(channel_and_disconnect: tuple[HttpChannel, Disconnect]) -> None:
    channel, disconnect = channel_and_disconnect
    asyncio.get_running_loop().call_soon(disconnect)
    with pytest.raises(ClientGone):
        await wait_for_client(channel)
    await channel.stop_watch()
    assert not count_cancellations()


async def test_a_disconnect_raises_client_gone_in_a_reader(
    channel_and_disconnect: tuple[HttpChannel, Disconnect],
) -> None:
    channel, disconnect = channel_and_disconnect
    reading = asyncio.ensure_future(channel.read())
    await run_loop_once()
    disconnect()
    with pytest.raises(ClientGone):
        await reading


async def test_a_disconnect_cancels_work_that_starts_later_but_no_finished_work(
    channel_and_disconnect: tuple[HttpChannel, Disconnect],
) -> None:
    channel, disconnect = channel_and_disconnect
    disconnect()
    with channel:
        pass  # never yields to the event loop
    await run_loop_once()
    with pytest.raises(ClientGone):
        await wait_for_client(channel)
    await channel.stop_watch()
    assert not count_cancellations()


async def test_a_cancellation_from_another_source_is_not_swallowed(
    channel_and_disconnect: tuple[HttpChannel, Disconnect],
) -> None:
    (channel, disconnect), task = channel_and_disconnect, asyncio.current_task()
    assert task is not None
    task.cancel()
    disconnect()
    with pytest.raises(asyncio.CancelledError), channel:
        await asyncio.Event().wait()
    await channel.stop_watch()
    assert task.uncancel() == 0


@pytest.mark.parametrize(
    ("raw_path", "root_path", "path"),
    [
        (b"/llm/v1/models", "/llm", b"/v1/models"),
        (b"/a%20b/v1/models", "/a b", b"/v1/models"),
        (b"/v1/models", "", b"/v1/models"),
        (b"/v1/models", "/llm", b"/v1/models"),
        (b"/llmv1/models", "/llm", b"/llmv1/models"),
        (b"/llm/v1/models/a%2Fb", "/llm", b"/v1/models/a%2Fb"),
    ],
)
def test_the_path_is_below_the_mount_point(raw_path: bytes, root_path: str, path: bytes) -> None:
    scope = {**build_http_scope("GET", raw_path, []), "root_path": root_path}
    channel = HttpChannel(scope, asyncio.Queue[Any]().get, asyncio.Queue[Any]().put)
    assert channel.path == path


def test_a_scope_without_a_raw_path_is_encoded() -> None:
    scope = {"type": "http", "method": "GET", "path": "/llm/v1/models/ä b", "headers": [], "root_path": "/llm"}
    channel = HttpChannel(scope, asyncio.Queue[Any]().get, asyncio.Queue[Any]().put)
    assert channel.path == b"/v1/models/%C3%A4%20b"


def test_repeated_headers_are_noticed() -> None:
    scope = build_http_scope("GET", b"/", [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    channel = HttpChannel(scope, asyncio.Queue[Any]().get, asyncio.Queue[Any]().put)
    assert (channel.fields, channel.repeated) == ({b"a": b"3", b"b": b"2"}, {b"a"})
