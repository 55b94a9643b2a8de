"""/v1/vector_stores/{id}/files and …/file_batches: the files of a vector store, which are indexed in the background."""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.bodies.vector_stores import decode_attributes, decode_file_batch, decode_store_file
from antiphon.protocol.types import vector_stores as wire
from antiphon.service.vector_stores.store_files import StoreFiles
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

    @Route("POST", _FILES, takes=wire.AddVectorStoreFile, new_work=True)
    async def add(self, request: Request) -> wire.VectorStoreFile:
        """Add a file to a vector store. Adding a file that the store has already indexes it again."""
        parsed, request.ignored = await read_json(request, decode_store_file, self.limits)
        file = await self.service.add(request.tenant, **request.params, file=parsed)
        self._set_poll_delay(request)
        return file

    @Route("GET", _FILES, query=wire.VectorStoreFilesQuery, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> wire.VectorStoreFileList:
        """List the files of a vector store. Newest first, unless `order` says otherwise; `after` and `before` are ids
        of entries.
        """
        query = read_query(request, wire.VectorStoreFilesQuery)
        return await self.service.list_files(request.tenant, **request.params, query=query)

    @Route("GET", _FILE, errors=READ_ERRORS)
    async def get(self, request: Request) -> wire.VectorStoreFile:
        """Retrieve a file of a vector store."""
        self._set_poll_delay(request)
        return await self.service.get(request.tenant, **request.params)

    @Route("POST", _FILE, takes=wire.UpdateVectorStoreFile, errors=WRITE_ERRORS)
    async def update(self, request: Request) -> wire.VectorStoreFile:
        """Update the attributes of a file. They replace the existing attributes."""
        parsed, request.ignored = await read_json(request, decode_attributes, self.limits)
        return await self.service.set_attributes(request.tenant, **request.params, attributes=parsed.attributes or {})

    @Route("DELETE", _FILE, errors=READ_ERRORS)
    async def remove(self, request: Request) -> wire.VectorStoreFileDeleted:
        """Remove a file from a vector store."""
        return await self.service.remove(request.tenant, **request.params)

    @Route("GET", f"{_FILE}/content", query=wire.FileContentQuery, errors=READ_ERRORS)
    async def content(self, request: Request) -> wire.FileContentPage:
        """Retrieve the indexed text of a file. One entry for each chunk; adjacent chunks overlap. `next_page` of a page
        is `page` of the next.
        """
        page = read_query(request, wire.FileContentQuery).page
        return await self.service.read_content(request.tenant, **request.params, start=page)

    @Route("POST", _BATCHES, takes=wire.CreateFileBatch, new_work=True)
    async def add_batch(self, request: Request) -> wire.VectorStoreFileBatch:
        """Add a batch of files to a vector store. Either `file_ids` or `files`. Adding a file that the store has
        already indexes it again.
        """
        parsed, request.ignored = await read_json(request, decode_file_batch, self.limits)
        batch = await self.service.add_batch(request.tenant, **request.params, batch=parsed)
        self._set_poll_delay(request)
        return batch

    @Route("GET", _BATCH, errors=READ_ERRORS)
    async def get_batch(self, request: Request) -> wire.VectorStoreFileBatch:
        """Retrieve a batch of files."""
        self._set_poll_delay(request)
        return await self.service.get_batch(request.tenant, **request.params)

    @Route("POST", f"{_BATCH}/cancel", errors=READ_ERRORS)
    async def cancel_batch(self, request: Request) -> wire.VectorStoreFileBatch:
        """Cancel a batch of files."""
        return await self.service.cancel_batch(request.tenant, **request.params)

    @Route("GET", f"{_BATCH}/files", query=wire.VectorStoreFilesQuery, errors=READ_ERRORS)
    async def list_batch(self, request: Request) -> wire.VectorStoreFileList:
        """List the files of a batch. Newest first, unless `order` says otherwise; `after` and `before` are ids of
        entries.
        """
        query = read_query(request, wire.VectorStoreFilesQuery)
        return await self.service.list_files(request.tenant, **request.params, query=query)

    def _set_poll_delay(self, request: Request) -> None:
        """Set the header by which the SDK learns when to retrieve an unfinished object again."""
        request.reply_headers.append((b"openai-poll-after-ms", b"%d" % self.service.get_poll_delay()))
