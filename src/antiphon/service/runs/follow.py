"""Follows a response from any event on: while it runs here, while it runs in another process, and after it ended.

active run here ──▶ live log and store ──▶ packed log          each entry once, in order; it always ends
"""

from time import time
from typing import Protocol

from antiphon.agent.run import EventSink
from antiphon.core.emitter.event_log import LoggedError, RunEnded
from antiphon.core.replay import reset_response
from antiphon.errors import AntiphonError, EngineFailed, NotFound
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.rows import decode_response, restore_request
from antiphon.service.persistence.stored_responses import unknown_response_error
from antiphon.service.runs.active_runs import ActiveRun
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.runs.remote_run import EventFeed, RemoteRun, load_log
from antiphon.stores.base import Store, StoredResponse
from antiphon.stores.live.base import LiveLog


class ResponseSource(Protocol):
    """Events and result of one response."""

    @property
    def waits(self) -> bool:
        """Whether the source is waiting for an engine or another process."""

    async def drive(self, emit: EventSink) -> None:
        """Emit every event, in lists, up to the terminal event."""

    async def result(self) -> bytes:
        """Return the JSON of the Response once it has ended. Raises the error if it failed."""

    def close(self) -> None:
        """Stop reading. A foreground run without other readers is cancelled."""


class FollowService:
    """Creates sources for responses that this or another process runs or has run."""

    def __init__(self, store: Store, live: LiveLog, detached_runs: DetachedRuns) -> None:
        self._store = store
        self._live = live
        self._detached_runs = detached_runs

    def follow(self, active: ActiveRun) -> ResponseSource:
        """Follow from the first event. Closing the source is how a foreground run loses a reader."""
        remote = self._make_remote(active.tenant, active.opening.id)
        return Follower(remote, active.opening, active.obfuscates, active=active)

    def follow_queued(self, tenant: str, opening: Response, padded: bool) -> ResponseSource:
        """Follow a queued response, whichever server will run it."""
        return Follower(self._make_remote(tenant, opening.id), opening, padded)

    async def replay(
        self, tenant: str, response_id: str, after: int = -1, obfuscates: bool | None = None
    ) -> ResponseSource:
        """Return a source of the events numbered above `after`; its `result()` waits for the end and returns the JSON.

        Deltas are padded as the original request says, unless `obfuscates` is given. Raises NotFound.
        """
        remote = self._make_remote(tenant, response_id)
        if (active := self._detached_runs.find(tenant, response_id)) is not None:
            padded = active.obfuscates if obfuscates is None else obfuscates
            return Follower(remote, active.opening, padded, after, active)
        row = await self._store.get(tenant, response_id)
        if row is None:
            raise unknown_response_error(response_id)
        padded = _wants_padding(row) if obfuscates is None else obfuscates
        return Follower(remote, reset_response(decode_response(row.response)), padded, after)

    def _make_remote(self, tenant: str, response_id: str) -> RemoteRun:
        return RemoteRun(self._store, self._live, self._detached_runs.notifications, tenant, response_id)


class Follower:
    """A source of events that other readers may receive too, live or replayed."""

    def __init__(
        self,
        remote: RemoteRun,
        opening: Response,
        padded: bool,
        after: int = -1,
        active: ActiveRun | None = None,
    ) -> None:
        self._remote = remote
        self._opening = opening
        self._padded = padded
        self._after = after
        self._active = active
        self._waits = False
        self._closed = False
        if active is not None:
            active.attach()

    @property
    def waits(self) -> bool:
        return self._waits or self._remote.waits

    async def drive(self, emit: EventSink) -> None:
        feed = EventFeed(self._opening, self._padded, self._after, emit)
        await feed.open()
        if self._active is not None:
            await self._follow_active(self._active, feed)
        if feed.ended:
            return
        try:
            await self._remote.follow(feed)
        except NotFound as error:
            await feed.fail(error, int(time()))
        except AntiphonError as error:
            await feed.break_off(error)

    async def result(self) -> bytes:
        if self._active is not None and (outcome := await self._wait_outcome(self._active)) is not None:
            return outcome
        row = await self._remote.wait_ended()
        if row.status == "failed":
            last = (await load_log(row))[-1]
            if isinstance(last, RunEnded) and last.fault is not None:
                raise _to_error(last.fault)
        return row.response

    def close(self) -> None:
        if self._active is not None and not self._closed:
            self._closed = True
            self._active.detach()

    async def _follow_active(self, active: ActiveRun, feed: EventFeed) -> None:
        """Feed everything that is visible in the active run until it is over."""
        position = 0
        while not feed.ended:
            if position < (visible := active.visible_lists):
                lists, position = active.log[position:visible], visible
                await feed.feed([entry for entries in lists for entry in entries])
            elif active.is_over:
                return
            else:
                await self._wait(active, position)

    async def _wait_outcome(self, active: ActiveRun) -> bytes | None:
        while not active.is_over:
            await self._wait(active, active.visible_lists)
        if isinstance(active.outcome, AntiphonError):
            raise active.outcome
        return active.outcome

    async def _wait(self, active: ActiveRun, seen: int) -> None:
        self._waits = True
        try:
            await active.wait_for_more(seen)
        finally:
            self._waits = False


def _wants_padding(row: StoredResponse) -> bool:
    options = restore_request(row).request.stream_options
    return options is not None and options.include_obfuscation


def _to_error(fault: LoggedError) -> AntiphonError:
    """Return the error as it was raised when the response failed."""
    kind = _ERROR_TYPES.get((fault.type, fault.code), EngineFailed)
    return kind(fault.message, param=fault.param, retry_after=fault.retry_after)


def _collect_types(kind: type[AntiphonError]) -> dict[tuple[str, str | None], type[AntiphonError]]:
    """Map type and code to the error class; the class nearest to the root wins."""
    found = {(kind.type, kind.code): kind}
    for child in kind.__subclasses__():
        found = _collect_types(child) | found
    return found


_ERROR_TYPES = _collect_types(AntiphonError)
