"""/v1/vector_stores: decodes bodies and queries and encodes replies; the operations are in service/vector_stores/."""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.vector_stores import decode_search, decode_vector_store, decode_vector_store_update
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.vector_stores import (
    CreateVectorStore,
    SearchVectorStore,
    UpdateVectorStore,
    VectorSearchPage,
    VectorStore,
    VectorStoreDeleted,
    VectorStoreList,
    VectorStoresQuery,
)
from antiphon.service.vector_stores.vector_stores import VectorStores
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, decode_body, read_json, run_for_client
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route

_STORE = "/v1/vector_stores/{vector_store_id}"


class VectorStoresEndpoint(Struct, frozen=True):
    service: VectorStores
    limits: Limits

    @Route("POST", "/v1/vector_stores", takes=CreateVectorStore, takes_nothing=True, gives=VectorStore, new_work=True)
    async def create(self, request: Request) -> None:
        """Create a vector store. The files of `file_ids` are indexed in the background."""
        body = await request.read_body(self.limits) if request.has_body() else b"{}"
        parsed, request.ignored = await decode_body(body, decode_vector_store, self.limits)
        await request.reply(200, encode(await self.service.create(request.tenant, parsed)))

    @Route("GET", "/v1/vector_stores", query=VectorStoresQuery, gives=VectorStoreList, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> None:
        """List vector stores. Newest first, unless `order` says otherwise; `after` and `before` are ids of entries."""
        page = await self.service.list_stores(request.tenant, read_query(request, VectorStoresQuery))
        await request.reply(200, encode(page))

    @Route("GET", _STORE, gives=VectorStore, errors=READ_ERRORS)
    async def get(self, request: Request) -> None:
        """Retrieve a vector store."""
        await request.reply(200, encode(await self.service.get(request.tenant, request.params["vector_store_id"])))

    @Route("POST", _STORE, takes=UpdateVectorStore, gives=VectorStore, errors=WRITE_ERRORS)
    async def update(self, request: Request) -> None:
        """Update a vector store. A null removes the value; `metadata` replaces the existing metadata."""
        parsed, request.ignored = await read_json(request, decode_vector_store_update, self.limits)
        store = await self.service.update(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(store))

    @Route("DELETE", _STORE, gives=VectorStoreDeleted, errors=READ_ERRORS)
    async def delete(self, request: Request) -> None:
        """Delete a vector store."""
        store_id = request.params["vector_store_id"]
        await self.service.delete(request.tenant, store_id)
        await request.reply(200, encode(VectorStoreDeleted(id=store_id)))

    @Route("POST", f"{_STORE}/search", takes=SearchVectorStore, gives=VectorSearchPage, new_work=True)
    async def search(self, request: Request) -> None:
        """Search a vector store. By keywords and by meaning. Files that are still being indexed are not found."""
        parsed, request.ignored = await read_json(request, decode_search, self.limits)
        search = self.service.search(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(await run_for_client(request, search)))
