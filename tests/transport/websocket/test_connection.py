"""One WebSocket connection: invalid messages, lanes, expiry and shutdown. After an error the connection stays
usable.
"""

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest

from antiphon.agent.run import Run
from antiphon.core.deltas import Text
from antiphon.engines.fake.playback import Gate
from antiphon.transport.middleware.app import App
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import DEADLINE
from tests.tools.mcp.sum_server import run_sum_server
from tests.transport.websocket.ws_client import SocketEvent, WebSocketClient, open_websocket

pytestmark = pytest.mark.anyio

CREATE = {"type": "response.create", "model": "fake", "input": "hi"}


def check_error(event: SocketEvent, status: int, code: str | None) -> dict[str, Any]:
    """Check an error event and its format, and return the error."""
    assert (event["type"], event["status"], event["error"]["code"]) == ("error", status, code), event
    assert event["error"].keys() == {"type", "code", "message", "param"}
    assert event["error"]["type"] == "invalid_request_error" or status != 400
    body: dict[str, Any] = event["error"]
    return body


async def check_usable(client: WebSocketClient) -> None:
    """Check that the connection still works."""
    assert (await client.create(input="and now?"))["output"][0]["content"][0]["text"] == "You said: and now?"


async def wait_reached(gate: Gate) -> None:
    async with asyncio.timeout(DEADLINE):
        await gate.reached.wait()


INVALID_MESSAGES = [
    "", "{", "[]", "null", "1", '"response.create"', "{} {}", "{'type': 1}", '{"type": "response.create"', "\ufeff{}",
    "[" * 100_000, '{"type":"response.create","input":' + "[" * 100_000, '{"input": "\\ud800"}',
    '{"input": "\\udc00x"}', '{"a": \t\x00}',
]  # fmt: skip


class WeakReferenceableStr(str):
    """A string that supports weak references, which `str` does not."""


async def test_an_idle_connection_holds_no_reference_to_received_messages() -> None:
    """Messages may be large, and clients idle for an hour."""
    async with run_api() as server, open_websocket(server.app) as client:
        text = WeakReferenceableStr("{")
        reference = weakref.ref(text)
        client.send(text)
        del text
        check_error(await client.receive_event(), 400, "invalid_json")
        assert reference() is None


@pytest.mark.parametrize("fields", [{}, {"store": False}])
async def test_an_ended_response_is_freed_without_the_garbage_collector(fields: dict[str, Any]) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        gc.disable()
        try:
            before = {id(one) for one in gc.get_objects() if isinstance(one, Run)}
            await client.create(**fields)
            async with asyncio.timeout(DEADLINE):
                while any(isinstance(one, Run) and id(one) not in before for one in gc.get_objects()):  # noqa: ASYNC110
                    await asyncio.sleep(0)  # the task that ends may still reference the run
        finally:
            gc.enable()


@pytest.mark.parametrize("text", INVALID_MESSAGES, ids=lambda text: repr(text[:30]))
@pytest.mark.shows("F1.1", "F.11")
async def test_a_message_that_is_not_a_json_object_gets_an_error(text: str) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        client.send(text)
        event = await client.receive_event()
        assert (event["type"], event["status"]) == ("error", 400)
        assert "stream_id" not in event
        if text not in ("[]", "null", "1", '"response.create"') and "[[" not in text:
            check_error(event, 400, "invalid_json")
        await check_usable(client)


@pytest.mark.shows("F1.1")
async def test_a_binary_frame_is_rejected_as_invalid_json() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        for data in (b"\x00\xff", json.dumps(CREATE).encode()):
            client.send_bytes(data)
            check_error(await client.receive_event(), 400, "invalid_json")
        await check_usable(client)


