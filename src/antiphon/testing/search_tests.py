"""Contract of search providers (`tools/web_search/providers.py`): the tests of `SearchContract`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from antiphon.config.tool_settings import WebSearchSettings
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.errors import FetchFailed
from antiphon.protocol.types.items import WebSearchResult
from antiphon.tools.web_search.providers import SearchProvider, SearchQuery, make_provider

SECRET = "canary-of-the-operator"
QUERY = SearchQuery(query="otters", count=3)
GARBAGE = [b"", b"{", b"null", b"[]", b"7", b'{"results": 7}', b'{"results": [7, null, {}]}', b"[" * 50_000, b"\xff"]
_READ_SECONDS = 10.0


class SearchService:
    """A local service that answers every request with the same reply, and records the requests."""

    def __init__(self, url: str, body: bytes) -> None:
        """`url` has the placeholder {address}."""
        self.body: bytes | None = body  # None: it does not answer
        self.status = 200
        self.requests: list[bytes] = []
        self._url = url
        self._tasks: list[asyncio.Task[None]] = []  # of the connections

    @asynccontextmanager
    async def run(self, seconds: float = 30.0) -> AsyncIterator[SearchProvider]:
        """Serve, and yield the provider for this service, which waits as long for a reply."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        url = self._url.replace("{address}", f"{host}:{port}")
        settings = WebSearchSettings(url=url, key=SECRET, timeout=seconds)
        async with server, asyncio.timeout(60):
            yield make_provider(settings, EgressClient(EgressPolicy(())))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_READ_SECONDS)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks += filter(None, [asyncio.current_task()])
        with suppress(asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            async with asyncio.timeout(_READ_SECONDS):
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                while self.body is None and await reader.read(1000):
                    pass
            if self.body is not None:
                head = f"HTTP/1.1 {self.status} X\r\nContent-Type: application/json\r\nConnection: close\r\n"
                writer.write(head.encode() + f"Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_query_is_sent_and_its_results_are_returned(service: SearchService) -> None:
    async with service.run() as provider:
        results = await provider.search(QUERY)
    assert results
    assert all(isinstance(result, WebSearchResult) and result.url for result in results)
    assert len(service.requests) == 1


async def test_the_fields_with_an_effect_are_those_of_a_query(service: SearchService) -> None:
    async with service.run() as provider:
        assert {"query"} <= provider.fields <= {*SearchQuery.__struct_fields__}


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_a_refusal_is_a_typed_error_without_key_and_address(service: SearchService, status: int) -> None:
    service.status = status
    async with service.run() as provider:
        with pytest.raises(FetchFailed) as caught:
            await provider.search(QUERY)
    assert SECRET not in caught.value.message
    assert "127.0.0.1" not in caught.value.message


@pytest.mark.parametrize("body", GARBAGE, ids=lambda body: repr(body[:12]))
async def test_garbage_is_no_result_or_a_typed_error(service: SearchService, body: bytes) -> None:
    service.body = body
    async with service.run() as provider:
        with suppress(FetchFailed):
            assert not [result for result in await provider.search(QUERY) if result.url]


async def test_a_silent_service_is_a_typed_error_within_the_deadline(service: SearchService) -> None:
    service.body = None
    async with service.run(seconds=0.2) as provider:
        with pytest.raises(FetchFailed):
            await provider.search(QUERY)
