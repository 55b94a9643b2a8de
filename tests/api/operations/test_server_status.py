"""Tests GET /v1/antiphon/server: the state of the process, with samples.

Covers `protocol/types/operations/server.py` and `service/operations/server_status.py`.
"""

import msgspec
import pytest

from antiphon.protocol.types.operations.server import ServerStatus
from antiphon.service.operations import server_status
from antiphon.wiring import ServerLifecycle
from tests.api.app import ApiServer, run_api

pytestmark = pytest.mark.anyio


async def read_status(server: ApiServer) -> ServerStatus:
    answer = await server.get("antiphon/server")
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=ServerStatus)


def take_sample(server: ApiServer) -> None:
    assert isinstance(server.app.lifecycle, ServerLifecycle)
    server.app.lifecycle.components.monitor.sample()


async def test_the_status_has_queues_load_and_store() -> None:
    async with run_api() as server:
        await server.create()
        status = await read_status(server)
        assert [(queue.model, queue.running) for queue in status.queues] in ([], [("fake", 0)])
        assert (status.running, status.waiting) == (0, 0)
        assert (status.shedding.stage, status.shedding.reason) == ("none", None)
        assert (status.store.kind, status.store.healthy) == ("memory", True)


async def test_samples_count_what_ended_between_them() -> None:
    async with run_api() as server:
        take_sample(server)
        response = await server.create()
        take_sample(server)
        take_sample(server)
        first, second, third = (await read_status(server)).samples
        assert [sample.responses for sample in (first, second, third)] == [0, 1, 0]
        assert (second.input_tokens, second.output_tokens, second.failed) == (
            response["usage"]["input_tokens"], response["usage"]["output_tokens"], 0,
        )  # fmt: skip
        assert first.at <= second.at <= third.at


async def test_samples_are_kept_for_an_hour() -> None:
    async with run_api() as server:
        for _ in range(server_status._MAX_SAMPLES + 1):
            take_sample(server)
        assert len((await read_status(server)).samples) == server_status._MAX_SAMPLES == 3600 / 10


async def test_a_key_without_the_scope_admin_may_not_see_the_server() -> None:
    async with run_api(api_key=["root"]) as server:
        assert (await server.get("antiphon/server")).status == 401
