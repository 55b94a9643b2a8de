"""/v1/vector_stores/{id}/files and …/file_batches: the files of a vector store, which are indexed in the background."""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.vector_stores import decode_attributes, decode_file_batch, decode_store_file
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types import vector_stores as wire
from antiphon.service.vector_stores.store_files import StoreFiles
from antiphon.transport.http.channel import Header
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, read_json
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route

_FILES = "/v1/vector_stores/{vector_store_id}/files"
_FILE = f"{_FILES}/{{file_id}}"
_BATCHES = "/v1/vector_stores/{vector_store_id}/file_batches"
_BATCH = f"{_BATCHES}/{{batch_id}}"


class StoreFilesEndpoint(Struct, frozen=True):
    service: StoreFiles
    limits: Limits

    @Route("POST", _FILES, takes=wire.AddVectorStoreFile, gives=wire.VectorStoreFile, new_work=True)
    async def add(self, request: Request) -> None:
        """Add a file to a vector store. Adding a file that the store has already indexes it again."""
        parsed, request.ignored = await read_json(request, decode_store_file, self.limits)
        file = await self.service.add(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(file), self._poll_headers())

    @Route("GET", _FILES, query=wire.VectorStoreFilesQuery, gives=wire.VectorStoreFileList, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> None:
        """List the files of a vector store. Newest first, unless `order` says otherwise; `after` and `before` are ids
        of entries.
        """
        query = read_query(request, wire.VectorStoreFilesQuery)
        page = await self.service.list_files(request.tenant, request.params["vector_store_id"], query)
        await request.reply(200, encode(page))

    @Route("GET", _FILE, gives=wire.VectorStoreFile, errors=READ_ERRORS)
    async def get(self, request: Request) -> None:
        """Retrieve a file of a vector store."""
        file = await self.service.get(request.tenant, **request.params)
        await request.reply(200, encode(file), self._poll_headers())

    @Route("POST", _FILE, takes=wire.UpdateVectorStoreFile, gives=wire.VectorStoreFile, errors=WRITE_ERRORS)
    async def update(self, request: Request) -> None:
        """Update the attributes of a file. They replace the existing attributes."""
        parsed, request.ignored = await read_json(request, decode_attributes, self.limits)
        file = await self.service.set_attributes(request.tenant, **request.params, attributes=parsed.attributes or {})
        await request.reply(200, encode(file))

    @Route("DELETE", _FILE, gives=wire.VectorStoreFileDeleted, errors=READ_ERRORS)
    async def remove(self, request: Request) -> None:
        """Remove a file from a vector store."""
        await self.service.remove(request.tenant, **request.params)
        await request.reply(200, encode(wire.VectorStoreFileDeleted(id=request.params["file_id"])))

    @Route("GET", f"{_FILE}/content", query=wire.FileContentQuery, gives=wire.FileContentPage, errors=READ_ERRORS)
    async def content(self, request: Request) -> None:
        """Retrieve the indexed text of a file. One entry for each chunk; adjacent chunks overlap. `next_page` of a page
        is `page` of the next.
        """
        page = read_query(request, wire.FileContentQuery).page
        await request.reply(200, encode(await self.service.read_content(request.tenant, **request.params, start=page)))

    @Route("POST", _BATCHES, takes=wire.CreateFileBatch, gives=wire.VectorStoreFileBatch, new_work=True)
    async def add_batch(self, request: Request) -> None:
        """Add a batch of files to a vector store. Either `file_ids` or `files`. Adding a file that the store has
        already indexes it again.
        """
        parsed, request.ignored = await read_json(request, decode_file_batch, self.limits)
        batch = await self.service.add_batch(request.tenant, request.params["vector_store_id"], parsed)
        await request.reply(200, encode(batch), self._poll_headers())

    @Route("GET", _BATCH, gives=wire.VectorStoreFileBatch, errors=READ_ERRORS)
    async def get_batch(self, request: Request) -> None:
        """Retrieve a batch of files."""
        batch = await self.service.get_batch(request.tenant, **request.params)
        await request.reply(200, encode(batch), self._poll_headers())

    @Route("POST", f"{_BATCH}/cancel", gives=wire.VectorStoreFileBatch, errors=READ_ERRORS)
    async def cancel_batch(self, request: Request) -> None:
        """Cancel a batch of files."""
        await request.reply(200, encode(await self.service.cancel_batch(request.tenant, **request.params)))

    @Route(
        "GET", f"{_BATCH}/files", query=wire.VectorStoreFilesQuery, gives=wire.VectorStoreFileList, errors=READ_ERRORS
    )
    async def list_batch(self, request: Request) -> None:
        """List the files of a batch. Newest first, unless `order` says otherwise; `after` and `before` are ids of
        entries.
        """
        query = read_query(request, wire.VectorStoreFilesQuery)
        await request.reply(200, encode(await self.service.list_files(request.tenant, **request.params, query=query)))

    def _poll_headers(self) -> Sequence[Header]:
        """Return the header by which the SDK learns when to retrieve an unfinished object again."""
        return ((b"openai-poll-after-ms", b"%d" % self.service.get_poll_delay()),)
