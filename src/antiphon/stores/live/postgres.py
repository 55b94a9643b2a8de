"""The live log across processes on PostgreSQL alone: batches are rows of the store, notifications use LISTEN/NOTIFY.

Notifications have a connection of their own. Those that accumulate while one is being sent are combined in the next,
and a batch's transaction contains none: PostgreSQL serialises the commits of transactions that notify.
"""

import asyncio
from functools import partial

from antiphon.offload import TimedEvent
from antiphon.stores.live.base import LocalLiveLog, NotifyCallback, run_with_reconnect
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.postgres_pool import FAULTS, STARTUP_FAULTS, PostgresConnection, connect, to_startup_error

CHANNEL = "antiphon"
PROBE_SECONDS = 10.0
MAX_PER_NOTIFICATION = 200  # ids; the payload of a notification is limited to 8000 bytes
MAX_PENDING = 10_000  # further notifications are dropped


class PostgresLiveLog(LocalLiveLog):
    name = "postgresql"

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._url = store.url
        self._pending: set[str] = set()
        self._wake = TimedEvent()
        self._first_connection: PostgresConnection | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, notify: NotifyCallback) -> None:
        await super().open(notify)
        try:
            self._first_connection = await self._connect_listener()
        except STARTUP_FAULTS as error:
            raise to_startup_error(error, self._url) from None
        self._task = asyncio.create_task(
            run_with_reconnect(self._session, FAULTS), name="notifications from PostgreSQL"
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._first_connection is not None:
            self._first_connection.terminate()
        await super().close()

    def _publish(self, response_id: str) -> None:
        super()._publish(response_id)
        if len(self._pending) < MAX_PENDING:
            self._pending.add(response_id)
            self._wake.set()

    async def _session(self) -> None:
        """Send and receive on one connection until it is lost."""
        connection, self._first_connection = self._first_connection or await self._connect_listener(), None
        try:
            while not connection.is_closed():
                while self._pending:
                    batch = [self._pending.pop() for _ in range(min(len(self._pending), MAX_PER_NOTIFICATION))]
                    await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, " ".join(batch))
                if not await self._wake.wait_for(PROBE_SECONDS):
                    await connection.execute("SELECT 1")  # probe the connection after a long idle time
                self._wake.clear()
            raise ConnectionResetError("closed by the server")
        finally:
            connection.terminate()

    async def _connect_listener(self) -> PostgresConnection:
        connection = await connect(self._url)
        await connection.execute("SET synchronous_commit = off")  # notifications need not survive a crash
        connection.add_termination_listener(lambda _: self._wake.set())
        # Notifications may be delivered after the connection was closed, when it has no pid any more.
        await connection.add_listener(CHANNEL, partial(self._on_notification, connection.get_server_pid()))
        return connection

    def _on_notification(self, own_pid: int, connection: object, pid: int, channel: str, payload: object) -> None:
        if pid == own_pid:
            return  # already delivered by `_publish`
        for response_id in str(payload).split():
            self._notify(response_id)
