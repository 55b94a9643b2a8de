"""The server looks at itself: what it finds, what follows from it, and that it recovers."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.rate_limits import Shedding as Bounds
from antiphon.core.load_shedding import Stage
from antiphon.errors import Unavailable
from antiphon.observe.gauges import resident_bytes
from antiphon.service.access.load_monitor import Pressure, store_folder
from antiphon.wiring import Lifecycle
from tests.api.app import Api, api
from tests.support.asgi_client import call
from tests.transport.websocket.ws_client import talking

pytestmark = pytest.mark.anyio

NONE = Bounds(memory=0, lag=0.0, free_disk=0)


def nobody() -> float:
    return 0.0


def test_memory_is_held_against_its_bound() -> None:
    resident = int(resident_bytes() or 0)
    for bound, stage in ((resident * 10, Stage.ALL), (int(resident / 0.9), Stage.NO_BACKGROUND), (resident, 2)):
        pressure = Pressure(Bounds(memory=bound), nobody)
        pressure.note(0.0, 0.0)
        assert pressure.stage == stage


def test_a_late_loop_counts_and_is_forgotten() -> None:
    pressure = Pressure(Bounds(lag=0.5), nobody)
    pressure.note(9.0, 0.0)
    assert pressure.stage is Stage.ALL  # held up once
    for _ in range(3):
        pressure.note(2.0, 0.0)
    assert pressure.full
    assert "too slow" in pressure.reason
    for number in range(1, 40):
        pressure.note(0.0, number * 0.1)
    assert (pressure.stage, pressure.full, pressure.reason) == (Stage.ALL, False, "")


def test_a_queue_that_fills_up_keeps_background_work_out_alone() -> None:
    pressure = Pressure(NONE, lambda: 1.0)
    pressure.note(0.0, 0.0)
    assert (pressure.stage, pressure.full) == (Stage.NO_BACKGROUND, False)
    with pytest.raises(Unavailable) as caught:
        pressure.check_background()
    assert caught.value.retry_after is not None
    assert "requests wait" in caught.value.message


def test_a_disk_that_is_nearly_full_counts(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    for bound, stage in ((free // 10, Stage.ALL), (int(free / 1.5), Stage.NO_BACKGROUND), (free * 2, 2)):
        pressure = Pressure(Bounds(free_disk=bound), nobody, tmp_path)
        pressure.note(0.0, 0.0)
        assert pressure.stage == stage
    gone = Pressure(Bounds(free_disk=free), nobody, tmp_path / "nowhere")
    gone.note(0.0, 0.0)
    assert gone.stage is Stage.ALL


def test_only_a_file_has_a_folder(tmp_path: Path) -> None:
    assert store_folder(str(tmp_path / "a.db")) == tmp_path
    assert store_folder("memory") is None
    assert store_folder("postgresql://host/db") is None


def pressure_of(server: Api) -> Pressure:
    life = server.app.lifecycle
    assert isinstance(life, Lifecycle)
    return life.parts.pressure


async def metric(server: Api, name: str) -> float:
    lines = (await call(server.app, "GET", "/metrics")).body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def asked(server: Api, **fields: Any) -> int:
    return (await server.post("responses", {"model": "fake", "input": "hi", **fields})).status


def press(pressure: Pressure, late: float) -> None:
    """Anew for each request: on a busy machine the server may have been calm for long enough before it."""
    for _ in range(3):
        pressure.note(late, asyncio.get_running_loop().time())


@pytest.mark.shows("H.4")
async def test_background_is_refused_first_then_all_new_work_and_then_it_is_over() -> None:
    async with api(shed=Bounds(lag=1.0)) as server, talking(server.app) as talk:
        pressure = pressure_of(server)
        assert (await call(server.app, "GET", "/ready")).json() == {"status": "ready"}
        press(pressure, 0.6)
        assert await asked(server) == 200
        press(pressure, 0.6)
        refused = await server.post("responses", {"model": "fake", "input": "hi", "background": True})
        assert (refused.status, refused.header(b"retry-after")) == (503, b"2")
        press(pressure, 0.6)
        assert "no background work" in (await call(server.app, "GET", "/ready")).json()["sheds"]
        assert await metric(server, "antiphon_shedding_stage") == 1
        press(pressure, 4.0)
        refused = await server.post("responses", b"not even JSON")
        assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
        assert refused.header(b"retry-after") == b"2"
        press(pressure, 4.0)
        assert (await server.post("chat/completions", {})).status == 503
        assert (await server.get("models")).status == 200
        press(pressure, 4.0)
        ready = await call(server.app, "GET", "/ready")
        assert (ready.status, "too slow" in ready.error["message"]) == (503, True)
        press(pressure, 4.0)
        talk.asks()
        assert (await talk.end())["status"] == 503
        assert (await call(server.app, "GET", "/health")).status == 200
        async with asyncio.timeout(30):
            while pressure.stage is not Stage.ALL:  # noqa: ASYNC110 - it says nothing by itself
                await asyncio.sleep(0.02)
        assert await asked(server, background=True) == 200
        assert (await call(server.app, "GET", "/ready")).status == 200
