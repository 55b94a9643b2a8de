"""A WebSocket client of replicas under drill: turns on one connection, each of which continues the previous one.

A closed connection is reopened, possibly to another server, and the conversation continues from the last completed
turn.
"""

import asyncio
import contextlib
import socket
import time
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from drills.harness.client import Answer
from drills.harness.oracle import TERMINAL
from drills.replicas.clients import (
    Caller,
    LoadRequest,
    LoadState,
    attempts,
    new_request,
    note_end,
    register,
    wait_before_retry,
)

_TURNS = 12  # per conversation
_PATH = "/v1/responses"


async def run_websocket_client(state: LoadState) -> None:
    client = WebSocketClient(state)
    try:
        while not state.stopping:
            await client.run_conversation()
    finally:
        await client.close()


class WebSocketClient:
    def __init__(self, state: LoadState) -> None:
        self._caller = Caller(state)
        self._state = state
        self._connection: ClientConnection | None = None

    async def run_conversation(self) -> None:
        """Run one conversation."""
        previous: str | None = None
        for _ in range(_TURNS):
            if self._state.stopping:
                return
            request = register(self._state, new_request("socket", "socket turn", keyed=False))
            await self._run_turn(request, previous)
            if request.completed:
                previous = request.run.id

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _run_turn(self, request: LoadRequest, previous: str | None) -> None:
        """Run one turn; it is sent again on a new connection if no event was received. Without a key it may be started
        twice.
        """
        caller = self._caller
        for _ in attempts(caller, request):
            connection = await self._connect(request)
            if connection is None:
                continue
            body = {"type": "response.create", "model": "fake", "input": request.run.input, **_previous_field(previous)}
            try:
                async with asyncio.timeout(self._caller.seconds):
                    await connection.send(msgspec.json.encode(body), text=True)
                    await self._read_events(connection, request)
            except ConnectionClosed:
                self._connection = None
                caller.record_fault(
                    request, "cut off" if request.run.frames else "hung up", code=f"{connection.close_code}"
                )
            except TimeoutError:
                caller.record_fault(request, "silent")
                request.given_up = True
            request.pids.add(caller.pid)
            if request.run.frames:
                return

    async def _connect(self, request: LoadRequest) -> ClientConnection | None:
        """Return the open connection or a new one; None if the connection fails."""
        if self._connection is not None:
            if self._connection.close_code is None:
                return self._connection
            self._connection = None
        caller, sock = self._caller, socket.socket()
        sock.setblocking(False)
        try:
            async with asyncio.timeout(self._caller.seconds):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", caller.port))
                caller.local_port = sock.getsockname()[1]
                url = f"ws://127.0.0.1:{caller.port}{_PATH}"
                self._connection = await connect(url, sock=sock, compression=None, close_timeout=1.0)
        except InvalidStatus as error:
            head, seconds = error.response, error.response.headers.get("Retry-After")
            caller.record_rejection(
                request,
                Answer(head.status_code, bytes(head.body or b"{}"), None if seconds is None else float(seconds)),
            )
            await wait_before_retry(None if seconds is None else float(seconds))
        except (OSError, EOFError, InvalidHandshake):
            caller.record_fault(request, "hung up")
            await wait_before_retry(None)
        if self._connection is None:
            sock.close()
            request.pids.add(caller.pid)
        return self._connection

    async def _read_events(self, connection: ClientConnection, request: LoadRequest) -> None:
        run = request.run
        while True:
            message = await connection.recv(decode=False)
            event: dict[str, Any] = msgspec.json.decode(message)
            kind = event["type"]
            if kind == "error":  # instead of a response or of its remaining events
                await self._record_error(request, event)
                return
            if not kind.startswith("response."):
                continue
            run.frames.append(b"event: %b\ndata: %b" % (kind.encode(), message))
            if kind == "response.created":
                run.id = event["response"]["id"]
                request.note_id()
            if kind in TERMINAL:
                run.stream_complete, run.terminal_at = True, time.monotonic()
                note_end(self._caller, request, event["response"])
                return

    async def _record_error(self, request: LoadRequest, event: dict[str, Any]) -> None:
        """Record an error event.

        During a response the connection stays open; a stopping server closes it. Before a response the connection is
        closed, and the client waits before the next attempt.
        """
        error = event.get("error") or {}
        seconds = error.get("retry_after", event.get("retry_after"))
        if request.run.frames:
            self._caller.record_fault(request, "broken off", str(error.get("code")), seconds is not None)
            return
        status = int(event.get("status") or 500)
        self._caller.record_rejection(request, Answer(status, msgspec.json.encode({"error": error}), seconds))
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(ConnectionClosed):
                await connection.close()
        await wait_before_retry(seconds)


def _previous_field(previous: str | None) -> dict[str, str]:
    return {} if previous is None else {"previous_response_id": previous}
