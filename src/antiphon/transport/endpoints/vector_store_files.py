"""/v1/vector_stores/{id}/files and …/file_batches: the files of a vector store, which are indexed in the background."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.vector_stores import decode_attributes, decode_file_batch, decode_store_file
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.vector_stores import (
    AddVectorStoreFile,
    CreateFileBatch,
    FileContentPage,
    FileContentQuery,
    UpdateVectorStoreFile,
    VectorStoreFile,
    VectorStoreFileBatch,
    VectorStoreFileDeleted,
    VectorStoreFileList,
    VectorStoreFilesQuery,
)
from antiphon.service.vector_stores.store_files import StoreFiles
from antiphon.transport.endpoints.vector_stores import PAGES
from antiphon.transport.http.channel import Header
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, decode_body
from antiphon.transport.middleware.routing import Route

_FILES = "/v1/vector_stores/{vector_store_id}/files"
_FILE = f"{_FILES}/{{file_id}}"
_BATCHES = "/v1/vector_stores/{vector_store_id}/file_batches"
_BATCH = f"{_BATCHES}/{{batch_id}}"
_READ_ERRORS = (400, 404, 503)
_WRITE_ERRORS = (400, 404, 413, 415, 503)
_REPLACES = "Adding a file that the store has already indexes it again."


class StoreFilesEndpoint(Struct, frozen=True):
    service: StoreFiles
    limits: Limits

    @Route(
        "POST",
        _FILES,
        "Add a file to a vector store",
        _REPLACES,
        takes=AddVectorStoreFile,
        example={"file_id": "file-1", "attributes": {"year": 2026}},
        gives=VectorStoreFile,
        new_work=True,
        errors=_WRITE_ERRORS,
    )
    async def add(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_store_file, self.limits)
        file = await self.service.add(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(file), self._poll_headers())

    @Route(
        "GET",
        _FILES,
        "List the files of a vector store",
        PAGES,
        query=VectorStoreFilesQuery,
        gives=VectorStoreFileList,
        errors=_READ_ERRORS,
    )
    async def list_all(self, request: Request) -> None:
        query = read_query(request, VectorStoreFilesQuery)
        page = await self.service.list_files(request.tenant, request.params["vector_store_id"], query)
        await request.reply(200, encode(page))

    @Route("GET", _FILE, "Retrieve a file of a vector store", gives=VectorStoreFile, errors=_READ_ERRORS)
    async def get(self, request: Request) -> None:
        file = await self.service.get(request.tenant, **request.params)
        await request.reply(200, encode(file), self._poll_headers())

    @Route(
        "POST",
        _FILE,
        "Update the attributes of a file",
        "They replace the existing attributes.",
        takes=UpdateVectorStoreFile,
        example={"attributes": {"year": 2026}},
        gives=VectorStoreFile,
        errors=_WRITE_ERRORS,
    )
    async def update(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_attributes, self.limits)
        file = await self.service.set_attributes(request.tenant, **request.params, attributes=parsed.attributes or {})
        await request.reply(200, encode(file))

    @Route("DELETE", _FILE, "Remove a file from a vector store", gives=VectorStoreFileDeleted, errors=_READ_ERRORS)
    async def remove(self, request: Request) -> None:
        await self.service.remove(request.tenant, **request.params)
        await request.reply(200, encode(VectorStoreFileDeleted(id=request.params["file_id"])))

    @Route(
        "GET",
        f"{_FILE}/content",
        "Retrieve the indexed text of a file",
        "One entry for each chunk; adjacent chunks overlap. `next_page` of a page is `page` of the next.",
        query=FileContentQuery,
        gives=FileContentPage,
        errors=_READ_ERRORS,
    )
    async def content(self, request: Request) -> None:
        page = read_query(request, FileContentQuery).page
        await request.reply(200, encode(await self.service.read_content(request.tenant, **request.params, start=page)))

    @Route(
        "POST",
        _BATCHES,
        "Add a batch of files to a vector store",
        f"Either `file_ids` or `files`. {_REPLACES}",
        takes=CreateFileBatch,
        example={"file_ids": ["file-1", "file-2"]},
        gives=VectorStoreFileBatch,
        new_work=True,
        errors=_WRITE_ERRORS,
    )
    async def add_batch(self, request: Request) -> None:
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_file_batch, self.limits)
        batch = await self.service.add_batch(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(batch), self._poll_headers())

    @Route("GET", _BATCH, "Retrieve a batch of files", gives=VectorStoreFileBatch, errors=_READ_ERRORS)
    async def get_batch(self, request: Request) -> None:
        batch = await self.service.get_batch(request.tenant, **request.params)
        await request.reply(200, encode(batch), self._poll_headers())

    @Route("POST", f"{_BATCH}/cancel", "Cancel a batch of files", gives=VectorStoreFileBatch, errors=_READ_ERRORS)
    async def cancel_batch(self, request: Request) -> None:
        await request.reply(200, encode(await self.service.cancel_batch(request.tenant, **request.params)))

    @Route(
        "GET",
        f"{_BATCH}/files",
        "List the files of a batch",
        PAGES,
        query=VectorStoreFilesQuery,
        gives=VectorStoreFileList,
        errors=_READ_ERRORS,
    )
    async def list_batch(self, request: Request) -> None:
        query = read_query(request, VectorStoreFilesQuery)
        await request.reply(200, encode(await self.service.list_files(request.tenant, **request.params, query=query)))

    def _poll_headers(self) -> Sequence[Header]:
        """Return the header by which the SDK learns when to retrieve an unfinished object again."""
        return ((b"openai-poll-after-ms", b"%d" % self.service.get_poll_delay()),)
