"""Requests to the service without a transport: bodies as they arrive over the wire, and readers of the results."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from antiphon.agent.timeouts import Timeouts
from antiphon.config.areas import StorageSettings
from antiphon.engines.base import Engine
from antiphon.limits import Limits
from antiphon.observe import Metrics
from antiphon.protocol.decoding.codec import DecodedRequest, decode_create
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import Message
from antiphon.protocol.types.parts import OutputText
from antiphon.protocol.types.response import Response
from antiphon.service.access.usage import UsageMeter
from antiphon.service.model_io.models import Models
from antiphon.service.model_io.served_model import OutputTokenLimits
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.persistence.response_writer import ResponseWriter
from antiphon.service.planning.planner import Planner, PlannerSettings
from antiphon.service.responses import AcceptedResponse, Responses
from antiphon.service.runs.active_runs import record_run
from antiphon.service.runs.background import BackgroundRuns
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.stores.base import StoredResponse
from antiphon.stores.live.base import LocalLiveLog
from antiphon.stores.sql.store import Store
from antiphon.stores.sqlite import SqliteStore

TENANT = "t"
TIMEOUT_SECONDS = 20.0  # limit for every operation in these helpers


class ServiceStack:
    """The complete service over one store and one engine, connected as in a server."""

    def __init__(
        self,
        engine: Engine,
        store: Store | None = None,
        *,
        terms: PlannerSettings | None = None,
        settings: StorageSettings | None = None,
        queue: int = 4,
    ) -> None:
        settings = settings or StorageSettings(keep_streams=0.0)
        self.metrics = Metrics("test")
        self.store = store or SqliteStore(":memory:", 3600.0)
        self.live = LocalLiveLog(self.store)
        self.models = Models(engine, queue=queue)
        self.history_loader = HistoryLoader(self.store)
        self.planner = Planner(self.models, self.history_loader, terms or PlannerSettings())
        self.writer = ResponseWriter(self.store, self.live, settings, self.history_loader.remember)
        self.detached_runs = DetachedRuns(
            self.store, self.live, settings, partial(record_run, self.metrics, UsageMeter(self.store))
        )
        self.background_runs = BackgroundRuns(self.writer, self.planner, self.detached_runs)
        self.responses = Responses(self.planner, self.writer, self.detached_runs, self.background_runs)

    def list_running(self) -> list[str]:
        """Return the ids of all active runs."""
        return [*self.detached_runs.by_id]

    def count_runs(self) -> int:
        """Return the number of run slots in use."""
        return len(self.detached_runs.slots)

    async def load_row(self, response_id: str) -> StoredResponse:
        row = await self.store.get(TENANT, response_id)
        assert row is not None
        return row

    async def load_response(self, response_id: str) -> Response:
        return parse_response((await self.load_row(response_id)).response)


@asynccontextmanager
async def start_service(engine: Engine, store: Store | None = None, **settings: Any) -> AsyncIterator[ServiceStack]:
    """Start a service with a store. `settings` are the keyword arguments of `ServiceStack`."""
    stack = ServiceStack(engine, store, **settings)
    if store is None:
        await stack.store.open()
    await stack.live.open(stack.detached_runs.on_notification)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS * 3):
            yield stack
    finally:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await stack.detached_runs.close()
            await stack.writer.drain(TIMEOUT_SECONDS / 2)
            if store is None:
                await stack.store.close()


def make_responses(engine: Engine, output_limits: OutputTokenLimits | None = None, queue: int = 4) -> Responses:
    """Return the responses of a service that stores nothing."""
    terms = PlannerSettings(
        output_limits=output_limits or OutputTokenLimits(), timeouts=Timeouts(), store_enabled=False
    )
    return ServiceStack(engine, terms=terms, queue=queue).responses


def decode_request(**body: Any) -> DecodedRequest:
    return decode_create(msgspec.json.encode({"model": "fake", "input": "hi", **body}), Limits())


async def accept_request(responses: Responses, **body: Any) -> AcceptedResponse:
    """Create a response and return it as accepted, before it has run."""
    return await responses.create(TENANT, decode_request(**body))


async def create_response(responses: Responses, **body: Any) -> Response:
    """Create a response and wait for its end."""
    return await wait_for_response(await accept_request(responses, **body))


async def wait_for_response(accepted_response: AcceptedResponse) -> Response:
    if accepted_response.body is not None:
        return parse_response(accepted_response.body)
    assert accepted_response.source is not None
    try:
        return parse_response(await accepted_response.source.result())
    finally:
        accepted_response.source.close()


async def stream_events(responses: Responses, **body: Any) -> list[Event]:
    """Create a streamed response and return all its events."""
    return await read_events(await accept_request(responses, stream=True, **body))


async def read_events(accepted_response: AcceptedResponse) -> list[Event]:
    assert accepted_response.source is not None
    events: list[Event] = []

    async def collect(batch: list[Event]) -> None:
        events.extend(batch)

    try:
        await accepted_response.source.drive(collect)
    finally:
        accepted_response.source.close()
    return events


def close_source(accepted_response: AcceptedResponse) -> None:
    assert accepted_response.source is not None
    accepted_response.source.close()


def parse_response(body: bytes) -> Response:
    return msgspec.json.decode(body, type=Response)


def get_text(response: Response) -> str:
    (message,) = [item for item in response.output if isinstance(item, Message)]
    return "".join(part.text for part in message.content if isinstance(part, OutputText))
