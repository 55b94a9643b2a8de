"""Responses that wait for client tool outputs: any server accepts them, and the last one resumes the run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.agent.tool_loop import ClientCall, ClientOutput
from antiphon.config.areas import ToolSettings
from antiphon.core.emitter.fold import open_response
from antiphon.errors import BadRequest, NotFound, ServerRestarted, ToolOutputTimeout, Unavailable
from antiphon.ids import ItemIds, new_id
from antiphon.limits import Limits
from antiphon.protocol.bodies.tool_outputs import decode_tool_output
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.items import CustomToolCall, CustomToolCallOutput, FunctionCall, FunctionCallOutput
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.persistence.live_updates import Notifications
from antiphon.service.persistence.rows import encode_request
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.stores.base import Claim, NewResponse, ResponseEnd
from antiphon.stores.registry import make_live_log, make_store
from antiphon.stores.sql.store import Store
from tests.support.media_files import encode_data_url, png
from tests.support.services import Postgres, Redis

pytestmark = pytest.mark.anyio

TENANT = "t"
TTL = 1000.0
WAIT = 10.0
IMAGE_URL = encode_data_url(png())
CALLS: list[ClientCall] = [
    FunctionCall(call_id="call_b", name="weather", arguments="{}"),
    CustomToolCall(call_id="call_a", name="shout", input="hi"),
]


class Server:
    """The parts of a server that handle tool outputs."""

    def __init__(self, store: Store, live: str | None = None, **settings: Any) -> None:
        self.store = store
        self.wait_requested: bool | None = True  # wait_for_tool_outputs
        self.notifications = Notifications()
        self.live = make_live_log(live, store, TTL)
        self.outputs = ToolOutputs(store, self.live, self.notifications, ToolSettings(**settings))

    async def begin(self) -> str:
        name = new_id("resp")
        body = {"model": "fake", "input": "hi", "stream": True, "wait_for_tool_outputs": self.wait_requested}
        decoded_request = decode_create(msgspec.json.encode(body), Limits())
        response = encode(open_response(decoded_request.request, decoded_request.sent, name, "fake", 1, store=True))
        request = encode_request(decoded_request)
        new = NewResponse(id=name, status="in_progress", created=1.0, request=request, response=response)
        await self.store.begin(TENANT, new, Claim("owner", 1e12))
        return name

    async def submit(self, response_id: str, tenant: str = TENANT, **body: Any) -> Any:
        submission = decode_tool_output(msgspec.json.encode(body), Limits())
        return msgspec.json.decode(await self.outputs.submit(tenant, response_id, submission))

    async def finish(self, response_id: str, fence: int = 1) -> None:
        end = ResponseEnd(
            id=response_id, fence=fence, status="completed", response=b"{}", packed_log=b"", ended=2.0, expires=None
        )
        await self.store.finish(TENANT, end)


@asynccontextmanager
async def start_servers(
    location: str, count: int = 1, live: str | None = None, **settings: Any
) -> AsyncIterator[list[Server]]:
    """Start this many servers on one store; an in-memory store is shared by all of them."""
    async with AsyncExitStack() as stack:
        shared = make_store(location, TTL)
        opened: list[Server] = []
        for _ in range(count):
            store = shared if location == "memory" else make_store(location, TTL)
            if store not in [server.store for server in opened]:
                stack.push_async_callback(store.close)
                await store.open()
            server = Server(store, live, **settings)
            stack.push_async_callback(server.live.close)
            await server.live.open(server.notifications.notify)
            opened.append(server)
        yield opened


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with start_servers("memory") as [server]:
        yield server


@asynccontextmanager
async def start_waiting(
    server: Server, response_id: str, fence: int = 1, calls: list[ClientCall] = CALLS
) -> AsyncIterator["asyncio.Task[list[ClientOutput]]"]:
    """Wait for outputs in a task; the context is entered once the calls are pending."""
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


async def expect_error(awaitable: Awaitable[Any], error_type: type[BadRequest] | type[NotFound]) -> Any:
    with pytest.raises(error_type) as error:
        await awaitable
    return error.value


@pytest.mark.shows("A2.1", "A2.2", "A2.3")
async def test_the_run_resumes_when_every_call_has_an_output(server: Server) -> None:
    name = await server.begin()
    async with start_waiting(server, name) as task:
        taken = await server.submit(name, tool_call_id="call_a", output="HI")
        assert taken == {"id": name, "status": "in_progress"}
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        parts = [{"type": "output_text", "text": "22 °C"}, {"type": "input_image", "image_url": IMAGE_URL}]
        assert await server.submit(name, call_id="call_b", output=parts) == taken
        function, custom = await task
    assert function == FunctionCallOutput(
        call_id="call_b",
        status="completed",
        output=[InputText(text="22 °C"), InputImage(image_url=IMAGE_URL)],
    )
    assert custom == CustomToolCallOutput(call_id="call_a", status="completed", output="HI")


@pytest.mark.shows("A2.4")
async def test_outputs_for_unknown_or_answered_calls_are_rejected(server: Server) -> None:
    name = await server.begin()
    async with start_waiting(server, name):
        await server.submit(name, call_id="call_a", output="1")
        for field, call in (("tool_call_id", "call_a"), ("call_id", "call_c"), ("call_id", "")):
            error = await expect_error(server.submit(name, **{field: call}, output="2"), BadRequest)
            assert (error.status, error.code, error.param) == (400, "tool_call_not_pending", field)


@pytest.mark.shows("A2.4", "A2.5")
async def test_only_a_waiting_response_accepts_outputs(server: Server) -> None:
    name = await server.begin()
    error = await expect_error(server.submit(name, call_id="call_a", output=""), BadRequest)
    assert (error.status, error.code, error.param) == (400, "response_not_waiting", None)
    async with start_waiting(server, name):
        theirs = await expect_error(server.submit(name, "another", call_id="call_a", output=""), NotFound)
        never = await expect_error(server.submit(new_id("resp"), call_id="call_a", output=""), NotFound)
        assert theirs.status == never.status == 404
        assert theirs.code == never.code
    await server.finish(name)
    error = await expect_error(server.submit(name, call_id="call_a", output=""), BadRequest)
    assert error.code == "response_not_waiting"


@pytest.fixture
def notifications_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling, so that only notifications wake waiters."""
    for name in ("_POLL_SECONDS", "_MAX_POLL_SECONDS"):
        monkeypatch.setattr(f"antiphon.service.tool_loop.tool_outputs.{name}", 1000.0)


