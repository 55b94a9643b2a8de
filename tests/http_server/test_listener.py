"""Accepting connections: many in one iteration of the event loop, with a pause while the process has no descriptors."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from antiphon.http_server import server as listener_module
from antiphon.http_server.server import Listener
from tests.http_server.recording_transport import run_loop_once

pytestmark = pytest.mark.anyio


class Greeter(asyncio.Protocol):
    """Greets a client, and disconnects it."""

    def __init__(self, opened: "asyncio.Queue[Greeter]") -> None:
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._opened.put_nowait(self)
        transport.write(b"hello")
        transport.close()


class Greeters:
    """The protocols of all connections."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[Greeter] = asyncio.Queue()

    def __call__(self) -> Greeter:
        return Greeter(self.opened)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(30):
            for _ in range(count):
                await self.opened.get()


@pytest.fixture
async def greeters() -> Greeters:
    return Greeters()


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one


class ExhaustedSocket(socket.socket):
    """A listening socket whose first accepts fail."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            raise OSError(self.errors.pop(0), "no descriptors")
        return super().accept()


def connect(stack: ExitStack, bound: socket.socket, count: int) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(bound.getsockname(), timeout=30)) for _ in range(count)]


async def read_greeting(client: socket.socket) -> bytes:
    return await asyncio.to_thread(client.recv, 5)


async def test_clients_that_connect_at_once_are_accepted_together(bound: socket.socket, greeters: Greeters) -> None:
    listener = Listener(bound, greeters)
    with ExitStack() as stack:
        listener.start(backlog=100)
        connect(stack, bound, 50)
        await greeters.wait_for(1)
        assert greeters.opened.qsize() == 49  # in the same iteration
        listener.close()


async def test_more_clients_than_a_batch_are_accepted_in_the_next_iterations(
    bound: socket.socket, greeters: Greeters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_MAX_BATCH", 2)
    listener = Listener(bound, greeters)
    with ExitStack() as stack:
        listener.start(backlog=100)
        connect(stack, bound, 5)
        await greeters.wait_for(5)
        listener.close()


async def test_a_client_that_waits_to_be_accepted_is_served_after_the_close(
    bound: socket.socket, greeters: Greeters
) -> None:
    listener = Listener(bound, greeters)
    with ExitStack() as stack:
        listener.start(backlog=100)
        (client,) = connect(stack, bound, 1)
        listener.close()
        assert await read_greeting(client) == b"hello"


async def test_without_descriptors_clients_wait(
    greeters: Greeters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "_PAUSE_SECONDS", 0.01)
    with ExhaustedSocket() as exhausted, ExitStack() as stack:
        exhausted.errors = [errno.EMFILE, errno.ECONNABORTED]
        exhausted.bind(("127.0.0.1", 0))
        listener = Listener(exhausted, greeters)
        listener.start(backlog=100)
        (client,) = connect(stack, exhausted, 1)
        assert await read_greeting(client) == b"hello"
        listener.close()
    assert "Raise the limit of open files" in caplog.text


async def test_a_listener_can_be_closed_during_the_pause(greeters: Greeters) -> None:
    with ExhaustedSocket() as exhausted, ExitStack() as stack:
        exhausted.errors = [errno.EMFILE]
        exhausted.bind(("127.0.0.1", 0))
        listener = Listener(exhausted, greeters)
        listener.start(backlog=100)
        (client,) = connect(stack, exhausted, 1)
        async with asyncio.timeout(30):
            while exhausted.errors:
                await run_loop_once()
        listener.close()
        assert await read_greeting(client) == b"hello"