@pytest.mark.parametrize(
    "kind",
    ["response.inject", "ping", "", "x" * 10_000, None, 7, ["response.create"], "response.Create"],
    ids=lambda kind: repr(kind)[:30],
)
@pytest.mark.shows("F1.2")
async def test_an_unknown_event_type_is_rejected(kind: object) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        client.send(json.dumps({**CREATE, "type": kind}))
        body = check_error(await client.receive_event(), 400, "unknown_event_type")
        assert body["param"] == "type"
        assert len(body["message"]) < 300
        client.send(json.dumps({"input": "hi"}))
        check_error(await client.receive_event(), 400, "unknown_event_type")
        await check_usable(client)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"temperature": 9}, "temperature"),
        ({"input": [{"role": "riddle", "content": "x"}]}, "input[0].role"),
        ({"tools": 7}, "tools"),
        ({"generate": "no"}, "generate"),
        ({"store": False, "conversation": "conv_1"}, "store"),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.shows("F.2", "F.11", "F3.1")
async def test_an_invalid_field_gets_the_same_error_as_over_http(fields: dict[str, Any], param: str) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        event = await client.create_rejected(stream_id="a", **fields)
        assert event["stream_id"] == "a"
        assert event["error"]["param"] == param
        if "background" not in fields:
            posted = await server.post("responses", {"model": "fake", "input": "hi", **fields})
            assert (posted.status, posted.error) == (event["status"], event["error"])
        await check_usable(client)


@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.shows("F3.1")
async def test_the_stream_field_is_ignored(stream: bool | None) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        client.send_create(**({} if stream is None else {"stream": stream}))
        assert (await client.receive_event())["type"] == "response.created"
        assert (await client.receive_end())["type"] == "response.completed"


@pytest.mark.parametrize(
    "lane", ["", " ", "a b", "ä", "a/b", "x" * 257, "a\n", 7, True, [], {"a": 1}], ids=lambda lane: repr(lane)[:20]
)
@pytest.mark.shows("F1.5")
async def test_an_invalid_stream_id_is_rejected(lane: object) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        event = await client.create_rejected(stream_id=lane)
        assert check_error(event, 400, "invalid_stream_id")["param"] == "stream_id"
        assert "stream_id" not in event
        await check_usable(client)


@pytest.mark.parametrize("lane", ["a", "A-Z_a.z-0", "x" * 256, None])
@pytest.mark.shows("F.6")
async def test_events_have_the_stream_id_of_their_lane(lane: str | None) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        client.send_create(stream_id=lane)
        events = [await client.receive_event()]
        while events[-1]["type"] != "response.completed":
            events.append(await client.receive_event())
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert {event.get("stream_id", None) for event in events} == {lane}
        assert ("stream_id" in events[0]) is (lane is not None)


@pytest.mark.shows("F.6")
async def test_a_lane_is_sequential_and_lanes_run_concurrently() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        server.engine.says(Text("first"))
        gate = server.engine.holds(after=1)
        server.engine.says(Text("other"))
        server.engine.says(Text("second"))
        client.send_create(stream_id="a")
        await wait_reached(gate)
        client.send_create(stream_id="a")
        client.send_create(stream_id="b")
        events = [await client.receive_event()]
        while events[-1]["type"] != "response.completed":
            events.append(await client.receive_event())
        assert [event["stream_id"] for event in events if event["type"] == "response.created"] == ["a", "b"]
        assert events[-1]["stream_id"] == "b"
        gate.open()
        ends = [await client.receive_end(), await client.receive_end()]
        assert [read_text(end) for end in ends] == ["first", "second"]


def read_text(end: SocketEvent) -> str:
    text: str = end["response"]["output"][0]["content"][0]["text"]
    return text


@pytest.mark.shows("F.6")
async def test_sixteen_responses_run_and_the_seventeenth_waits() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        gates = [hold_reply(server) for _ in range(17)]
        for number in range(17):
            client.send_create(stream_id=f"lane-{number}")
        for gate in gates[:16]:
            await wait_reached(gate)
        assert server.engine.running == 16
        assert not gates[16].reached.is_set()
        gates[3].open()
        await wait_reached(gates[16])
        assert server.engine.running == 16


def hold_reply(server: ApiServer) -> Gate:
    """Make the next reply of the engine wait at a gate behind its first text."""
    server.engine.says(Text("hm"))
    return server.engine.holds(after=1)


