"""A client of a WebSocket under drill: turn after turn on one connection, each continuing the one before. A connection
that is closed is opened anew, wherever that leads, and the conversation goes on from the last turn that was heard."""

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
from drills.replicas.clients import Ask, Caller, World, asked, come_back, new_ask, note_end, tries

_TURNS = 12  # that continue each other
_PATH = "/v1/responses"


async def socket_load(world: World) -> None:
    client = Talking(world)
    try:
        while not world.over:
            await client.turns()
    finally:
        await client.close()


class Talking:
    def __init__(self, world: World) -> None:
        self._caller = Caller(world)
        self._world = world
        self._open: ClientConnection | None = None

    async def turns(self) -> None:
        """One conversation."""
        previous: str | None = None
        for _ in range(_TURNS):
            if self._world.over:
                return
            ask = asked(self._world, new_ask("socket", "socket turn", keyed=False))
            await self._turn(ask, previous)
            if ask.completed:
                previous = ask.run.id

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()

    async def _turn(self, ask: Ask, previous: str | None) -> None:
        """Asked again on a new connection if nothing was heard of it; no key goes with it, so it may be begun twice."""
        caller = self._caller
        for _ in tries(caller, ask):
            connection = await self._connected(ask)
            if connection is None:
                continue
            body = {"type": "response.create", "model": "fake", "input": ask.run.input, **_after(previous)}
            try:
                async with asyncio.timeout(self._caller.seconds):
                    await connection.send(msgspec.json.encode(body), text=True)
                    await self._hear(connection, ask)
            except ConnectionClosed:
                self._open = None
                caller.fault(ask, "cut off" if ask.run.frames else "hung up", code=f"{connection.close_code}")
            except TimeoutError:
                caller.fault(ask, "silent")
                ask.given_up = True
            ask.pids.add(caller.pid)
            if ask.run.frames:
                return

    async def _connected(self, ask: Ask) -> ClientConnection | None:
        """None: it did not come about."""
        if self._open is not None:
            if self._open.close_code is None:
                return self._open
            self._open = None
        caller, line = self._caller, socket.socket()
        line.setblocking(False)
        try:
            async with asyncio.timeout(self._caller.seconds):
                await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", caller.port))
                caller.at = line.getsockname()[1]
                where = f"ws://127.0.0.1:{caller.port}{_PATH}"
                self._open = await connect(where, sock=line, compression=None, close_timeout=1.0)
        except InvalidStatus as error:
            head, seconds = error.response, error.response.headers.get("Retry-After")
            caller.refused(
                ask, Answer(head.status_code, bytes(head.body or b"{}"), None if seconds is None else float(seconds))
            )
            await come_back(None if seconds is None else float(seconds))
        except (OSError, EOFError, InvalidHandshake):
            caller.fault(ask, "hung up")
            await come_back(None)
        if self._open is None:
            line.close()
            ask.pids.add(caller.pid)
        return self._open

    async def _hear(self, connection: ClientConnection, ask: Ask) -> None:
        run = ask.run
        while True:
            message = await connection.recv(decode=False)
            told: dict[str, Any] = msgspec.json.decode(message)
            kind = told["type"]
            if kind == "error":  # instead of a response, or of the rest of one
                await self._refused(ask, told)
                return
            if not kind.startswith("response."):
                continue
            run.frames.append(b"event: %b\ndata: %b" % (kind.encode(), message))
            if kind == "response.created":
                run.id = told["response"]["id"]
                ask.note()
            if kind in TERMINAL:
                run.whole, run.terminal_at = True, time.monotonic()
                note_end(self._caller, ask, told["response"])
                return

    async def _refused(self, ask: Ask, told: dict[str, Any]) -> None:
        """The connection stays; a server that stops will close it."""
        error = told.get("error") or {}
        seconds = error.get("retry_after", told.get("retry_after"))
        if ask.run.frames:
            self._caller.fault(ask, "broken off", str(error.get("code")), seconds is not None)
            return
        status = int(told.get("status") or 500)
        self._caller.refused(ask, Answer(status, msgspec.json.encode({"error": error}), seconds))
        connection, self._open = self._open, None
        if connection is not None:
            with contextlib.suppress(ConnectionClosed):
                await connection.close()
        await come_back(seconds)


def _after(previous: str | None) -> dict[str, str]:
    return {} if previous is None else {"previous_response_id": previous}
