"""A short run of the drill of two replicas behind a proxy, and tests of the proxy itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from drills.harness.client import Client
from drills.harness.findings import Findings
from drills.replicas.drill import QUICK, replicas
from drills.replicas.proxy import run_proxy

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = 60.0


@pytest.mark.needs("postgresql", "redis")
@pytest.mark.shows("B.2", "B.3", "B.7", "H.10")
async def test_killed_and_replaced_replicas_lose_nothing_even_if_the_database_restarts() -> None:
    findings = Findings("replicas")
    async with asyncio.timeout(280):
        await replicas(QUICK, findings)
    assert findings.trials
    assert findings.reported == []


@asynccontextmanager
async def _run_server(ready_status: int, reply: bytes) -> AsyncIterator[int]:
    """Run a server that sends `reply` to every request, and the status `ready_status` to /ready. Yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = (ready_status, b"{}") if b"/ready" in head else (200, reply)
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_proxy_prefers_a_ready_server() -> None:
    servers = _run_server(200, b"one"), _run_server(503, b"other")
    async with asyncio.timeout(SECONDS), servers[0] as one, servers[1] as other, run_proxy() as proxy:
        proxy.add(2, other)
        client = Client(proxy.port)
        assert (await client.get("/")).body == b"other"  # used while no server is ready
        proxy.add(1, one)
        while (await client.get("/")).body != b"one":  # noqa: ASYNC110 - the proxy polls the readiness itself
            await asyncio.sleep(0.01)
        assert {(await client.get("/")).body for _ in range(10)} == {b"one"}


async def test_the_proxy_falls_back_to_another_server_if_one_is_down() -> None:
    async with asyncio.timeout(SECONDS):
        async with _run_server(200, b"gone") as gone:
            pass
        async with _run_server(200, b"there") as there, run_proxy() as proxy:
            proxy.add(1, gone)
            proxy.add(2, there)
            assert {(await Client(proxy.port).get("/")).body for _ in range(4)} == {b"there"}


async def test_the_proxy_closes_the_connection_without_any_server() -> None:
    async with asyncio.timeout(SECONDS), run_proxy() as proxy:
        with pytest.raises((ConnectionError, EOFError)):
            await Client(proxy.port).get("/")
        assert proxy.rejected_connections == 1