@pytest.mark.shows("F.6")
async def test_waiting_requests_are_bounded_and_further_ones_get_429() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        gate = hold_reply(server)
        client.send_create(stream_id="a")
        await wait_reached(gate)
        for _ in range(64):
            client.send_create(stream_id="a", generate=False)
        client.send_create(stream_id="a")
        while (event := await client.receive_event())["type"] != "error":
            pass
        assert (event["status"], event["stream_id"]) == (429, "a")
        assert event["retry_after"] >= 1
        gate.open()
        for _ in range(65):
            assert (await client.receive_end())["type"] == "response.completed"


@pytest.mark.shows("F1.6")
async def test_the_thirty_third_stream_id_is_rejected() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        for number in range(32):
            await client.create(stream_id=f"lane-{number}")
        event = await client.create_rejected(stream_id="one-more")
        assert check_error(event, 400, "websocket_stream_limit_reached")["param"] == "stream_id"
        assert (await client.create(stream_id="lane-0"))["status"] == "completed"
        await check_usable(client)


async def test_an_invalid_request_uses_up_no_stream_id() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        for number in range(40):
            await client.create_rejected(stream_id=f"lane-{number}", temperature=9)
        assert (await client.create(stream_id="mine"))["status"] == "completed"


@pytest.mark.shows("F.7", "F1.3", "F1.5")
async def test_without_lanes_a_concurrent_request_is_rejected() -> None:
    async with run_api(websocket_lanes="off") as server, open_websocket(server.app) as client:
        gate = hold_reply(server)
        client.send_create()
        await wait_reached(gate)
        client.send_create()
        events = [await client.receive_event()]
        while events[-1]["type"] != "error":
            events.append(await client.receive_event())
        check_error(events[-1], 400, "concurrent_request")
        check_error(await client.create_rejected(stream_id="a"), 400, "invalid_stream_id")
        gate.open()
        assert read_text(await client.receive_end()) == "hm"
        await check_usable(client)


@pytest.mark.shows("F.14")
async def test_a_running_response_is_cancelled() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        gate = hold_reply(server)
        client.send_create(stream_id="a")
        response_id = (await client.receive_event())["response"]["id"]
        await wait_reached(gate)
        cancel = json.dumps({"type": "response.cancel", "response_id": response_id})
        client.send(cancel)
        event = await client.receive_end()
        assert (event["type"], event["stream_id"]) == ("response.incomplete", "a")
        assert event["response"]["status"] == "cancelled"
        assert server.engine.running == 0
        stored = (await server.get(f"responses/{response_id}")).json()
        assert (stored["status"], stored["output"]) == ("cancelled", event["response"]["output"])
        client.send(cancel)  # it has ended: nothing happens
        await check_usable(client)


@pytest.mark.shows("F.14")
async def test_a_response_is_cancelled_while_the_server_runs_its_tool() -> None:
    with run_sum_server() as sums:
        sums.released.clear()
        tool = {"type": "mcp", "server_label": "sums", "server_url": sums.url, "require_approval": "never"}
        async with run_api() as server, open_websocket(server.app) as client:
            client.send_create(tools=[tool])
            response_id = (await client.receive_event())["response"]["id"]
            assert await asyncio.to_thread(sums.called.wait, DEADLINE)
            client.send(json.dumps({"type": "response.cancel", "response_id": response_id}))
            assert (await client.receive_end())["response"]["status"] == "cancelled"


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"response_id": "resp_1"}, 404), ({}, 400), ({"response_id": 7}, 400), ({"response_id": "a", "input": "b"}, 400)],
)
@pytest.mark.shows("F.14")
async def test_only_responses_of_the_connection_are_cancelled(fields: dict[str, Any], status: int) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        client.send(json.dumps({"type": "response.cancel", **fields}))
        event = await client.receive_event()
        assert (event["status"], event["error"]["param"]) == (status, "response_id")
        await check_usable(client)


