"""/v1/vector_stores: decodes bodies and queries; the operations are in service/vector_stores/."""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.vector_stores import decode_search, decode_vector_store, decode_vector_store_update
from antiphon.protocol.types import vector_stores as wire
from antiphon.service.vector_stores.vector_stores import VectorStores
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, decode_body, read_json, run_for_client
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route

_STORE = "/v1/vector_stores/{vector_store_id}"


class VectorStoresEndpoint(Struct, frozen=True):
    service: VectorStores
    limits: Limits

    @Route("POST", "/v1/vector_stores", takes=wire.CreateVectorStore, takes_nothing=True, new_work=True)
    async def create(self, request: Request) -> wire.VectorStore:
        """Create a vector store. The files of `file_ids` are indexed in the background."""
        body = await request.read_body(self.limits) if request.has_body() else b"{}"
        parsed, request.ignored = await decode_body(body, decode_vector_store, self.limits)
        return await self.service.create(request.tenant, parsed)

    @Route("GET", "/v1/vector_stores", query=wire.VectorStoresQuery, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> wire.VectorStoreList:
        """List vector stores. Newest first, unless `order` says otherwise; `after` and `before` are ids of entries."""
        return await self.service.list_stores(request.tenant, read_query(request, wire.VectorStoresQuery))

    @Route("GET", _STORE, errors=READ_ERRORS)
    async def get(self, request: Request) -> wire.VectorStore:
        """Retrieve a vector store."""
        return await self.service.get(request.tenant, **request.params)

    @Route("POST", _STORE, takes=wire.UpdateVectorStore, errors=WRITE_ERRORS)
    async def update(self, request: Request) -> wire.VectorStore:
        """Update a vector store. A null removes the value; `metadata` replaces the existing metadata."""
        parsed, request.ignored = await read_json(request, decode_vector_store_update, self.limits)
        return await self.service.update(request.tenant, **request.params, request=parsed)

    @Route("DELETE", _STORE, errors=READ_ERRORS)
    async def delete(self, request: Request) -> wire.VectorStoreDeleted:
        """Delete a vector store."""
        return await self.service.delete(request.tenant, **request.params)

    @Route("POST", f"{_STORE}/search", takes=wire.SearchVectorStore, new_work=True)
    async def search(self, request: Request) -> wire.VectorSearchPage:
        """Search a vector store. By keywords and by meaning. Files that are still being indexed are not found."""
        parsed, request.ignored = await read_json(request, decode_search, self.limits)
        return await run_for_client(request, self.service.search(request.tenant, **request.params, request=parsed))
