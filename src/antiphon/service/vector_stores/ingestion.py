"""The queue of files that are to be indexed, which is in the store: claims and leases of this process.

    added ──▶ in_progress ── claimed ──▶ chunks are written in batches ──▶ completed, or failed with a reason
                   ▲            │
                   └────────────┘  the server stops: released at once; it dies: after its lease

The fence of a claim rejects the writes of a former owner, so a file is indexed once.
"""

import asyncio
import logging
from contextlib import suppress
from time import time

from antiphon.config.areas import StorageSettings, VectorSettings
from antiphon.errors import AntiphonError
from antiphon.ids import new_id
from antiphon.offload import BackgroundTasks, TimedEvent
from antiphon.service.vector_stores.file_indexer import FileIndexer
from antiphon.service.vector_stores.pgvector_index import PgvectorIndex
from antiphon.service.vector_stores.vector_index import VectorSource
from antiphon.stores.base import Claim, OwnershipLost
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import ClaimedVectorFile, IndexResult, VectorFileKey

log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 10  # of a file, within about an hour
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 60.0, 600.0  # between two attempts; doubled each time
_RESTARTED = 100  # files that are queued again at a time because they have another model
_POLL_MS, _MAX_POLL_MS = 100, 1000  # after which clients look again


class Ingestion:
    def __init__(self, store: Store, indexer: FileIndexer, settings: VectorSettings, storage: StorageSettings) -> None:
        self._store = store
        self._indexer = indexer
        self._slots = settings.indexing_slots
        self._storage = storage
        self._owner = new_id("item")
        self._due = TimedEvent()
        self.tasks = BackgroundTasks()
        self._running: dict[VectorFileKey, asyncio.Task[None]] = {}
        self._has_queued = False  # the store may have more files to index than there were slots for
        self._has_outdated = indexer.embedder.model is not None  # another model may have indexed some files

    def __len__(self) -> int:
        """Return how many files this process indexes now."""
        return len(self._running)

    def wake(self) -> None:
        """Look for files to index now."""
        self._due.set()

    def get_poll_delay(self) -> int:
        """Return the milliseconds after which a client may look again whether a file is indexed."""
        return _MAX_POLL_MS if self._has_queued else _POLL_MS * (1 + len(self._running))

    async def run_forever(self) -> None:
        """Index files until cancelled; then release those that are not finished."""
        try:
            while True:
                self._due.clear()
                try:
                    await self.scan()
                except AntiphonError as error:
                    log.warning("files of vector stores could not be claimed: %s", error)
                await self._due.wait_for(self._storage.lease_seconds / 3)
        finally:
            await self.tasks.close()

    async def scan(self) -> None:
        """Renew the leases of running work, and claim files for the free slots."""
        claim = Claim(self._owner, time() + self._storage.lease_seconds)
        if running := {**self._running}:
            for key in running.keys() - await self._store.renew_vector_files(claim, running.keys()):
                running[key].cancel()  # removed, or claimed by another server
        await self._restart_outdated()
        free = self._slots - len(self._running)
        self._has_queued = await self._store.has_vector_jobs()
        if self._has_queued:
            claimed = await self._store.claim_vector_files(claim, free, _MAX_ATTEMPTS)
            for one in claimed:
                self._start(one)
            self._has_queued = len(claimed) == free

    async def _restart_outdated(self) -> None:
        """Queue files again that another model than that of the settings has indexed."""
        if self._has_outdated:
            try:
                model = (await self._indexer.embedder.choose("")).model
            except AntiphonError as error:
                log.warning("the model of --embedding-model is not available: %s", error)
                return
            self._has_outdated = await self._store.reindex_vector_files(model, _RESTARTED) > 0

    def _start(self, claimed: ClaimedVectorFile) -> None:
        task = self._running[claimed.key] = self.tasks.start(self._index(claimed))
        task.add_done_callback(lambda _: self._on_end(claimed.key))

    def _on_end(self, key: VectorFileKey) -> None:
        del self._running[key]
        self.wake()

    async def _index(self, claimed: ClaimedVectorFile) -> None:
        key, attempts = claimed.key, claimed.attempts
        try:
            result = await self._attempt(claimed)
            await self._store.finish_vector_file(key, result)
            await self._copy_vectors(key, result)
        except OwnershipLost:
            log.info("%s was removed from its vector store, or another server indexes it", key.file)
        except AntiphonError as error:
            delay = min(_RETRY_SECONDS * 2 ** (attempts - 1), _MAX_RETRY_SECONDS)
            log.warning("%s is indexed again in %d seconds: %s", key.file, delay, error)
            await self._release(key, time() + delay, attempts)
        except asyncio.CancelledError:
            await self._release(key, 0.0, attempts - 1)
            raise

    async def _copy_vectors(self, key: VectorFileKey, result: IndexResult) -> None:
        """Add vectors to the index of the database, if it has one, so that the next search does not have to."""
        if self._store.has_points and result.dimensions:
            source = VectorSource(self._store, key.tenant, key.store, result.embedder, result.dimensions)
            with suppress(AntiphonError):
                await PgvectorIndex(source).load()

    async def _attempt(self, claimed: ClaimedVectorFile) -> IndexResult:
        """Index a file. Raises what makes another attempt necessary; after the last one, the file has failed."""
        try:
            return await self._indexer.index(claimed)
        except AntiphonError as error:
            if claimed.attempts < _MAX_ATTEMPTS:
                raise
            return IndexResult(error_code="server_error", error_message=error.message)

    async def _release(self, key: VectorFileKey, until: float, attempts: int) -> None:
        with suppress(AntiphonError):  # then its lease expires
            await self._store.release_vector_file(key, until, attempts)
