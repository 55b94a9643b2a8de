"""Creation of Responses, independent of the transport.

A request is validated and planned. Its row is written first if the response can be observed before its end. Then the
run is handed out:

    foreground ─────────▶ DirectRun: driven by its client
    stream ─────────────▶ KeptRun, which continues without its client (`--keep-streams`)
    Idempotency-Key ────▶ DetachedRun, which others can join
    background ─────────▶ BackgroundRuns

Errors of a request are raised before anything is handed out, so the client gets a plain 4xx.
"""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.agent.run import Run
from antiphon.errors import UnsupportedParameter
from antiphon.protocol.decoding.codec import DecodedRequest, encode
from antiphon.protocol.types.items import InputItem
from antiphon.service.access.load_monitor import LoadMonitor
from antiphon.service.persistence.history_cache import ConnectionCache
from antiphon.service.persistence.response_writer import OwnedRow, ResponseWriter
from antiphon.service.persistence.rows import load_row, render_response
from antiphon.service.persistence.stored_images import join_images
from antiphon.service.planning.planner import Continuation, PlannedResponse, Planner
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.runs.direct_run import DirectRun, KeptRun
from antiphon.service.runs.follow import Follower, replay
from antiphon.stores.base import IdempotencyKey

ResponseSource = DirectRun | Follower


class AcceptedResponse(Struct, frozen=True):
    """The reply to a create request: a source to drive or a finished body."""

    source: ResponseSource | None  # the caller drives it or waits for its result, and closes it
    body: bytes | None  # JSON body to send immediately
    ignored: list[str]
    # items before the output, for an unstored response that only its connection caches
    history: Sequence[InputItem] | None = None
    run: Run | None = None  # for the connection, which may steer or cancel it


class Responses(Struct, frozen=True, eq=False):
    _planner: Planner
    _writer: ResponseWriter
    _detached_runs: DetachedRuns
    _background: BackgroundRuns
    _load_monitor: LoadMonitor | None = None

    async def create(
        self,
        tenant: str,
        decoded: DecodedRequest,
        key: IdempotencyKey | None = None,
        connection_cache: ConnectionCache | None = None,
    ) -> AcceptedResponse:
        """Validate, plan and start a response.

        The caller drives the returned source or waits for its result, and closes it in either case.
        `connection_cache`: unstored responses of the connection that sent the request.
        """
        if key is not None:
            if not self._planner.is_stored(decoded.request):
                raise UnsupportedParameter(
                    "An Idempotency-Key requires a stored response: `store` must not be false.", param="store"
                )
            if (existing_id := await self._writer.store.keyed(tenant, key)) is not None:
                return await self._join_existing(tenant, existing_id, decoded)
        if decoded.request.background:
            return await self._submit_background(tenant, decoded, key)
        slot = self._detached_runs.acquire(tenant)
        row: OwnedRow | str | None = ""
        try:
            planned = await self._planner.plan_response(
                tenant, decoded, Continuation(connection_cache=connection_cache)
            )
            if not planned.opening.store:
                row = None
            else:
                row = self._defer_row(tenant, planned, key) or await self._begin_row(tenant, planned, key)
        finally:
            if isinstance(row, str):
                slot.release()
        if isinstance(row, str):
            return await self._join_existing(tenant, row, decoded)
        runs = self._detached_runs
        source: ResponseSource
        if row is not None and key is not None:
            active = runs.start_foreground(slot, tenant, planned, row)
            source = Follower(runs, tenant, planned.opening, planned.obfuscates, active=active)
        elif decoded.request.stream and runs.keeps_streams:
            source = KeptRun(runs, slot, tenant, planned, row)
        else:
            source = DirectRun(slot, tenant, planned, row, runs.on_end)
        if connection_cache is None:
            return AcceptedResponse(source, None, planned.ignored)
        unstored = not planned.opening.store
        history = (*planned.earlier, *planned.decoded.request.input) if unstored else None
        run = source.run if isinstance(source, DirectRun) else None
        return AcceptedResponse(source, None, planned.ignored, history, run)

    def _defer_row(self, tenant: str, planned: PlannedResponse, key: IdempotencyKey | None) -> OwnedRow | None:
        """Return a row that is written once, at the end, if nothing can refer to the response before that."""
        decoded, opening = planned.decoded, planned.opening
        if key is not None or decoded.request.stream or opening.background:
            return None
        if opening.previous_response_id is not None or opening.conversation is not None:
            return None
        return self._writer.defer(tenant, decoded, opening)

    async def _begin_row(self, tenant: str, planned: PlannedResponse, key: IdempotencyKey | None) -> OwnedRow | str:
        """Write the row, or return the id of the key's existing response; then, and on errors, the slot is released."""
        row: OwnedRow | str = ""
        try:
            row = await self._writer.begin(tenant, planned.decoded, planned.opening, key, planned.is_chain_root)
        finally:
            if isinstance(row, str):
                planned.leave()
        return row

    async def _submit_background(
        self, tenant: str, decoded: DecodedRequest, key: IdempotencyKey | None
    ) -> AcceptedResponse:
        if self._load_monitor is not None:
            self._load_monitor.check_background()
        planned = await self._planner.plan_response(tenant, decoded, patient=True)
        assert planned.opening.store  # the planner rejects unstored background responses
        row = await self._begin_row(tenant, planned, key)
        if isinstance(row, str):
            return await self._join_existing(tenant, row, decoded)
        source = await self._background.submit(tenant, planned, row)
        if decoded.request.stream:
            return AcceptedResponse(source, None, planned.ignored)
        source.close()
        return AcceptedResponse(None, encode(planned.opening), planned.ignored)

    async def _join_existing(self, tenant: str, response_id: str, decoded: DecodedRequest) -> AcceptedResponse:
        """Reply with the response that an earlier request with the same key created."""
        request = decoded.request
        if request.background and not request.stream:
            row = await load_row(self._writer.store, tenant, response_id, with_request=False)
            body = await join_images(self._writer.images, tenant, render_response(row))
            return AcceptedResponse(None, body, [])
        return AcceptedResponse(await replay(self._detached_runs, tenant, response_id), None, [])
