"""Tests /v1/responses/{id}: stored responses and streams are returned unchanged, byte for byte.

Covers `service/persistence/stored_responses.py`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.core.deltas import ReasoningDelta, Text
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import EngineFailed
from antiphon.ids import new_id
from tests.api.app import ApiServer, Client, parse_events, run_api
from tests.oracles.responses import check_event, check_input_items, check_response
from tests.support.asgi_client import AsgiResponse, call

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


async def create_stream(server: ApiServer, **fields: Any) -> tuple[str, AsgiResponse]:
    """Create a streamed response, read it to its end, and return its id and the HTTP response."""
    answer = await server.post("responses", {"model": "fake", "input": "hi", "stream": True, **fields})
    assert answer.status == 200, answer.body
    return parse_events(answer)[0]["response"]["id"], answer


@pytest.mark.shows("A.3")
async def test_a_stored_response_equals_the_original_reply(server: ApiServer) -> None:
    answer = await server.post("responses", {"model": "fake", "input": "hi", "metadata": {"a": "b"}})
    reply = answer.json()
    assert reply["store"] is True
    found = await server.get(f"responses/{reply['id']}")
    assert (found.status, found.body) == (200, answer.body)
    check_response(found.json())
    head = await call(server.app, "HEAD", f"/v1/responses/{reply['id']}")
    assert head.header(b"content-length") == found.header(b"content-length")


@pytest.mark.shows("A.4", "A.5", "B.5")
async def test_a_stream_is_replayed_byte_for_byte_from_any_event(server: ApiServer) -> None:
    server.engine.says(ReasoningDelta("hm"), Text("Hel"), Text("lo"))
    response_id, answer = await create_stream(server)
    *frames, done = answer.body.removesuffix(b"\n\n").split(b"\n\n")
    path = f"responses/{response_id}?stream=true"
    assert (await server.get(path)).body == answer.body
    for number in range(len(frames)):
        expected = b"".join(frame + b"\n\n" for frame in [*frames[number + 1 :], done])
        again = await server.get(f"{path}&starting_after={number}")
        assert again.body == expected
        assert (again.header(b"content-type") or b"").startswith(b"text/event-stream")


@pytest.mark.parametrize("after", ["1000", str(2**63 - 1)])
@pytest.mark.shows("A.5")
async def test_a_replay_after_the_last_event_sends_only_done(server: ApiServer, after: str) -> None:
    response_id, _ = await create_stream(server)
    answer = await server.get(f"responses/{response_id}?stream=true&starting_after={after}")
    assert (answer.status, answer.body) == (200, b"data: [DONE]\n\n")


@pytest.mark.parametrize("after", ["-1", "-100", "x", "1.5", str(2**63), "", "1&starting_after=2"])
@pytest.mark.shows("A.5")
async def test_an_invalid_starting_after_is_rejected(server: ApiServer, after: str) -> None:
    response_id, _ = await create_stream(server)
    answer = await server.get(f"responses/{response_id}?stream=true&starting_after={after}")
    assert (answer.status, answer.error["param"]) == (400, "starting_after")


@pytest.mark.shows("A.5")
async def test_failed_and_incomplete_streams_are_replayed(server: ApiServer) -> None:
    server.engine.says(Text("a"))
    server.engine.fails(EngineFailed("It died."), after=1)
    failed, failure = await create_stream(server)
    cut, short = await create_stream(server, input="a much longer text", max_output_tokens=1)
    for response_id, answer in ((failed, failure), (cut, short)):
        again = await server.get(f"responses/{response_id}?stream=true")
        assert again.body == answer.body
        for event in parse_events(again):
            check_event(event)
    assert (await server.get(f"responses/{failed}")).json()["status"] == "failed"
    assert (await server.get(f"responses/{cut}")).json()["status"] == "incomplete"


async def test_a_response_that_was_not_streamed_can_be_streamed_afterwards(server: ApiServer) -> None:
    reply = await server.create()
    events = parse_events(await server.get(f"responses/{reply['id']}?stream=true"))
    assert events[0]["type"] == "response.created"
    assert events[-1]["response"] == reply


async def test_obfuscation_padding_can_be_added_or_omitted_in_a_replay(server: ApiServer) -> None:
    plain, answer = await create_stream(server)
    assert b"obfuscation" not in answer.body
    assert b"obfuscation" in (await server.get(f"responses/{plain}?stream=true&include_obfuscation=true")).body
    padded, answer = await create_stream(server, stream_options={"include_obfuscation": True})
    assert b"obfuscation" in answer.body
    assert b"obfuscation" not in (await server.get(f"responses/{padded}?stream=true&include_obfuscation=false")).body


async def test_a_head_request_for_a_stream_has_no_body(server: ApiServer) -> None:
    response_id, _ = await create_stream(server)
    answer = await call(server.app, "HEAD", f"/v1/responses/{response_id}?stream=true")
    assert (answer.status, answer.body) == (200, b"")
    assert (answer.header(b"content-type") or b"").startswith(b"text/event-stream")


@pytest.mark.shows("A4.2")
async def test_every_include_is_accepted_and_an_unknown_one_is_rejected_with_a_list(server: ApiServer) -> None:
    reply = await server.create(include=["message.output_text.logprobs"])
    path = f"responses/{reply['id']}"
    assert (await server.get(f"{path}?include[]=message.output_text.logprobs")).json() == reply
    for endpoint in (path, f"{path}/input_items"):
        answer = await server.get(f"{endpoint}?include=everything")
        assert (answer.status, answer.error["param"]) == (400, "include[0]")
        assert "reasoning.encrypted_content" in answer.error["message"]


async def test_stream_parameters_are_listed_as_ignored_without_a_stream(server: ApiServer) -> None:
    reply = await server.create()
    answer = await server.get(f"responses/{reply['id']}?starting_after=3&beta=true")
    assert answer.header(b"x-antiphon-ignored") == b"beta, starting_after"
    assert answer.json() == reply


@pytest.mark.shows("A.6")
async def test_a_deleted_response_is_gone(server: ApiServer) -> None:
    reply = await server.create()
    path = f"responses/{reply['id']}"
    answer = await server.delete(path)
    assert answer.json() == {"id": reply["id"], "object": "response.deleted", "deleted": True}
    gone = [await server.get(path), await server.get(f"{path}?stream=true"), await server.get(f"{path}/input_items")]
    gone += [await server.delete(path), await server.post(f"{path}/cancel")]
    for answer in gone:
        assert (answer.status, answer.error["type"]) == (404, "not_found_error")
    after = await server.post("responses", {"model": "fake", "input": "x", "previous_response_id": reply["id"]})
    assert (after.status, after.error["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize("name", ["resp_", "nothing", "resp_" + "f" * 32, "conv_" + "f" * 32, "resp_%00", "x" * 900])
async def test_every_operation_on_an_unknown_id_is_not_found(server: ApiServer, name: str) -> None:
    path = f"responses/{name}"
    answers = [await server.get(path), await server.get(f"{path}?stream=true"), await server.get(f"{path}/input_items")]
    answers += [await server.delete(path), await server.post(f"{path}/cancel")]
    for answer in answers:
        assert (answer.status, answer.error["type"], answer.error["param"]) == (404, "not_found_error", "response_id")
        assert len(answer.body) < 500


@pytest.mark.shows("B1.1")
async def test_an_unstored_response_is_not_found(server: ApiServer) -> None:
    reply = await server.create(store=False)
    assert reply["store"] is False
    path = f"responses/{reply['id']}"
    for answer in (await server.get(path), await server.get(f"{path}/input_items"), await server.delete(path)):
        assert answer.status == 404


@pytest.mark.shows("B1.4", "B1.5")
async def test_without_a_store_the_error_names_the_flag() -> None:
    async with run_api(disable_store=True) as server:
        reply = await server.create(store=True)
        assert reply["store"] is False
        path = f"responses/{reply['id']}"
        answers = [await server.get(path), await server.get(f"{path}?stream=true"), await server.delete(path)]
        answers += [await server.get(f"{path}/input_items"), await server.post(f"{path}/cancel")]
        for answer in answers:
            assert answer.status == 404
            assert "--disable-store" in answer.error["message"]


def read_text(item: dict[str, Any]) -> str:
    return str(item["content"][0]["text"])


async def get_page(server: ApiServer, path: str) -> Any:
    answer = await server.get(path)
    assert answer.status == 200, answer.body
    check_input_items(answer.json())
    return answer.json()


@pytest.mark.shows("A.9")
async def test_input_items_are_listed_newest_first(server: ApiServer) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    reply = await server.create(input=messages)
    page = await get_page(server, f"responses/{reply['id']}/input_items")
    assert [read_text(item) for item in page["data"]] == ["c", "b", "a"]
    assert page["has_more"] is False


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.shows("A.9")
async def test_input_pages_neither_skip_nor_repeat_items(server: ApiServer, order: str, limit: int) -> None:
    texts = [str(number) for number in range(5)]
    reply = await server.create(input=[{"role": "user", "content": one} for one in texts])
    seen: list[str] = []
    query, more = f"?limit={limit}&order={order}", True
    while more:
        page = await get_page(server, f"responses/{reply['id']}/input_items{query}")
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        seen += [read_text(item) for item in page["data"]]
        query, more = f"?limit={limit}&order={order}&after={page['last_id']}", page["has_more"]
    assert seen == (texts if order == "asc" else texts[::-1])


@pytest.mark.shows("A.9")
async def test_only_the_own_input_of_a_response_is_listed(server: ApiServer) -> None:
    first = await server.create(input="one")
    second = await server.create(input="two", previous_response_id=first["id"])
    page = await get_page(server, f"responses/{second['id']}/input_items")
    assert [read_text(item) for item in page["data"]] == ["two"]


@pytest.mark.parametrize("cursor", ["nothing", new_id("msg"), "msg_" + "0" * 37])
@pytest.mark.shows("A.9")
async def test_a_cursor_outside_the_input_items_is_rejected(server: ApiServer, cursor: str) -> None:
    reply = await server.create()
    answer = await server.get(f"responses/{reply['id']}/input_items?after={cursor}")
    assert (answer.status, answer.error["param"]) == (400, "after")


async def poll_until_ended(server: ApiServer, response_id: str) -> Any:
    """Poll the response until it has ended, as clients do, and return it."""
    async with asyncio.timeout(30):
        while True:
            answer = await server.get(f"responses/{response_id}")
            assert answer.status == 200, answer.body
            check_response(answer.json())
            if answer.json()["status"] not in ("queued", "in_progress"):
                return answer.json()
            await asyncio.sleep(0.005)


@pytest.mark.shows("B.6")
async def test_a_background_response_is_returned_immediately_and_completes_later(server: ApiServer) -> None:
    gate = server.engine.holds()
    reply = await server.create(background=True)
    check_response(reply)
    assert (reply["status"], reply["background"], reply["output"]) == ("queued", True, [])
    async with asyncio.timeout(30):
        await gate.reached.wait()
    assert (await server.get(f"responses/{reply['id']}")).json() == {**reply, "status": "in_progress"}
    gate.open()
    assert (await poll_until_ended(server, reply["id"]))["status"] == "completed"


@pytest.mark.shows("A.7")
async def test_cancelling_a_background_response_is_idempotent(server: ApiServer) -> None:
    gate = server.engine.holds()
    reply = await server.create(background=True)
    async with asyncio.timeout(30):
        await gate.reached.wait()
    first = await server.post(f"responses/{reply['id']}/cancel")
    assert (first.status, first.json()["status"]) == (200, "cancelled")
    check_response(first.json())
    assert server.engine.running == 0
    again = await server.post(f"responses/{reply['id']}/cancel", {})
    assert again.json() == first.json() == (await server.get(f"responses/{reply['id']}")).json()


@pytest.mark.shows("A.8")
async def test_a_foreground_response_cannot_be_cancelled(server: ApiServer) -> None:
    reply = await server.create()
    answer = await server.post(f"responses/{reply['id']}/cancel")
    assert (answer.status, answer.error["code"]) == (400, "cancellation_not_supported")
    assert answer.error["param"] == "response_id"


@pytest.mark.shows("A1.1", "A1.2")
async def test_background_requires_a_store(server: ApiServer) -> None:
    body = {"model": "fake", "input": "hi", "background": True}
    answers = [await server.post("responses", {**body, "store": False})]
    async with run_api(disable_store=True) as other:
        answers.append(await other.post("responses", body))
    for answer in answers:
        assert (answer.status, answer.error["param"]) == (400, "background")


@pytest.mark.shows("A1.3")
async def test_a_background_stream_is_replayed_unchanged(server: ApiServer) -> None:
    response_id, answer = await create_stream(server, background=True)
    types = [event["type"] for event in parse_events(answer)]
    assert types[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert types[-1] == "response.completed"
    assert (await server.get(f"responses/{response_id}?stream=true")).body == answer.body


@pytest.mark.parametrize("fields", [{}, {"background": True}], ids=str)
@pytest.mark.shows("A.5", "B.5")
async def test_a_running_stream_can_be_joined_from_any_event(server: ApiServer, fields: dict[str, Any]) -> None:
    server.engine.says(Text("Hel"), Text("lo"))
    gate = server.engine.holds(after=1)
    client = Client(server.app, **fields)
    events = client.events()
    first = await anext(events)
    path = f"responses/{first['response']['id']}?stream=true"
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        await gate.reached.wait()
        joined = [group.create_task(server.get(f"{path}&starting_after={number}")) for number in range(4)]
        complete = group.create_task(server.get(path))
        for _ in range(20):
            await asyncio.sleep(0)
        gate.open()
        await client.request
    *frames, done = complete.result().body.removesuffix(b"\n\n").split(b"\n\n")
    assert b'"response.completed"' in frames[-1]
    for number, other in enumerate(joined):
        assert other.result().body == b"".join(frame + b"\n\n" for frame in [*frames[number + 1 :], done])


@pytest.mark.shows("A.54")
async def test_a_dropped_foreground_stream_is_stored_as_cancelled() -> None:
    async with run_api(keep_streams=0) as server:
        gate = server.engine.holds()
        client = Client(server.app)
        response_id = (await anext(client.events()))["response"]["id"]
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.disconnect()
            await client.request
        assert server.engine.running == 0
        assert (await poll_until_ended(server, response_id))["status"] == "cancelled"


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False, "background": True}], ids=str)
@pytest.mark.shows("A.6")
async def test_deleting_a_running_response_stops_it(fields: dict[str, Any]) -> None:
    """A detached run notices the deletion immediately, a client-driven run with its next heartbeat."""
    async with run_api(lease_seconds=0.3) as server:
        gate = server.engine.holds()
        client = Client(server.app, **fields)
        async with asyncio.timeout(30):
            await gate.reached.wait()
            _, body = await client.messages.get(), await client.messages.get()
            (response_id,) = {found.decode() for found in re.findall(rb"resp_[0-9a-f]{32}", body["body"])}
            assert (await server.delete(f"responses/{response_id}")).status == 200
            assert (await server.get(f"responses/{response_id}")).status == 404
            while server.engine.running:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.005)
            await client.request


async def test_a_disconnected_reader_does_not_stop_a_background_response(server: ApiServer) -> None:
    gate = server.engine.holds()
    reply = await server.create(background=True)
    reader = Client(server.app, "GET", f"responses/{reply['id']}?stream=true")
    assert (await anext(reader.events()))["type"] == "response.created"
    async with asyncio.timeout(30):
        await gate.reached.wait()
        reader.disconnect()
        await reader.request
    assert server.engine.running == 1
    gate.open()
    assert (await poll_until_ended(server, reply["id"]))["status"] == "completed"


@pytest.mark.shows("A.46")
async def test_a_reader_of_a_running_response_receives_keepalives() -> None:
    async with run_api(ping_interval=0.02) as server:
        gate = server.engine.holds()
        reply = await server.create(background=True)
        reader = Client(server.app, "GET", f"responses/{reply['id']}?stream=true")
        async for event in reader.events():
            if event["type"] == "keepalive":
                break
        gate.open()
        async with asyncio.timeout(30):
            await reader.request


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.shows("B1.2")
async def test_a_dropped_stream_can_be_resumed(store: bool) -> None:
    async with run_api() as server:
        server.engine.says(Text("Hel"), Text("lo"))
        gate = server.engine.holds(after=1)
        client = Client(server.app, store=store)
        response_id = (await anext(client.events()))["response"]["id"]
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.disconnect()
            await client.request
        assert server.engine.running == 1
        async with asyncio.TaskGroup() as group:
            joined = group.create_task(server.get(f"responses/{response_id}?stream=true&starting_after=0"))
            for _ in range(20):
                await asyncio.sleep(0)
            gate.open()
        events = parse_events(joined.result())
        assert [event["sequence_number"] for event in events] == list(range(1, len(events) + 1))
        assert events[-1]["type"] == "response.completed"


@pytest.mark.shows("B1.7")
@pytest.mark.parametrize(("slots", "sessions"), [(1, 2000), (None, 1)])
async def test_a_stream_without_a_reader_gives_way_to_another_request(slots: int | None, sessions: int) -> None:
    engine = FakeEngine(FakeSettings(at_once=slots))
    async with run_api(engine=engine, max_active_sessions=sessions) as server:
        gate = server.engine.holds()
        client = Client(server.app)
        response_id = (await anext(client.events()))["response"]["id"]
        async with asyncio.timeout(30):
            await gate.reached.wait()
            client.disconnect()
            await client.request
            assert server.engine.running == 1
            assert (await server.create())["status"] == "completed"
        assert (await poll_until_ended(server, response_id))["status"] == "cancelled"


@pytest.mark.shows("B1.7")
async def test_a_request_does_not_wait_behind_streams_without_readers() -> None:
    """One of them has the slot of the model, the others wait for it."""
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1))) as server, asyncio.timeout(30):
        server.engine.holds()
        clients = []
        for _ in range(3):
            clients.append(client := Client(server.app))
            await anext(client.events())
        for client in clients:
            client.disconnect()
            await client.request
        assert (await server.create())["status"] == "completed"
        assert server.engine.requests == 2


@pytest.mark.shows("B1.6")
async def test_a_request_beyond_the_active_limit_yields_429() -> None:
    async with run_api(max_active_sessions=1) as server:
        gate = server.engine.holds()
        client = Client(server.app)
        async with asyncio.timeout(30):
            await gate.reached.wait()
            answer = await server.post("responses", {"model": "fake", "input": "hi"})
            assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
            assert int(answer.header(b"retry-after") or 0) >= 1
            gate.open()
            await client.request
        assert (await server.post("responses", {"model": "fake", "input": "hi"})).status == 200


@pytest.mark.shows("B.6")
async def test_a_request_beyond_the_background_queue_yields_429() -> None:
    async with run_api(background_queue=1) as server:
        gate = server.engine.holds()
        first = await server.create(background=True)
        answer = await server.post("responses", {"model": "fake", "input": "hi", "background": True})
        assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
        assert int(answer.header(b"retry-after") or 0) >= 1
        gate.open()
        assert (await poll_until_ended(server, first["id"]))["status"] == "completed"


KEY = (b"idempotency-key", b"order-66")


@pytest.mark.shows("B.12")
async def test_the_same_idempotency_key_and_body_return_the_same_response(server: ApiServer) -> None:
    body = {"model": "fake", "input": "hi"}
    first = await server.post("responses", body, KEY)
    second = await server.post("responses", body, KEY)
    assert (second.status, second.body) == (200, first.body)
    assert server.engine.requests == 1
    streamed = await server.post("responses", {**body, "stream": True}, (KEY[0], b"other"))
    again = await server.post("responses", {**body, "stream": True}, (KEY[0], b"other"))
    assert again.body == streamed.body
    assert server.engine.requests == 2


@pytest.mark.shows("B.12")
async def test_concurrent_requests_with_one_idempotency_key_run_once(server: ApiServer) -> None:
    body = {"model": "fake", "input": "hi"}
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        tasks = [group.create_task(server.post("responses", body, KEY)) for _ in range(10)]
    assert {(task.result().status, task.result().body) for task in tasks} == {(200, tasks[0].result().body)}
    assert server.engine.requests == 1


@pytest.mark.shows("B.13")
async def test_an_idempotency_key_with_another_body_is_rejected(server: ApiServer) -> None:
    await server.post("responses", {"model": "fake", "input": "hi"}, KEY)
    answer = await server.post("responses", {"model": "fake", "input": "ho"}, KEY)
    assert (answer.status, answer.error["code"]) == (400, "idempotency_key_reused")


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"a b", b"a\tb", "ä".encode()])
@pytest.mark.shows("B.13")
async def test_an_invalid_idempotency_key_is_rejected(server: ApiServer, key: bytes) -> None:
    answer = await server.post("responses", {"model": "fake", "input": "hi"}, (b"idempotency-key", key))
    assert (answer.status, answer.error["param"]) == (400, "Idempotency-Key")
    twice = await server.post("responses", {"model": "fake", "input": "hi"}, KEY, KEY)
    assert twice.status == 400
