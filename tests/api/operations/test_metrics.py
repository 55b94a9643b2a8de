"""/metrics of the whole server after each component was used, and the bound on the number of series.

Covers `service/runs/active_runs.py`.
"""

import asyncio
import re
from typing import Any

import pytest

import antiphon.tools.mcp.session  # noqa: F401 - imported before the tests because it takes seconds
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.engines.fake import FakeEngine
from antiphon.engines.fake.engine import FakeSettings
from antiphon.service.access.api_keys import issue
from tests.api.app import ApiServer, run_api
from tests.observe.test_metrics import parse_samples
from tests.support.asgi_client import JSON, call
from tests.tools.mcp.hostile_server import run_hostile_server as mcp_server
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio


async def read_samples(server: ApiServer) -> dict[tuple[str, str], float]:
    """Return the samples by metric name and label values, without the label names."""
    found = parse_samples((await call(server.app, "GET", "/metrics")).body)
    return {(name, " ".join(value for _, value in labels)): number for (name, labels), number in found.items()}


@pytest.mark.shows("H.8")
async def test_store_operations_are_counted_and_timed() -> None:
    async with run_api() as server:
        made = await server.create()
        await server.get(f"responses/{made['id']}")
        await server.delete(f"responses/{made['id']}")
        probe = server.app.lifecycle.components.probe  # type: ignore[attr-defined]  # set by `build_app`
        await probe._probe(True)
        found = await read_samples(server)
    for operation in ("finish", "get", "delete"):
        assert found["antiphon_store_operation_seconds_count", operation] >= 1
        assert found["antiphon_store_failures_total", operation] == 0
    assert found["antiphon_store_up", ""] == 1
    assert found["antiphon_store_responses", ""] == 0


async def test_store_failures_are_counted() -> None:
    async with run_api() as server:
        made = await server.create()
        await server.app.lifecycle.components.store._inner.close()  # type: ignore[attr-defined]  # set by `build_app`
        assert (await server.get(f"responses/{made['id']}")).status == 503
        assert (await read_samples(server))["antiphon_store_failures_total", "get"] == 1


async def test_tool_calls_are_timed_and_egress_connections_are_counted() -> None:
    async with mcp_server() as mcp, run_api() as server:
        server.engine.says(CallStarted(0, "s__echo"), CallDelta(0, '{"message": "hey"}'), CallDone(0))
        server.engine.says(Text("Done."))
        tools = [{"type": "mcp", "server_label": "s", "server_url": mcp.url("good"), "require_approval": "never"}]
        await server.create(tools=tools)
        refused = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://10.0.0.1/a.png"}]}]
        assert (await server.post("responses", {"model": "fake", "input": refused})).status == 400
        found = await read_samples(server)
    assert found["antiphon_tool_calls_total", "completed mcp"] == 1
    assert found["antiphon_tool_call_duration_seconds_count", "mcp"] == 1
    assert found["antiphon_egress_connections_total", "connected"] >= 1
    assert found["antiphon_egress_connections_total", "refused"] == 1


async def test_the_queue_time_of_a_request_is_recorded() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1))) as server:
        await server.create()
        assert (await read_samples(server))["antiphon_request_queue_time_seconds_count", ""] == 1


async def test_queues_are_reported_by_model_and_tier() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(at_once=1, delay=3600.0))) as server:
        tiers = [{"service_tier": tier} for tier in ("default", "priority", "flex", "flex")]
        bodies = [{"model": "fake", "input": "hi", **one} for one in tiers]
        tasks = [asyncio.ensure_future(server.post("responses", body)) for body in bodies]
        async with asyncio.timeout(30):
            while (found := await read_samples(server)).get(("antiphon_queue_waiting", "fake flex")) != 2:  # noqa: ASYNC110 - polled, as Prometheus does
                await asyncio.sleep(0.005)
        assert found["antiphon_queue_running", "fake"] == 1
        assert found["antiphon_queue_slots", "fake"] == 1
        assert found["antiphon_queue_waiting", "fake priority"] == 1
        assert found["antiphon_queue_waiting", "fake default"] == 0
        assert found["antiphon_num_requests_waiting", ""] == 3
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_websocket_lanes_are_reported() -> None:
    async with (
        run_api(engine=FakeEngine(FakeSettings(delay=3600.0))) as server,
        open_websocket(server.app) as connection,
    ):
        for _ in range(3):
            connection.send_create()
        async with asyncio.timeout(30):
            while (found := await read_samples(server))["antiphon_websocket_creates", "waiting"] != 2:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.005)
        assert found["antiphon_websocket_creates", "running"] == 1
        assert found["antiphon_websocket_connections", ""] == 1


async def test_leases_and_the_live_log_are_reported() -> None:
    async with run_api(engine=FakeEngine(FakeSettings(delay=3600.0))) as server, asyncio.timeout(30):
        made = await server.post_ok("responses", {"model": "fake", "input": "hi", "background": True})
        while (await read_samples(server))["antiphon_leases_held", ""] != 1:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.005)
        await server.delete(f"responses/{made['id']}")
        while (found := await read_samples(server))["antiphon_leases_held", ""] != 0:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.005)
    assert found["antiphon_leases_lost_total", ""] == 1
    assert found["antiphon_leases_taken_over_total", ""] == 0
    assert found["antiphon_live_operation_seconds_count", "tell"] >= 1


async def test_client_input_adds_no_series_and_is_in_no_label() -> None:
    async with run_api() as server:
        await send_unique_names(server, 0)
        await read_samples(server)
        before = len(await read_samples(server))
        for number in range(1, 30):
            await send_unique_names(server, number)
        found = await read_samples(server)
        text = (await call(server.app, "GET", "/metrics")).body.decode()
    assert len(found) < before + 29  # the server itself may add a few series in the meantime
    assert not re.search(r"tenant-|resp_|conv_|key_[0-9a-f]|mine-", text)


async def send_unique_names(server: ApiServer, number: int) -> None:
    """Send requests with tenant, model, user and path names that were never used before."""
    store: Any = server.app.lifecycle.components.store  # type: ignore[attr-defined]  # set by `build_app`
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
    await server.app.lifecycle.components.api_keys.open()  # type: ignore[attr-defined]  # set by `build_app`
    server.app.lifecycle.components.api_keys.required = False  # type: ignore[attr-defined]  # /metrics is read without a key
