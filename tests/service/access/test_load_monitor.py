"""The load monitor: measurements of memory, loop lag, queue and disk, the shedding stages that follow, and recovery."""

import asyncio
import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.config.rate_limits import SheddingSettings as Bounds
from antiphon.errors import Unavailable
from antiphon.observe.metrics import read_resident_bytes
from antiphon.service.access import load_monitor
from antiphon.service.access.load_monitor import LoadMonitor, SheddingStage, find_store_folder
from antiphon.wiring import ServerLifecycle
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import call
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

NO_LIMITS = Bounds(memory=0, lag=0.0, free_disk=0)


def get_zero_load() -> float:
    return 0.0


def test_memory_is_compared_with_its_limit() -> None:
    resident = int(read_resident_bytes() or 0)
    for bound, stage in (
        (resident * 10, SheddingStage.ALL),
        (int(resident / 0.9), SheddingStage.NO_BACKGROUND),
        (resident, 2),
    ):
        monitor = LoadMonitor(Bounds(memory=bound), get_zero_load)
        monitor.record(0.0, 0.0)
        assert monitor.stage == stage


@pytest.mark.parametrize("is_short", [True, False])
async def test_freed_memory_is_returned_to_the_system_only_while_it_is_short(
    is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=trims.append))
    monkeypatch.setattr(load_monitor, "_INTERVAL", 0.0)
    sampled, samples = asyncio.Event(), iter(range(3 * load_monitor._TRIM_SAMPLES))

    def count_sample() -> float:
        if next(samples, None) is None:
            sampled.set()
        return 0.0

    monitor = LoadMonitor(Bounds(memory=1 if is_short else 0, lag=0.0, free_disk=0), count_sample)
    running = asyncio.ensure_future(monitor.run_forever())
    async with asyncio.timeout(30):
        await sampled.wait()
    running.cancel()
    assert bool(trims) is is_short


def test_event_loop_lag_sheds_load_until_it_recovers() -> None:
    monitor = LoadMonitor(Bounds(lag=0.5), get_zero_load)
    monitor.record(9.0, 0.0)
    assert monitor.stage is SheddingStage.ALL  # a single delay does not count
    for _ in range(3):
        monitor.record(2.0, 0.0)
    assert monitor.is_full
    assert "event loop is slow" in monitor.reason
    for number in range(1, 40):
        monitor.record(0.0, number * 0.1)
    assert (monitor.stage, monitor.is_full, monitor.reason) == (SheddingStage.ALL, False, "")


def test_a_filling_queue_rejects_only_background_work() -> None:
    monitor = LoadMonitor(NO_LIMITS, lambda: 1.0)
    monitor.record(0.0, 0.0)
    assert (monitor.stage, monitor.is_full) == (SheddingStage.NO_BACKGROUND, False)
    with pytest.raises(Unavailable) as caught:
        monitor.check_background()
    assert caught.value.retry_after is not None
    assert "requests are queued" in caught.value.message


def test_low_disk_space_sheds_load(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    for bound, stage in (
        (free // 10, SheddingStage.ALL),
        (int(free / 1.5), SheddingStage.NO_BACKGROUND),
        (free * 2, 2),
    ):
        monitor = LoadMonitor(Bounds(free_disk=bound), get_zero_load, tmp_path)
        monitor.record(0.0, 0.0)
        assert monitor.stage == stage
    gone = LoadMonitor(Bounds(free_disk=free), get_zero_load, tmp_path / "nowhere")
    gone.record(0.0, 0.0)
    assert gone.stage is SheddingStage.ALL


def test_only_a_file_store_has_a_folder(tmp_path: Path) -> None:
    assert find_store_folder(str(tmp_path / "a.db")) == tmp_path
    assert find_store_folder("memory") is None
    assert find_store_folder("postgresql://host/db") is None


def get_monitor(server: ApiServer) -> LoadMonitor:
    life = server.app.lifecycle
    assert isinstance(life, ServerLifecycle)
    return life.components.load_monitor


async def read_metric(server: ApiServer, name: str) -> float:
    lines = (await call(server.app, "GET", "/metrics")).body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def post_response(server: ApiServer, **fields: Any) -> int:
    """Create a response and return the HTTP status."""
    return (await server.post("responses", {"model": "fake", "input": "hi", **fields})).status


def record_lag(monitor: LoadMonitor, lag: float) -> None:
    """Record lag before each request: on a busy machine the server may have recovered since the last one."""
    for _ in range(3):
        monitor.record(lag, asyncio.get_running_loop().time())


@pytest.mark.shows("H.4")
async def test_background_work_is_shed_first_then_all_new_work_until_recovery() -> None:
    async with run_api(shed=Bounds(lag=1.0)) as server, open_websocket(server.app) as socket:
        monitor = get_monitor(server)
        assert (await call(server.app, "GET", "/ready")).json() == {"status": "ready"}
        record_lag(monitor, 0.6)
        assert await post_response(server) == 200
        record_lag(monitor, 0.6)
        refused = await server.post("responses", {"model": "fake", "input": "hi", "background": True})
        assert (refused.status, refused.header(b"retry-after")) == (503, b"2")
        record_lag(monitor, 0.6)
        assert "no background work" in (await call(server.app, "GET", "/ready")).json()["sheds"]
        assert await read_metric(server, "antiphon_shedding_stage") == 1
        record_lag(monitor, 4.0)
        refused = await server.post("responses", b"not even JSON")
        assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
        assert refused.header(b"retry-after") == b"2"
        record_lag(monitor, 4.0)
        assert (await server.post("chat/completions", {})).status == 503
        assert (await server.get("models")).status == 200
        record_lag(monitor, 4.0)
        ready = await call(server.app, "GET", "/ready")
        assert (ready.status, "event loop is slow" in ready.error["message"]) == (503, True)
        record_lag(monitor, 4.0)
        socket.send_create()
        assert (await socket.receive_end())["status"] == 503
        assert (await call(server.app, "GET", "/health")).status == 200
        async with asyncio.timeout(30):
            while monitor.stage is not SheddingStage.ALL:  # noqa: ASYNC110 - no event signals this
                await asyncio.sleep(0.02)
        assert await post_response(server, background=True) == 200
        assert (await call(server.app, "GET", "/ready")).status == 200
