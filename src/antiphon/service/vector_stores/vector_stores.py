"""Vector stores of clients: created, listed, changed, deleted and searched."""

from time import time

from msgspec import UNSET, Struct

from antiphon.config.areas import VectorSettings
from antiphon.core.file_search import make_request
from antiphon.ids import new_id
from antiphon.protocol.types import vector_stores as wire
from antiphon.service.persistence.stored_responses import check_store_enabled
from antiphon.service.vector_stores import objects
from antiphon.service.vector_stores.ingestion import Ingestion
from antiphon.service.vector_stores.query_rewriter import QueryRewriter
from antiphon.service.vector_stores.search import VectorSearch
from antiphon.stores.base import PageQuery
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import VectorStoreRow, VectorStoreUpdate

_DAY = 86_400.0


class VectorStores(Struct, frozen=True, eq=False):
    _store: Store
    _search: VectorSearch
    _rewriter: QueryRewriter
    _ingestion: Ingestion
    _settings: VectorSettings
    _store_enabled: bool = True

    async def create(self, tenant: str, request: wire.CreateVectorStore) -> wire.VectorStore:
        check_store_enabled(self._store_enabled)
        now, days = time(), None if request.expires_after is None else request.expires_after.days
        row = VectorStoreRow(
            id=new_id("vs"),
            created=now,
            name=request.name,
            description=request.description or "",
            metadata=request.metadata,
            days=days,
            last_active=now,
            expires=None if days is None else now + days * _DAY,
        )
        files = [
            objects.make_new_file(file_id, request.chunking_strategy, {}) for file_id in dict.fromkeys(request.file_ids)
        ]
        unknown = await self._store.create_vector_store(tenant, row, self._settings.vector_stores_max_entries, files)
        objects.check_files_exist(unknown, request.file_ids, "file_ids[{}]")
        self._ingestion.wake()
        return await self.get(tenant, row.id)

    async def list_stores(self, tenant: str, query: wire.VectorStoresQuery) -> wire.VectorStoreList:
        check_store_enabled(self._store_enabled)
        page = await self._store.page_vector_stores(tenant, PageQuery.read(query))
        return wire.VectorStoreList.make(map(objects.to_store, page.rows), page.has_more)

    async def get(self, tenant: str, vector_store_id: str) -> wire.VectorStore:
        return objects.to_store(await objects.find_store(self._store, tenant, vector_store_id))

    async def update(self, tenant: str, vector_store_id: str, request: wire.UpdateVectorStore) -> wire.VectorStore:
        policy = request.expires_after
        update = VectorStoreUpdate(
            name=UNSET if request.name is UNSET else request.name or "",
            metadata=UNSET if request.metadata is UNSET else request.metadata or {},
            days=policy.days if isinstance(policy, wire.VectorStoreExpiry) else policy,
        )
        row = await self._store.update_vector_store(tenant, vector_store_id, update)
        return objects.to_store(row or await objects.find_store(self._store, tenant, vector_store_id))

    async def delete(self, tenant: str, vector_store_id: str) -> wire.VectorStoreDeleted:
        if not await self._store.delete_vector_store(tenant, vector_store_id):
            await objects.find_store(self._store, tenant, vector_store_id)
        return wire.VectorStoreDeleted(id=vector_store_id)

    async def search(self, tenant: str, vector_store_id: str, request: wire.SearchVectorStore) -> wire.VectorSearchPage:
        queries = [request.query] if isinstance(request.query, str) else request.query
        if request.rewrite_query:
            await self._search.check_store(tenant, vector_store_id)  # before a model is called
            queries = await self._rewriter.rewrite(tenant, queries)
        hits = await self._search.search(
            tenant,
            make_request([vector_store_id], queries, request.max_num_results, request.filters, request.ranking_options),
        )
        results = [
            wire.VectorSearchResult(
                file_id=hit.file_id,
                filename=hit.filename,
                score=hit.score,
                attributes=hit.attributes,
                content=[wire.TextContent(text=hit.text)],
            )
            for hit in hits
        ]
        return wire.VectorSearchPage(search_query=queries, data=results)
