"""The drill of two replicas behind a proxy, in its shortest form; and the proxy itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from drills.harness.client import Client
from drills.harness.findings import Findings
from drills.replicas.drill import QUICK, replicas
from drills.replicas.proxy import proxying

pytestmark = pytest.mark.anyio

SECONDS = 60.0


@pytest.mark.needs("postgresql", "redis")
@pytest.mark.shows("B.2", "B.3", "B.7", "H.10")
async def test_replicas_that_die_or_are_replaced_lose_nothing_not_even_with_their_database() -> None:
    findings = Findings("replicas")
    async with asyncio.timeout(280):
        await replicas(QUICK, findings)
    assert findings.trials
    assert findings.shown == []


@asynccontextmanager
async def _server(ready: int, says: bytes) -> AsyncIterator[int]:
    """Something that answers every request so, but /ready with this status. Gives its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = (ready, b"{}") if b"/ready" in head else (200, says)
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_the_proxy_sends_nobody_to_a_server_that_is_not_ready_while_another_one_is() -> None:
    servers = _server(200, b"one"), _server(503, b"other")
    async with asyncio.timeout(SECONDS), servers[0] as one, servers[1] as other, proxying() as proxy:
        proxy.add(2, other)
        client = Client(proxy.port)
        assert (await client.get("/")).body == b"other"  # if there is no better one
        proxy.add(1, one)
        while (await client.get("/")).body != b"one":  # noqa: ASYNC110 - it finds out by itself
            await asyncio.sleep(0.01)
        assert {(await client.get("/")).body for _ in range(10)} == {b"one"}


async def test_the_proxy_turns_to_another_server_if_nobody_listens() -> None:
    async with asyncio.timeout(SECONDS):
        async with _server(200, b"gone") as gone:
            pass
        async with _server(200, b"there") as there, proxying() as proxy:
            proxy.add(1, gone)
            proxy.add(2, there)
            assert {(await Client(proxy.port).get("/")).body for _ in range(4)} == {b"there"}


async def test_the_proxy_hangs_up_if_nobody_is_there() -> None:
    async with asyncio.timeout(SECONDS), proxying() as proxy:
        with pytest.raises((ConnectionError, EOFError)):
            await Client(proxy.port).get("/")
        assert proxy.turned_away == 1
