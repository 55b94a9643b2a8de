"""Cancels background responses wherever they run: each ends once, and every caller gets the final state.

A response that runs here is stopped here. One that is queued, or whose owner is another or a dead process, is taken
over and ended; its former owner is notified, reads the store and stops.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from msgspec.structs import replace

from antiphon.agent.recovery import read_checkpoint
from antiphon.agent.run import MultiTurn
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.replay import Replay, reset_response
from antiphon.errors import AntiphonError, Busy, EngineFailed, NotCancellable, ServerRestarted
from antiphon.service.persistence.live_updates import PriorLog, read_prior_log
from antiphon.service.persistence.response_writer import OwnedRow, ResponseWriter
from antiphon.service.persistence.rows import decode_response, load_row
from antiphon.service.persistence.stored_images import join_images
from antiphon.service.planning.planner import PlannedResponse
from antiphon.service.runs.detached_run import DetachedRun
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.stores.base import RUNNING_STATUSES, StoredResponse

_MAX_ATTEMPTS = 10  # attempts while other processes end or cancel the same response


class Cancellation:
    """Cancels one response at a time per id."""

    def __init__(self, writer: ResponseWriter, detached_runs: DetachedRuns, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._detached_runs = detached_runs
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def cancel(self, tenant: str, response_id: str) -> bytes:
        """Return the JSON of the ended Response: cancelled, or as it ended before. Raises NotFound, NotCancellable."""
        # Taking over an id fences off earlier takeovers, so serialise them.
        async with self._locks.setdefault(response_id, asyncio.Lock()):
            active = self._detached_runs.find(tenant, response_id)
            if isinstance(active, DetachedRun) and active.opening.background:
                active.cancel()
                await active.wait_finished()
            for _ in range(_MAX_ATTEMPTS):
                row = await self._load_row(tenant, response_id)
                if row.status not in RUNNING_STATUSES:
                    return await join_images(self._writer.images, tenant, row.response)
                try:
                    if (body := await self._take_over_and_end(tenant, response_id)) is not None:
                        return body
                except ServerRestarted:
                    continue  # another process was faster
        raise Busy("Other requests are ending this response. Try again.", retry_after=1.0)

    async def _load_row(self, tenant: str, response_id: str) -> StoredResponse:
        row = await load_row(self._writer.store, tenant, response_id, with_request=False)
        if not row.background:
            raise NotCancellable(
                "Only a response that was created with `background: true` can be cancelled.", param="response_id"
            )
        return row

    async def _take_over_and_end(self, tenant: str, response_id: str) -> bytes | None:
        """Take the response over and end it. Returns None if it has ended by itself."""
        writer = self._writer
        if (row := await writer.store.take(tenant, response_id, writer.leases.make_claim())) is None:
            return None
        owned_row = await writer.adopt(tenant, row)
        try:
            previous = await read_prior_log(writer.live, tenant, response_id)
            return await end_orphan(owned_row, row, previous, ResponseEnding(status="cancelled"), self._clock())
        finally:
            owned_row.forget()


def find_end_reason(row: StoredResponse, previous: PriorLog, attempts: int, now: float) -> AntiphonError | None:
    """Return the error to end the response with, or None if it is to be run again."""
    if row.deadline is not None and now >= row.deadline:
        return EngineFailed("The response took longer than this server allows and was ended.")
    if not row.background or (previous.has_output and read_checkpoint(previous.entries) is None):
        return _server_died()
    if row.attempts > attempts:
        return ServerRestarted(f"{attempts} servers stopped unexpectedly while generating this response.")
    return None


def continue_from(planned: PlannedResponse, previous: PriorLog) -> PlannedResponse:
    """Continue where the former owner stopped between two turns, or start anew if it had emitted nothing.

    Raises ServerRestarted if it cannot be continued; the model slot is released then.
    """
    if not previous.has_output:
        return planned
    checkpoint = read_checkpoint(previous.entries)
    if checkpoint is None or not isinstance(planned.multi_turn, MultiTurn):
        planned.leave()
        raise _server_died()
    return replace(
        planned, multi_turn=replace(planned.multi_turn, checkpoint=checkpoint), recovered_entries=previous.entries
    )


def _server_died() -> ServerRestarted:
    """Return the error of a response whose server died."""
    return ServerRestarted("The server stopped unexpectedly while it was generating this response.")


async def end_orphan(
    owned_row: OwnedRow, row: StoredResponse, previous: PriorLog, ending: ResponseEnding, at: float
) -> bytes:
    """End the response and return its JSON. Raises ServerRestarted if another process was faster, and Unavailable."""
    replay = Replay(reset_response(decode_response(row.response)), include_obfuscation=False)
    replay.open()
    replay.feed(previous.entries)
    emitter = replay.emitter
    emitter.finish(ending, None, int(at))
    return await owned_row.end(emitter.response, emitter.log or [])
