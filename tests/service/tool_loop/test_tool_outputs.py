"""A response that waits for its client's tools: whoever brings the last output, to whichever server, it goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.core.emitter.fold import opening
from antiphon.errors import BadRequest, NotFound, ServerRestarted, ToolOutputTimeout, Unavailable
from antiphon.ids import ItemIds, new_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.tool_outputs import decode_tool_output
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.items import CustomToolCall, CustomToolCallOutput, FunctionCall, FunctionCallOutput
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.persistence.notifications import Words
from antiphon.service.persistence.stored_request import stored_request
from antiphon.service.tool_loop.tool_outputs import ClientCall, ClientOutput, ToolOutputs, ToolOutputSettings
from antiphon.stores.base import Claim, End, NewResponse, Store
from antiphon.stores.live.registry import live_log
from antiphon.stores.registry import make_store
from tests.support.media_files import as_url, png
from tests.support.services import Postgres, Redis

pytestmark = pytest.mark.anyio

TENANT = "t"
TTL = 1000.0
WAIT = 10.0
PICTURE = as_url(png())
CALLS: list[ClientCall] = [
    FunctionCall(call_id="call_b", name="weather", arguments="{}"),
    CustomToolCall(call_id="call_a", name="shout", input="hi"),
]


class Server:
    """What a server has of it."""

    def __init__(self, store: Store, live: str | None = None, **settings: Any) -> None:
        self.store = store
        self.asked: bool | None = True  # wait_for_tool_outputs
        self.words = Words()
        self.live = live_log(live, store, TTL)
        self.outputs = ToolOutputs(store, self.live, self.words, ToolOutputSettings(**settings))

    async def begin(self) -> str:
        name = new_id("resp")
        body = {"model": "fake", "input": "hi", "stream": True, "wait_for_tool_outputs": self.asked}
        asked = decode_create(msgspec.json.encode(body), Limits())
        response = encode(opening(asked.request, asked.sent, name, "fake", 1, store=True))
        request = stored_request(asked)
        new = NewResponse(id=name, status="in_progress", created=1.0, request=request, response=response)
        await self.store.begin(TENANT, new, Claim("owner", 1e12))
        return name

    async def submit(self, response_id: str, tenant: str = TENANT, **body: Any) -> Any:
        asked = decode_tool_output(msgspec.json.encode(body), Limits())
        return msgspec.json.decode(await self.outputs.submit(tenant, response_id, asked))

    async def finish(self, response_id: str, fence: int = 1) -> None:
        end = End(id=response_id, fence=fence, status="completed", response=b"{}", tape=b"", ended=2.0, expires=None)
        await self.store.finish(TENANT, end)


@asynccontextmanager
async def servers(place: str, count: int = 1, live: str | None = None, **settings: Any) -> AsyncIterator[list[Server]]:
    """So many on one store; in memory they share it."""
    async with AsyncExitStack() as stack:
        shared = make_store(place, TTL)
        opened: list[Server] = []
        for _ in range(count):
            store = shared if place == "memory" else make_store(place, TTL)
            if store not in [server.store for server in opened]:
                stack.push_async_callback(store.close)
                await store.open()
            server = Server(store, live, **settings)
            stack.push_async_callback(server.live.close)
            await server.live.open(server.words.hear)
            opened.append(server)
        yield opened


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with servers("memory") as [server]:
        yield server


@asynccontextmanager
async def waiting(
    server: Server, response_id: str, fence: int = 1, calls: list[ClientCall] = CALLS
) -> AsyncIterator["asyncio.Task[list[ClientOutput]]"]:
    """It waits, and its calls are pending."""
    async with asyncio.timeout(WAIT):
        task = asyncio.get_running_loop().create_task(server.outputs.wait(TENANT, response_id, fence, calls))
        try:
            names = {call.call_id for call in calls}
            while not (task.done() or (await server.store.outputs(TENANT, response_id)).keys() >= names):
                pass
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


async def refused(work: Awaitable[Any], kind: type[BadRequest] | type[NotFound]) -> Any:
    with pytest.raises(kind) as error:
        await work
    return error.value


@pytest.mark.shows("A2.1", "A2.2", "A2.3")
async def test_it_goes_on_when_every_call_is_answered(server: Server) -> None:
    name = await server.begin()
    async with waiting(server, name) as task:
        taken = await server.submit(name, tool_call_id="call_a", output="HI")
        assert taken == {"id": name, "status": "in_progress"}
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        parts = [{"type": "output_text", "text": "22 °C"}, {"type": "input_image", "image_url": PICTURE}]
        assert await server.submit(name, call_id="call_b", output=parts) == taken
        function, custom = await task
    assert function == FunctionCallOutput(
        call_id="call_b",
        status="completed",
        output=[InputText(text="22 °C"), InputImage(image_url=PICTURE)],
    )
    assert custom == CustomToolCallOutput(call_id="call_a", status="completed", output="HI")


@pytest.mark.shows("A2.4")
async def test_an_answer_to_another_call_or_a_second_one_is_refused(server: Server) -> None:
    name = await server.begin()
    async with waiting(server, name):
        await server.submit(name, call_id="call_a", output="1")
        for field, call in (("tool_call_id", "call_a"), ("call_id", "call_c"), ("call_id", "")):
            error = await refused(server.submit(name, **{field: call}, output="2"), BadRequest)
            assert (error.status, error.code, error.param) == (400, "tool_call_not_pending", field)


@pytest.mark.shows("A2.4", "A2.5")
async def test_only_a_response_that_waits_takes_outputs(server: Server) -> None:
    name = await server.begin()
    error = await refused(server.submit(name, call_id="call_a", output=""), BadRequest)
    assert (error.status, error.code, error.param) == (400, "response_not_waiting", None)
    async with waiting(server, name):
        theirs = await refused(server.submit(name, "another", call_id="call_a", output=""), NotFound)
        never = await refused(server.submit(new_id("resp"), call_id="call_a", output=""), NotFound)
        assert theirs.status == never.status == 404
        assert theirs.code == never.code
    await server.finish(name)
    error = await refused(server.submit(name, call_id="call_a", output=""), BadRequest)
    assert error.code == "response_not_waiting"


@pytest.fixture
def only_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself."""
    for name in ("_LOOK", "_LONGEST_LOOK"):
        monkeypatch.setattr(f"antiphon.service.tool_loop.tool_outputs.{name}", 1000.0)


