"""Files of vector stores, alone and in batches: added, listed, changed, removed and read. Ingestion indexes them."""

from collections.abc import Sequence
from typing import NoReturn

from antiphon.config.areas import VectorSettings
from antiphon.errors import NotFound
from antiphon.ids import new_id, quote_id
from antiphon.protocol.types import vector_stores as wire
from antiphon.protocol.types.filters import Attributes
from antiphon.service.vector_stores import objects
from antiphon.service.vector_stores.ingestion import Ingestion
from antiphon.stores.base import PageQuery
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import VectorBatchRow, VectorFileRow

_CONTENT_CHUNKS = 1000  # on a page


class StoreFiles:
    def __init__(self, store: Store, ingestion: Ingestion, settings: VectorSettings) -> None:
        self._store = store
        self._ingestion = ingestion
        self._settings = settings

    async def add(self, tenant: str, vector_store_id: str, file: wire.AddVectorStoreFile) -> wire.VectorStoreFile:
        await self._add(tenant, vector_store_id, [file], None, "file_id")
        return await self.get(tenant, vector_store_id, file.file_id)

    async def add_batch(
        self, tenant: str, vector_store_id: str, batch: wire.CreateFileBatch
    ) -> wire.VectorStoreFileBatch:
        batch_id, param = new_id("vsfb"), "files[{}].file_id" if batch.file_ids is None else "file_ids[{}]"
        await self._add(tenant, vector_store_id, batch.files or [], batch_id, param)
        return await self.get_batch(tenant, vector_store_id, batch_id)

    async def list_files(
        self, tenant: str, vector_store_id: str, query: wire.VectorStoreFilesQuery, batch_id: str | None = None
    ) -> wire.VectorStoreFileList:
        if batch_id is None:
            await objects.find_store(self._store, tenant, vector_store_id)
        else:
            await self._find_batch(tenant, vector_store_id, batch_id)
        wanted = PageQuery.read(query)
        page = await self._store.page_vector_files(tenant, vector_store_id, wanted, query.filter, batch_id)
        return wire.VectorStoreFileList.make(map(objects.to_file, page.rows), page.has_more)

    async def get(self, tenant: str, vector_store_id: str, file_id: str) -> wire.VectorStoreFile:
        return objects.to_file(await self._find(tenant, vector_store_id, file_id))

    async def set_attributes(
        self, tenant: str, vector_store_id: str, file_id: str, attributes: Attributes
    ) -> wire.VectorStoreFile:
        row = await self._store.set_vector_attributes(tenant, vector_store_id, file_id, attributes)
        return objects.to_file(row or await self._find(tenant, vector_store_id, file_id))

    async def remove(self, tenant: str, vector_store_id: str, file_id: str) -> wire.VectorStoreFileDeleted:
        if not await self._store.remove_vector_file(tenant, vector_store_id, file_id):
            await self._find(tenant, vector_store_id, file_id)
        return wire.VectorStoreFileDeleted(id=file_id)

    async def read_content(self, tenant: str, vector_store_id: str, file_id: str, start: int) -> wire.FileContentPage:
        """Return the text of the chunks from the number `start` on."""
        await self._find(tenant, vector_store_id, file_id)
        chunks = await self._store.page_chunks(tenant, vector_store_id, file_id, start, _CONTENT_CHUNKS)
        return wire.FileContentPage(
            data=[wire.TextContent(text=text) for text in chunks.rows],
            has_more=chunks.has_more,
            next_page=str(start + _CONTENT_CHUNKS) if chunks.has_more else None,
        )

    async def get_batch(self, tenant: str, vector_store_id: str, batch_id: str) -> wire.VectorStoreFileBatch:
        return objects.to_batch(await self._find_batch(tenant, vector_store_id, batch_id))

    async def cancel_batch(self, tenant: str, vector_store_id: str, batch_id: str) -> wire.VectorStoreFileBatch:
        row = await self._store.cancel_vector_batch(tenant, vector_store_id, batch_id)
        return objects.to_batch(row or await self._find_batch(tenant, vector_store_id, batch_id))

    def get_poll_delay(self) -> int:
        """Return the milliseconds after which a client may look again whether a file is indexed."""
        return self._ingestion.get_poll_delay()

    async def _add(
        self, tenant: str, store_id: str, files: Sequence[wire.AddVectorStoreFile], batch_id: str | None, param: str
    ) -> None:
        rows = [objects.make_new_file(file.file_id, file.chunking_strategy, file.attributes) for file in files]
        max_files = self._settings.vector_store_max_files
        unknown = await self._store.add_vector_files(tenant, store_id, rows, batch_id, max_files)
        objects.check_files_exist(unknown, [row.file for row in rows], param)
        await self._store.touch_vector_store(tenant, store_id)
        self._ingestion.wake()

    async def _find(self, tenant: str, store_id: str, file_id: str) -> VectorFileRow:
        row = await self._store.vector_file(tenant, store_id, file_id)
        return row or await self._refuse(tenant, store_id, "file", file_id)

    async def _find_batch(self, tenant: str, store_id: str, batch_id: str) -> VectorBatchRow:
        row = await self._store.vector_batch(tenant, store_id, batch_id)
        return row or await self._refuse(tenant, store_id, "batch", batch_id)

    async def _refuse(self, tenant: str, store_id: str, kind: str, part_id: str) -> NoReturn:
        """Raise for a part that does not exist, or for its store."""
        await objects.find_store(self._store, tenant, store_id)
        raise NotFound(f"The vector store '{store_id}' has no {kind} {quote_id(part_id)}.", param=f"{kind}_id")
