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
from antiphon.transport.http.request import Request, decode_body, run_for_client
from antiphon.transport.middleware.routing import Route

_STORE = "/v1/vector_stores/{vector_store_id}"
_READ_ERRORS = (400, 404, 503)
_WRITE_ERRORS = (400, 404, 413, 415, 503)
PAGES = "Newest first, unless `order` says otherwise; `after` and `before` are ids of entries."


class VectorStoresEndpoint(Struct, frozen=True):
    service: VectorStores
    limits: Limits

    @Route(
        "POST",
        "/v1/vector_stores",
        "Create a vector store",
        "The files of `file_ids` are indexed in the background.",
        takes=CreateVectorStore,
        takes_nothing=True,
        example={"name": "manuals", "file_ids": []},
        gives=VectorStore,
        new_work=True,
        errors=_WRITE_ERRORS,
    )
    async def create(self, request: Request) -> None:
        body = await request.read_body(self.limits) if request.has_body() else b"{}"
        parsed, request.ignored = await decode_body(body, decode_vector_store, self.limits)
        await request.reply(200, encode(await self.service.create(request.tenant, parsed)))

    @Route(
        "GET",
        "/v1/vector_stores",
        "List vector stores",
        PAGES,
        query=VectorStoresQuery,
        gives=VectorStoreList,
        errors=_READ_ERRORS,
    )
    async def list_all(self, request: Request) -> None:
        page = await self.service.list_stores(request.tenant, read_query(request, VectorStoresQuery))
        await request.reply(200, encode(page))

    @Route("GET", _STORE, "Retrieve a vector store", gives=VectorStore, errors=_READ_ERRORS)
    async def get(self, request: Request) -> None:
        await request.reply(200, encode(await self.service.get(request.tenant, request.params["vector_store_id"])))

    @Route(
        "POST",
        _STORE,
        "Update a vector store",
        "A null removes the value; `metadata` replaces the existing metadata.",
        takes=UpdateVectorStore,
        example={"name": "manuals"},
        gives=VectorStore,
        errors=_WRITE_ERRORS,
    )
    async def update(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_vector_store_update, self.limits)
        store = await self.service.update(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(store))

    @Route("DELETE", _STORE, "Delete a vector store", gives=VectorStoreDeleted, errors=_READ_ERRORS)
    async def delete(self, request: Request) -> None:
        store_id = request.params["vector_store_id"]
        await self.service.delete(request.tenant, store_id)
        await request.reply(200, encode(VectorStoreDeleted(id=store_id)))

    @Route(
        "POST",
        f"{_STORE}/search",
        "Search a vector store",
        "By keywords and by meaning. Files that are still being indexed are not found.",
        takes=SearchVectorStore,
        example={"query": "How is the filter cleaned?", "max_num_results": 5},
        gives=VectorSearchPage,
        new_work=True,
        errors=(*_WRITE_ERRORS, 500),
    )
    async def search(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_search, self.limits)
        search = self.service.search(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(await run_for_client(request, search)))
