"""Asking the service without a transport: a request as it comes over the wire, and what the answer says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from antiphon.agent.timeouts import Deadlines
from antiphon.engines.base import Engine
from antiphon.limits import Limits
from antiphon.observe import Metrics
from antiphon.protocol.decoding.codec import Decoded, decode_create
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import Message, OutputText
from antiphon.protocol.types.response import Response
from antiphon.service.model_io.models import Models
from antiphon.service.persistence.history_loader import Past
from antiphon.service.persistence.response_writer import Keeper, Keeping
from antiphon.service.planning.planner import Planner, Terms
from antiphon.service.prompting.prepare import OutputTokens
from antiphon.service.responses import Accepted, Responses
from antiphon.service.runs.accounting import Tally
from antiphon.service.runs.background import Jobs, JobSettings
from antiphon.service.runs.detached_runs import Sessions, SessionSettings
from antiphon.service.runs.follow import Following
from antiphon.stores.base import Store, StoredResponse
from antiphon.stores.live.local import LocalLive
from antiphon.stores.sqlite import SqliteStore

TENANT = "t"
WAIT = 20.0  # seconds that anything here may take


class Service:
    """All of it over one store and one engine, as a server wires it."""

    def __init__(
        self,
        engine: Engine,
        store: Store | None = None,
        *,
        terms: Terms | None = None,
        keeping: Keeping | None = None,
        sessions: SessionSettings | None = None,
        queue: int = 4,
    ) -> None:
        self.metrics = Metrics("test")
        self.store = store or SqliteStore(":memory:", 3600.0)
        self.live = LocalLive(self.store)
        self.models = Models([engine], (), accept_any=False, queue=queue)
        self.past = Past(self.store)
        self.planner = Planner(self.models, self.past, terms or Terms())
        self.keeper = Keeper(self.store, self.live, keeping or Keeping(), self.past.remember)
        tally = Tally(self.metrics)
        self.sessions = Sessions(self.store, self.live, sessions or SessionSettings(), tally.ended)
        self.following = Following(self.store, self.live, self.sessions)
        self.jobs = Jobs(self.keeper, self.planner, self.sessions, self.following, JobSettings())
        self.responses = Responses(self.planner, self.keeper, self.sessions, self.following, self.jobs, tally)

    def running(self) -> list[str]:
        """The ids of all that runs."""
        return [*self.sessions._places.taken]

    def places(self) -> int:
        """How many are taken."""
        return self.sessions.count()

    async def row(self, response_id: str) -> StoredResponse:
        row = await self.store.get(TENANT, response_id)
        assert row is not None
        return row

    async def stored(self, response_id: str) -> Response:
        return response_in((await self.row(response_id)).response)


@asynccontextmanager
async def serving(engine: Engine, store: Store | None = None, **settings: Any) -> AsyncIterator[Service]:
    """A service that keeps what it is asked to keep."""
    made = Service(engine, store, **settings)
    if store is None:
        await made.store.open()
    await made.live.open(made.sessions.hear)
    try:
        async with asyncio.timeout(WAIT * 3):
            yield made
    finally:
        async with asyncio.timeout(WAIT):
            await made.sessions.close()
            await made.keeper.drain(WAIT / 2)
            if store is None:
                await made.store.close()


def service(engine: Engine, room: OutputTokens | None = None, queue: int = 4) -> Responses:
    """One that keeps nothing."""
    terms = Terms(room=room or OutputTokens(), deadlines=Deadlines(), stores=False)
    return Service(engine, terms=terms, queue=queue).responses


def decoded(**body: Any) -> Decoded:
    return decode_create(msgspec.json.encode({"model": "fake", "input": "hi", **body}), Limits())


async def accepted(responses: Responses, **body: Any) -> Accepted:
    return await responses.create(TENANT, decoded(**body))


async def answered(responses: Responses, **body: Any) -> Response:
    return await result(await accepted(responses, **body))


async def result(made: Accepted) -> Response:
    if made.given is not None:
        return response_in(made.given)
    assert made.source is not None
    try:
        return response_in(await made.source.result())
    finally:
        made.source.leave()


async def streamed(responses: Responses, **body: Any) -> list[Event]:
    return await heard(await accepted(responses, stream=True, **body))


async def heard(made: Accepted) -> list[Event]:
    assert made.source is not None
    events: list[Event] = []

    async def tell(told: list[Event]) -> None:
        events.extend(told)

    try:
        await made.source.drive(tell)
    finally:
        made.source.leave()
    return events


def leave(made: Accepted) -> None:
    assert made.source is not None
    made.source.leave()


def response_in(body: bytes) -> Response:
    return msgspec.json.decode(body, type=Response)


def text_of(response: Response) -> str:
    (message,) = [item for item in response.output if isinstance(item, Message)]
    return "".join(part.text for part in message.content if isinstance(part, OutputText))