async def early(server: Server, response_id: str, calls: list[ClientCall]) -> "asyncio.Task[Any]":
    """An output whose response does not wait for it yet, and which is kept waiting for that."""
    looks, kept_waiting = 0, asyncio.Event()
    submit = server.store.submit_output

    async def watched(*values: Any) -> Any:
        nonlocal looks
        said, looks = await submit(*values), looks + 1
        if looks == 2:
            kept_waiting.set()
        return said

    server.store.submit_output = watched  # type: ignore[method-assign, assignment]  # to know when it was looked at
    task = asyncio.get_running_loop().create_task(server.submit(response_id, call_id=calls[0].call_id, output="early"))
    await kept_waiting.wait()
    return task


def calls_of(response_id: str) -> list[ClientCall]:
    """As the emitter names them."""
    return [FunctionCall(call_id=ItemIds(response_id)("call"), name="f", arguments="{}")]


@pytest.mark.usefixtures("only_words")
async def test_an_output_that_comes_before_the_model_is_done_is_taken_when_it_is(server: Server) -> None:
    name = await server.begin()
    calls = calls_of(name)
    task = await early(server, name, calls)
    async with waiting(server, name, calls=calls) as waits:
        assert [output.output for output in await waits] == ["early"]
        assert await task == {"id": name, "status": "in_progress"}


async def test_an_output_that_comes_early_is_refused_when_the_response_ends_without_it(server: Server) -> None:
    name = await server.begin()
    task = await early(server, name, calls_of(name))
    await server.finish(name)
    server.words.hear(name)
    async with asyncio.timeout(WAIT):
        assert (await refused(task, BadRequest)).code == "response_not_waiting"


async def test_nobody_is_kept_waiting_whose_output_cannot_be_early(server: Server) -> None:
    """Of a response that does not wait, and for a call that cannot be its own."""
    async with asyncio.timeout(WAIT):  # who may be early waits for three times that
        server.asked = False
        name = await server.begin()
        submitted = server.submit(name, call_id=calls_of(name)[0].call_id, output="")
        assert (await refused(submitted, BadRequest)).code == "response_not_waiting"
        server.asked = True
        submitted = server.submit(await server.begin(), call_id=calls_of(name)[0].call_id, output="")
        assert (await refused(submitted, BadRequest)).code == "response_not_waiting"


