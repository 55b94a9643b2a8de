"""The live log across processes on PostgreSQL alone: batches are the store's rows, and words are notifications.

Words have a connection of their own. What is to be said while one notification is under way goes into the next, and a
batch's transaction holds none: PostgreSQL lets transactions that notify commit only one after the other.
"""

import asyncio

from asyncpg import Connection

from antiphon.stores.live.base import Hear
from antiphon.stores.live.reconnect import again_and_again
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.postgres_pool import FAULTS, STARTUP, Line, connect, startup_error

CHANNEL = "antiphon"
PROBE_SECONDS = 10.0
MOST_TOGETHER = 200  # a notification holds at most 8000 bytes
MOST_WAITING = 10_000  # beyond, words are lost


class PostgresLive:
    name = "postgresql"

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._words: set[str] = set()
        self._wake = asyncio.Event()
        self._first: Line | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, hear: Hear) -> None:
        self._hear = hear
        try:
            self._first = await self._listen()
        except STARTUP as error:
            raise startup_error(error, self._store.url) from None
        self._task = asyncio.create_task(again_and_again(self._session, FAULTS), name="words from PostgreSQL")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._first is not None:
            self._first.terminate()

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        await self._store.append(tenant, response_id, fence, number, batch)
        self._say(response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        return await self._store.read(tenant, response_id, after)

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        """The store's rows have it."""

    async def drop(self, tenant: str, response_id: str) -> None:
        """The store did, when the response ended."""

    async def tell(self, response_id: str) -> None:
        self._say(response_id)

    def _say(self, response_id: str) -> None:
        self._hear(response_id)
        if len(self._words) < MOST_WAITING:
            self._words.add(response_id)
            self._wake.set()

    async def _session(self) -> None:
        """On one connection, until it is lost."""
        line, self._first = self._first or await self._listen(), None
        try:
            while not line.is_closed():
                await self._speak(line)
                await self._news(line)
            raise ConnectionResetError("closed by the server")
        finally:
            line.terminate()

    async def _listen(self) -> Line:
        line = await connect(self._store.url)
        await line.execute("SET synchronous_commit = off")  # nothing that is said here needs to outlive a crash
        line.add_termination_listener(lambda _: self._wake.set())
        await line.add_listener(CHANNEL, self._pass_on)
        return line

    async def _speak(self, line: Line) -> None:
        while self._words:
            together = [self._words.pop() for _ in range(min(len(self._words), MOST_TOGETHER))]
            await line.execute("SELECT pg_notify($1, $2)", CHANNEL, " ".join(together))

    async def _news(self, line: Line) -> None:
        """Until there is something to say; in a long silence, make sure that the other side is still there."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            await line.execute("SELECT 1")
        self._wake.clear()

    def _pass_on(self, line: object, pid: int, channel: str, payload: object) -> None:
        if isinstance(line, Connection) and line.get_server_pid() == pid:
            return  # one's own was heard at once
        for response_id in str(payload).split():
            self._hear(response_id)