async def submit_early(server: Server, response_id: str, calls: list[ClientCall]) -> "asyncio.Task[Any]":
    """Submit an output before its response waits for it; return the task once the submission is waiting."""
    attempts, is_waiting = 0, asyncio.Event()
    submit = server.store.submit_output

    async def count_attempts(*values: Any) -> Any:
        nonlocal attempts
        outcome, attempts = await submit(*values), attempts + 1
        if attempts == 2:
            is_waiting.set()
        return outcome

    server.store.submit_output = count_attempts  # type: ignore[method-assign, assignment]  # counts the attempts
    task = asyncio.get_running_loop().create_task(server.submit(response_id, call_id=calls[0].call_id, output="early"))
    await is_waiting.wait()
    return task


def make_calls(response_id: str) -> list[ClientCall]:
    """Return calls with ids as the emitter assigns them."""
    return [FunctionCall(call_id=ItemIds(response_id)("call"), name="f", arguments="{}")]


@pytest.mark.usefixtures("notifications_only")
async def test_an_early_output_is_accepted_once_the_response_waits(server: Server) -> None:
    name = await server.begin()
    calls = make_calls(name)
    task = await submit_early(server, name, calls)
    async with start_waiting(server, name, calls=calls) as waits:
        assert [output.output for output in await waits] == ["early"]
        assert await task == {"id": name, "status": "in_progress"}


async def test_an_early_output_is_rejected_if_the_response_ends_without_waiting(server: Server) -> None:
    name = await server.begin()
    task = await submit_early(server, name, make_calls(name))
    await server.finish(name)
    server.notifications.notify(name)
    async with asyncio.timeout(WAIT):
        assert (await expect_error(task, BadRequest)).code == "response_not_waiting"


async def test_an_output_that_cannot_be_early_is_rejected_immediately(server: Server) -> None:
    """For a response that never waits, and for a call id of another response."""
    async with asyncio.timeout(WAIT):  # an early output would wait for three times as long
        server.wait_requested = False
        name = await server.begin()
        submitted = server.submit(name, call_id=make_calls(name)[0].call_id, output="")
        assert (await expect_error(submitted, BadRequest)).code == "response_not_waiting"
        server.wait_requested = True
        submitted = server.submit(await server.begin(), call_id=make_calls(name)[0].call_id, output="")
        assert (await expect_error(submitted, BadRequest)).code == "response_not_waiting"