@pytest.mark.shows("A2.7")
async def test_it_waits_for_so_long_and_says_what_did_not_come() -> None:
    async with servers("memory", timeout=0.05) as [server]:
        name = await server.begin()
        async with waiting(server, name) as task:
            await server.submit(name, call_id="call_b", output="1")
            error = await refused(asyncio.shield(task), ToolOutputTimeout)
    assert (error.code, error.type) == ("tool_output_timeout", "invalid_request_error")
    assert "call_a" in error.message
    assert "call_b" not in error.message


async def test_two_rounds_of_calls_are_waited_for_one_by_one(server: Server) -> None:
    name = await server.begin()
    for number in range(3):
        call = FunctionCall(call_id=f"call_{number}", name="f", arguments="{}")
        async with waiting(server, name, calls=[call]) as task:
            await server.submit(name, call_id=call.call_id, output=str(number))
            [output] = await task
            assert output.output == str(number)


async def test_who_lost_it_or_whose_response_is_deleted_waits_no_longer(server: Server) -> None:
    taken = await server.begin()
    await server.store.take(TENANT, taken, Claim("another", 1e12))
    with pytest.raises(ServerRestarted):
        await server.outputs.wait(TENANT, taken, 1, CALLS)
    deleted = await server.begin()
    async with waiting(server, deleted) as task:
        await server.store.delete(TENANT, deleted)
        await server.live.tell(deleted)
        with pytest.raises(ServerRestarted):
            await asyncio.shield(task)


async def test_a_store_that_fails_for_a_while_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await server.begin()
    async with waiting(server, name, calls=CALLS[:1]) as task:
        with monkeypatch.context() as patch:
            refusals = asyncio.Event()

            async def refuse(*_: object) -> Any:
                refusals.set()
                raise Unavailable("The store does not answer.")

            patch.setattr(server.store, "outputs", refuse)
            await server.submit(name, call_id="call_b", output="1")
            await refusals.wait()
        server.words.hear(name)
        assert len(await task) == 1


@pytest.mark.shows("A2.3")
@pytest.mark.needs("postgresql", "redis")
@pytest.mark.usefixtures("only_words")
@pytest.mark.parametrize("with_redis", [False, True])
async def test_any_server_takes_outputs_for_one_that_waits_elsewhere(
    postgres: Postgres, redis: Redis, with_redis: bool
) -> None:
    with postgres.database() as url:
        async with servers(url, 2, redis.url if with_redis else None) as [one, other]:
            for _ in range(5):
                name = await one.begin()
                async with waiting(one, name) as task:
                    for call in CALLS:
                        await other.submit(name, call_id=call.call_id, output="from the other")
                    assert [output.output for output in await task] == ["from the other"] * 2


@pytest.mark.shows("A2.3")
async def test_what_came_before_a_restart_is_there_after_it(tmp_path: Path) -> None:
    place = str(tmp_path / "store.db")
    async with servers(place) as [server]:
        name = await server.begin()
        async with waiting(server, name):
            await server.submit(name, call_id="call_a", output="before")
    async with servers(place) as [server]:  # nobody waits yet, and yet it is taken
        await server.submit(name, call_id="call_b", output="between")
        assert await server.store.take(TENANT, name, Claim("another", 1e12))
        async with waiting(server, name, fence=2) as task:
            assert [output.output for output in await task] == ["between", "before"]


@pytest.mark.shows("A2.8")
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("asked", [None, False, True])
def test_waiting_is_opt_in_by_the_request_or_by_the_server(asked: bool | None, always: bool) -> None:
    outputs = Server(make_store("memory", TTL), always=always).outputs
    waits = always if asked is None else asked
    ways: list[Callable[[], CreateResponse]] = [
        lambda: CreateResponse(model="m", stream=True, wait_for_tool_outputs=asked),
        lambda: CreateResponse(model="m", background=True, wait_for_tool_outputs=asked),
    ]
    for way in ways:
        assert outputs.awaits(way(), stored=True) is waits
        assert outputs.awaits(way(), stored=False) is False
    assert outputs.awaits(CreateResponse(model="m", wait_for_tool_outputs=asked), stored=True) is False