@pytest.mark.shows("F.12")
async def test_a_disconnect_cancels_running_and_waiting_responses() -> None:
    async with run_api(keep_streams=0) as server:
        async with open_websocket(server.app) as client:
            gates = [hold_reply(server) for _ in range(3)]
            for lane in ("a", "b", None):
                client.send_create(stream_id=lane)
                client.send_create(stream_id=lane)
            for gate in gates:
                await wait_reached(gate)
            assert server.engine.running == 3
        assert (server.engine.running, server.engine.cancelled, server.engine.requests) == (0, 3, 3)
        await server.create()  # waiting requests do not start later
        assert (server.engine.running, server.engine.requests) == (0, 4)


@pytest.mark.shows("F2.2")
async def test_an_expired_connection_gets_an_error_and_is_closed() -> None:
    async with run_api(websocket_lifetime=0.05) as server, open_websocket(server.app) as client:
        body = check_error(await client.receive_event(), 400, "websocket_connection_limit_reached")
        assert "0.05 seconds" in body["message"]
        assert await read_close_code(client) == 1001


async def read_close_code(client: WebSocketClient) -> int:
    message = await client.receive_message()
    assert message["type"] == "websocket.close", message
    code: int = message["code"]
    return code


@pytest.mark.shows("F2.2", "F.12")
async def test_the_expiry_of_a_connection_cancels_its_running_response() -> None:
    async with run_api(websocket_lifetime=2.0, keep_streams=0) as server, open_websocket(server.app) as client:
        gate = hold_reply(server)
        client.send_create()
        await wait_reached(gate)
        while (event := await client.receive_event())["type"] != "error":
            pass
        check_error(event, 400, "websocket_connection_limit_reached")
        assert await read_close_code(client) == 1001
        await client.wait_closed()
        assert (server.engine.running, server.engine.cancelled) == (0, 1)


@pytest.mark.shows("F2.1")
async def test_the_expiry_is_announced_unless_the_warning_is_disabled() -> None:
    async with run_api(websocket_lifetime=0.1, websocket_warning=0.08) as server, open_websocket(server.app) as client:
        assert (await client.receive_event())["type"] == "connection_expiring"
        assert (await client.receive_event())["type"] == "error"
    async with run_api(websocket_lifetime=0.1, websocket_warning=0.0) as server, open_websocket(server.app) as client:
        assert (await client.receive_event())["type"] == "error"


def drain(app: App) -> None:
    """Drain the application, as the server does on a stop signal."""
    app.authenticator.close()
    app.lifecycle.drain()


@pytest.mark.shows("H.10")
async def test_a_draining_server_closes_idle_connections_at_once() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        await check_usable(client)
        drain(server.app)
        assert await read_close_code(client) == 1012


@pytest.mark.shows("H.10", "H.19")
async def test_a_draining_server_finishes_running_responses_and_starts_no_new_ones() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        gate = hold_reply(server)
        client.send_create(stream_id="a")
        await wait_reached(gate)
        client.send_create(stream_id="a", input="I wait")
        drain(server.app)
        client.send_create(stream_id="b", input="I am new")
        while (event := await client.receive_event())["type"] != "error":
            pass
        assert (event["status"], event["error"]["code"], event["stream_id"]) == (503, "service_unavailable", "b")
        assert event["retry_after"] >= 1
        gate.open()
        assert read_text(await client.receive_end()) == "hm"
        event = await client.receive_event()
        assert (event["status"], event["stream_id"]) == (503, "a")
        assert await read_close_code(client) == 1012
        assert server.engine.requests == 1


async def test_a_large_message_is_read_like_any_other() -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        long_text = "x" * 300_000
        client.send("{" + long_text)
        check_error(await client.receive_event(), 400, "invalid_json")
        server.engine.says(Text("long"))
        assert (await client.create(input=[{"role": "user", "content": "y"}], metadata={"a": "b"}))["metadata"] == {
            "a": "b"
        }
        client.send_create(input=long_text, truncation="auto")
        assert (await client.receive_end())["type"] in ("response.completed", "error")
        await check_usable(client)
