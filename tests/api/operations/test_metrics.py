"""What /metrics tells of the server's parts, after they did something; and that nobody can make it grow."""

import asyncio
import re
from typing import Any

import pytest

import antiphon.tools.mcp.session  # noqa: F401 - here, since that takes seconds
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.service.access.api_key_format import issue
from tests.api.app import Api, api
from tests.observe.test_metrics import samples
from tests.support.asgi_client import JSON, call
from tests.tools.mcp.hostile_server import serving as mcp_server
from tests.transport.websocket.ws_client import talking

pytestmark = pytest.mark.anyio


async def told(server: Api) -> dict[tuple[str, str], float]:
    """By name and, of the labels, the values alone."""
    found = samples((await call(server.app, "GET", "/metrics")).body)
    return {(name, " ".join(value for _, value in labels)): number for (name, labels), number in found.items()}


@pytest.mark.shows("H.8")
async def test_the_store_is_told_of_by_what_is_asked_of_it() -> None:
    async with api() as server:
        made = await server.create()
        await server.get(f"responses/{made['id']}")
        await server.delete(f"responses/{made['id']}")
        probe = server.app.lifecycle.parts.probe  # type: ignore[attr-defined]  # as build_app makes it
        await probe._ask(True)
        found = await told(server)
    for operation in ("finish", "get", "delete"):
        assert found["antiphon_store_operation_seconds_count", operation] >= 1
        assert found["antiphon_store_failures_total", operation] == 0
    assert found["antiphon_store_up", ""] == 1
    assert found["antiphon_store_responses", ""] == 0


async def test_a_store_that_fails_is_counted() -> None:
    async with api() as server:
        made = await server.create()
        await server.app.lifecycle.parts.store._inner.close()  # type: ignore[attr-defined]  # as build_app makes it
        assert (await server.get(f"responses/{made['id']}")).status == 503
        assert (await told(server))["antiphon_store_failures_total", "get"] == 1


async def test_tools_are_timed_and_the_way_to_them_is_counted() -> None:
    async with mcp_server() as mcp, api() as server:
        server.engine.says(CallStarted(0, "s__echo"), CallDelta(0, '{"message": "hey"}'), CallDone(0))
        server.engine.says(Text("Done."))
        tools = [{"type": "mcp", "server_label": "s", "server_url": mcp.url("good"), "require_approval": "never"}]
        await server.create(tools=tools)
        refused = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://10.0.0.1/a.png"}]}]
        assert (await server.post("responses", {"model": "fake", "input": refused})).status == 400
        found = await told(server)
    assert found["antiphon_tool_calls_total", "completed mcp"] == 1
    assert found["antiphon_tool_call_duration_seconds_count", "mcp"] == 1
    assert found["antiphon_egress_connections_total", "connected"] >= 1
    assert found["antiphon_egress_connections_total", "refused"] == 1


async def test_who_has_a_turn_at_a_model_is_told_with_its_wait() -> None:
    async with api(engine=FakeEngine(FakeSettings(at_once=1))) as server:
        await server.create()
        assert (await told(server))["antiphon_request_queue_time_seconds_count", ""] == 1


async def test_queues_are_told_by_model_and_tier() -> None:
    async with api(engine=FakeEngine(FakeSettings(at_once=1, delay=3600.0))) as server:
        asked = [{"service_tier": tier} for tier in ("default", "priority", "flex", "flex")]
        bodies = [{"model": "fake", "input": "hi", **one} for one in asked]
        tasks = [asyncio.ensure_future(server.post("responses", body)) for body in bodies]
        async with asyncio.timeout(30):
            while (found := await told(server)).get(("antiphon_queue_waiting", "fake flex")) != 2:  # noqa: ASYNC110 - polled, as Prometheus does
                await asyncio.sleep(0.005)
        assert found["antiphon_queue_running", "fake"] == 1
        assert found["antiphon_queue_slots", "fake"] == 1
        assert found["antiphon_queue_waiting", "fake priority"] == 1
        assert found["antiphon_queue_waiting", "fake default"] == 0
        assert found["antiphon_num_requests_waiting", ""] == 3
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_lanes_of_websockets_are_told() -> None:
    async with api(engine=FakeEngine(FakeSettings(delay=3600.0))) as server, talking(server.app) as talk:
        for _ in range(3):
            talk.asks()
        async with asyncio.timeout(30):
            while (found := await told(server))["antiphon_websocket_creates", "waiting"] != 2:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.005)
        assert found["antiphon_websocket_creates", "running"] == 1
        assert found["antiphon_websocket_connections", ""] == 1


async def test_leases_and_the_live_log_are_told() -> None:
    async with api(engine=FakeEngine(FakeSettings(delay=3600.0))) as server, asyncio.timeout(30):
        made = await server.made("responses", {"model": "fake", "input": "hi", "background": True})
        while (await told(server))["antiphon_leases_held", ""] != 1:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.005)
        await server.delete(f"responses/{made['id']}")
        while (found := await told(server))["antiphon_leases_held", ""] != 0:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.005)
    assert found["antiphon_leases_lost_total", ""] == 1
    assert found["antiphon_leases_taken_over_total", ""] == 0
    assert found["antiphon_live_operation_seconds_count", "tell"] >= 1


async def test_whatever_clients_send_there_are_no_more_series_and_nothing_of_theirs_is_in_them() -> None:
    async with api() as server:
        await busy(server, 0)
        await told(server)
        before = len(await told(server))
        for number in range(1, 30):
            await busy(server, number)
        found = await told(server)
        text = (await call(server.app, "GET", "/metrics")).body.decode()
    assert len(found) < before + 29  # the server itself may have begun to tell of something meanwhile
    assert not re.search(r"tenant-|resp_|conv_|key_[0-9a-f]|mine-", text)


async def busy(server: Api, number: int) -> None:
    """Whatever is there to be named, by names that were never seen before."""
    store: Any = server.app.lifecycle.parts.store  # type: ignore[attr-defined]  # as build_app makes it
    row, key = issue(f"tenant-{number}", "", ("inference", "admin"), 1.0, None)
    await store.add_api_key(row)
    header = (b"authorization", f"Bearer {key}".encode())
    fields = {"user": f"mine-{number}", "metadata": {f"mine-{number}": "x"}, "prompt_cache_key": f"mine-{number}"}
    body = {"model": f"mine-{number}", "input": "hi", **fields}
    made = await server.post("responses", body, header)
    assert made.status == 200, made.body
    for path in (f"responses/{made.json()['id']}", f"mine-{number}", f"conversations/conv_mine-{number}"):
        await call(server.app, "GET", f"/v1/{path}", header)
    await call(server.app, "POST", "/v1/responses", JSON, header, body=[b"{"])
    await server.app.lifecycle.parts.keys.open()  # type: ignore[attr-defined]  # likewise
    server.app.lifecycle.parts.keys.required = False  # type: ignore[attr-defined]  # /metrics is asked without a key