@pytest.mark.shows("A2.7")
async def test_waiting_times_out_and_names_the_missing_outputs() -> None:
    async with start_servers("memory", tool_output_timeout=0.05) as [server]:
        name = await server.begin()
        async with start_waiting(server, name) as task:
            await server.submit(name, call_id="call_b", output="1")
            error = await expect_error(asyncio.shield(task), ToolOutputTimeout)
    assert (error.code, error.type) == ("tool_output_timeout", "invalid_request_error")
    assert "call_a" in error.message
    assert "call_b" not in error.message


async def test_successive_rounds_of_calls_are_awaited_separately(server: Server) -> None:
    name = await server.begin()
    for number in range(3):
        call = FunctionCall(call_id=f"call_{number}", name="f", arguments="{}")
        async with start_waiting(server, name, calls=[call]) as task:
            await server.submit(name, call_id=call.call_id, output=str(number))
            [output] = await task
            assert output.output == str(number)


async def test_waiting_ends_when_the_response_is_lost_or_deleted(server: Server) -> None:
    taken = await server.begin()
    await server.store.take(TENANT, taken, Claim("another", 1e12))
    with pytest.raises(ServerRestarted):
        await server.outputs.wait(TENANT, taken, 1, CALLS)
    deleted = await server.begin()
    async with start_waiting(server, deleted) as task:
        await server.store.delete(TENANT, deleted)
        await server.live.tell(deleted)
        with pytest.raises(ServerRestarted):
            await asyncio.shield(task)


async def test_a_temporary_store_failure_is_retried(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await server.begin()
    async with start_waiting(server, name, calls=CALLS[:1]) as task:
        with monkeypatch.context() as patch:
            refusals = asyncio.Event()

            async def refuse(*_: object) -> Any:
                refusals.set()
                raise Unavailable("The store does not answer.")

            patch.setattr(server.store, "outputs", refuse)
            await server.submit(name, call_id="call_b", output="1")
            await refusals.wait()
        server.notifications.notify(name)
        assert len(await task) == 1


@pytest.mark.shows("A2.3")
@pytest.mark.needs("postgresql", "redis")
@pytest.mark.usefixtures("notifications_only")
@pytest.mark.parametrize("with_redis", [False, True])
async def test_any_server_accepts_outputs_for_a_response_waiting_on_another(
    postgres: Postgres, redis: Redis, with_redis: bool
) -> None:
    with postgres.temporary_database() as url:
        async with start_servers(url, 2, redis.url if with_redis else None) as [one, other]:
            for _ in range(5):
                name = await one.begin()
                async with start_waiting(one, name) as task:
                    for call in CALLS:
                        await other.submit(name, call_id=call.call_id, output="from the other")
                    assert [output.output for output in await task] == ["from the other"] * 2


@pytest.mark.shows("A2.3")
async def test_submitted_outputs_survive_a_restart(tmp_path: Path) -> None:
    location = str(tmp_path / "store.db")
    async with start_servers(location) as [server]:
        name = await server.begin()
        async with start_waiting(server, name):
            await server.submit(name, call_id="call_a", output="before")
    async with start_servers(location) as [server]:  # accepted although no run waits yet
        await server.submit(name, call_id="call_b", output="between")
        assert await server.store.take(TENANT, name, Claim("another", 1e12))
        async with start_waiting(server, name, fence=2) as task:
            assert [output.output for output in await task] == ["between", "before"]


@pytest.mark.shows("A2.8")
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("requested", [None, False, True])
def test_waiting_is_opt_in_by_the_request_or_by_the_server(requested: bool | None, always: bool) -> None:
    outputs = Server(make_store("memory", TTL), wait_for_tool_outputs=always).outputs
    waits = always if requested is None else requested
    request_factories: list[Callable[[], CreateResponse]] = [
        lambda: CreateResponse(model="m", stream=True, wait_for_tool_outputs=requested),
        lambda: CreateResponse(model="m", background=True, wait_for_tool_outputs=requested),
    ]
    for make_request in request_factories:
        assert outputs.should_wait(make_request(), stored=True) is waits
        assert outputs.should_wait(make_request(), stored=False) is False
    assert outputs.should_wait(CreateResponse(model="m", wait_for_tool_outputs=requested), stored=True) is False
