"""A search backend without an index: it always finds the same passages, and can be made to fail or to wait."""

import asyncio
from collections.abc import Sequence
from typing import Any

from antiphon.config import Config
from antiphon.core.file_search import SearchHit, SearchRequest
from antiphon.errors import AntiphonError, UnknownVectorStore, VectorStoreExpired
from antiphon.tools.base import ToolServices
from antiphon.tools.file_search.tool import FileSearch
from tests.egress.hosts import make_egress_client


def make_hit(filename: str, text: str, **fields: Any) -> SearchHit:
    defaults = {"file_id": f"file-{filename.partition('.')[0]}", "score": 0.5, "attributes": {}}
    return SearchHit(**{**defaults, "filename": filename, "text": text, **fields})


class Library:
    """The vector store `vs_1` of every tenant.

    `searchable` and `indexed` can be cleared to make searches and responses wait. `error` is raised by searches.
    """

    def __init__(self, *hits: SearchHit) -> None:
        self.hits = [*hits]
        self.next_hits: list[list[SearchHit]] = []  # of the next searches
        self.requests: list[tuple[str, SearchRequest]] = []
        self.error: AntiphonError | None = None
        self.expired = False
        self.searchable, self.indexed, self.waiting = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.searchable.set()
        self.indexed.set()

    async def check_store(self, tenant: str, store: str) -> None:
        if store != "vs_1":
            raise UnknownVectorStore(store)
        if self.expired:
            raise VectorStoreExpired(f"The vector store '{store}' has expired.", param="vector_store_id")

    async def wait_indexed(self, tenant: str, stores: Sequence[str], seconds: float) -> bool:
        if not seconds:
            return self.indexed.is_set()
        self.waiting.set()
        try:
            await asyncio.wait_for(self.indexed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def search(self, tenant: str, request: SearchRequest) -> list[SearchHit]:
        self.requests.append((tenant, request))
        await self.searchable.wait()
        if self.error is not None:
            raise self.error
        return (self.next_hits.pop(0) if self.next_hits else self.hits)[: request.max_results]


def make_tool(library: Library | None, **settings: Any) -> FileSearch:
    services = ToolServices(config=Config.from_settings(**settings), egress=make_egress_client(), search=library)
    return FileSearch(services)
