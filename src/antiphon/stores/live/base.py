"""The live log of a running response: batches of log entries, and notifications to its followers in all processes.

A batch is readable in every process when `append` returns, and survives the process that wrote it if the log is shared
or the store is durable. Delivery of notifications is best effort, so waiters also poll every second.

Also the protocol of rate limit buckets that all servers on one live log share: each server takes from them the amounts
that it is going to hand out; and the loop that keeps the connection for notifications open.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from msgspec import Struct

from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
MAX_PAUSE = 2.0
HEALTHY_SECONDS = 10.0

NotifyCallback = Callable[[str], None]  # called with the id of a response


class LiveLog(Protocol):
    """Batches of a running response and notifications about it. The method names are metric labels."""

    async def open(self, notify: NotifyCallback) -> None:
        """Start delivery: `notify` is called on the event loop for every notification, including this process's own."""

    async def close(self) -> None: ...

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        """Append a batch, numbered 0, 1, 2 …, and notify all followers.

        Raises OwnershipLost for a fenced-off owner.
        """

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        """Return the batches with numbers above `after` (−1: all)."""

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        """Reject `append` from owners with a lower fence from now on."""

    async def drop(self, tenant: str, response_id: str) -> None:
        """Remove the log of a response that has ended and is stored completely."""

    async def tell(self, response_id: str) -> None:
        """Notify all followers of a change: the response ended, has another owner, or is to be cancelled."""


def _ignore(response_id: str) -> None:
    """Discard notifications while the log is closed."""


class LocalLiveLog:
    """The live log in the rows of a store. A subclass extends `_publish` to other processes."""

    name = "local"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._notify: NotifyCallback = _ignore

    async def open(self, notify: NotifyCallback) -> None:
        self._notify = notify

    async def close(self) -> None:
        self._notify = _ignore

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None:
        await self._store.append(tenant, response_id, fence, number, batch)
        self._publish(response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        return await self._store.read(tenant, response_id, after)

    async def fence(self, tenant: str, response_id: str, fence: int) -> None:
        """No-op: the store's rows hold the fence."""

    async def drop(self, tenant: str, response_id: str) -> None:
        """No-op: the store removed the batches when the response ended."""

    async def tell(self, response_id: str) -> None:
        self._publish(response_id)

    def _publish(self, response_id: str) -> None:
        self._notify(response_id)


class BucketRequest(Struct, frozen=True, kw_only=True):
    """A transaction on one bucket. The field names are part of the worker protocol."""

    name: str
    size: float  # capacity, which is also the refill per minute
    back: float = 0.0  # amount returned first; negative for an amount that was spent without being taken
    want: float = 0.0  # amount to take if it is available, otherwise nothing is taken
    most: float = 0.0  # amount to take instead, as far as available, when `want` can be met


class BucketGrant(Struct, frozen=True):
    """The result of a BucketRequest: the amount taken and the amount that remains in the bucket."""

    taken: float
    left: float


class SharedLimits(Protocol):
    """Rate limits that several servers or workers count together."""

    name: str  # of the process or service that holds the buckets, for log messages

    async def exchange(self, tenant: str, requests: Sequence[BucketRequest]) -> list[BucketGrant]:
        """Run all requests, which are for buckets of one tenant, in one step. Raises Unavailable."""

    async def report_running(self, tenant: str, counts: Mapping[str, int]) -> dict[str, int]:
        """Report how many responses run here per limit; returns how many run in other processes.

        Counts that are not reported again expire after a short time.
        """

    async def close(self) -> None: ...


async def run_with_reconnect(session: Callable[[], Awaitable[None]], errors: tuple[type[Exception], ...]) -> NoReturn:
    """Run sessions one after the other until cancelled; a session ends with one of `errors`.

    An outage is logged once, however long it lasts, and its end once.
    """
    loop = asyncio.get_running_loop()
    pause, warned = FIRST_PAUSE, False
    while True:
        started = loop.time()
        recovery_log = (
            loop.call_later(HEALTHY_SECONDS, log.warning, "Live log notifications are received again.")
            if warned
            else None
        )
        try:
            await session()
        except errors as error:
            if not warned or loop.time() - started > HEALTHY_SECONDS:
                log.warning("Live log notifications are lost until it answers: %s: %s", type(error).__name__, error)
            warned = True
        finally:
            if recovery_log is not None:
                recovery_log.cancel()
        if loop.time() - started > HEALTHY_SECONDS:
            pause = FIRST_PAUSE
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, MAX_PAUSE)
