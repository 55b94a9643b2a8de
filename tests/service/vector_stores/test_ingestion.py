"""Indexing in the background: claims, leases and takeovers, failing models, and files that disappear.

Covers `service/vector_stores/file_indexer.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest

from antiphon.config.areas import StorageSettings, VectorSettings
from antiphon.engines.base import EmbeddingResult
from antiphon.engines.fake import FakeEngine
from antiphon.errors import AntiphonError, EngineFailed, Unavailable
from antiphon.ids import new_id
from antiphon.protocol.types.files import FileFields
from antiphon.service.attachments.text_extraction import ExtractionBounds, TextExtractor
from antiphon.service.engine_tasks import EngineTasks
from antiphon.service.files import Files
from antiphon.service.model_io.models import Models
from antiphon.service.vector_stores.embedder import Embedder
from antiphon.service.vector_stores.file_indexer import FileIndexer
from antiphon.service.vector_stores.ingestion import Ingestion
from antiphon.stores.base import FileQuota
from antiphon.stores.contents.folder import FolderContents
from antiphon.stores.registry import make_store
from antiphon.stores.sql.store import Store
from antiphon.stores.vector_rows import NewVectorFile, VectorFileRow, VectorStoreRow
from antiphon.testing.rows.response_rows import Clock

pytestmark = pytest.mark.anyio
TENANT, STORE = "tenant", new_id("vs")
TEXT = "Otters swim in the sea. " * 200  # several chunks, in several batches
DEADLINE = 20.0


class EmbeddingEngine(FakeEngine):
    """Embeds with errors, in another number of dimensions, or not before it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Sequence[str | Sequence[int]]] = []
        self.errors: list[AntiphonError] = []
        self.size: int | None = None
        self.hold_call = 0  # number of the call from which on calls wait for `released`
        self.held, self.released = asyncio.Event(), asyncio.Event()

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> EmbeddingResult:
        self.calls.append(inputs)
        if 0 < self.hold_call <= len(self.calls):
            self.held.set()
            await self.released.wait()
        if self.errors:
            raise self.errors.pop(0)
        return await super().embed(model, inputs, self.size, truncate)


class Bench:
    """A store with one vector store, and servers that index its files."""

    def __init__(self, store: Store, files: Files, clock: Clock) -> None:
        self.store, self.files, self.clock = store, files, clock
        self.delays: list[float] = []

    def start_server(self, engine: FakeEngine, model: str | None = None, slots: int = 2) -> Ingestion:
        embedder = Embedder(EngineTasks(Models(engine), 60.0), model)
        extractor = TextExtractor(ExtractionBounds())
        indexer = FileIndexer(self.store, self.files, extractor, embedder, self._sleep)
        return Ingestion(self.store, indexer, VectorSettings(indexing_slots=slots), StorageSettings())

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)

    async def add(self, text: str = TEXT, chunk_tokens: int = 100) -> str:
        async def pieces() -> AsyncIterator[bytes]:
            yield text.encode()

        content = await self.files.write(pieces(), 10**9)
        file = await self.files.create(TENANT, "a.txt", FileFields(purpose="assistants"), content)
        await self.add_again(file.id, chunk_tokens)
        return file.id

    async def add_again(self, file_id: str, chunk_tokens: int = 100) -> None:
        new = NewVectorFile(file=file_id, chunk_tokens=chunk_tokens, overlap_tokens=0)
        assert await self.store.add_vector_files(TENANT, STORE, [new], None, 100) == []

    async def get(self, file_id: str) -> VectorFileRow:
        row = await self.store.vector_file(TENANT, STORE, file_id)
        assert row is not None
        return row

    async def read(self, file_id: str) -> str:
        """Return the text that is indexed, in chunks without overlap."""
        return "".join((await self.store.page_chunks(TENANT, STORE, file_id, 0, 1000)).rows)

    async def index_all(self, server: Ingestion) -> None:
        """Index what can be indexed now."""
        await server.scan()
        await finish(server)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with run_bench("memory", tmp_path) as bench:
        yield bench


@asynccontextmanager
async def run_bench(location: str, tmp_path: Path) -> AsyncIterator[Bench]:
    clock = Clock()
    clock.now = time()
    store = make_store(location, 1e9, clock)
    await store.open()
    contents = FolderContents(tmp_path)
    await contents.open()
    await store.create_vector_store(TENANT, VectorStoreRow(id=STORE, created=clock.now, last_active=clock.now), 10)
    yield Bench(store, Files(store, contents, FileQuota(100, 10**9)), clock)
    await store.close()


async def finish(server: Ingestion) -> None:
    """Wait until the server has no running work."""
    async with asyncio.timeout(DEADLINE):
        await server.tasks.wait_all()


async def test_a_file_is_indexed_in_small_batches(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    server = bench.start_server(engine)
    await bench.index_all(server)
    assert (await bench.get(file_id)).status == "completed"
    assert await bench.read(file_id) == TEXT
    assert len(engine.calls) > 1
    assert max(map(len, engine.calls)) <= 8


@pytest.mark.needs("postgresql")
async def test_vectors_are_copied_to_the_index_of_the_database(postgres_url: str, tmp_path: Path) -> None:
    async with run_bench(postgres_url, tmp_path) as bench:
        await bench.add()
        await bench.index_all(bench.start_server(EmbeddingEngine()))
        state = await bench.store.vector_store_version(TENANT, STORE)
        [count] = (await bench.store.count_points(STORE, state.embedder)).values()
        assert count > 1


@pytest.mark.shows("E5.11")
async def test_a_file_whose_server_died_is_indexed_by_the_next_one_once(bench: Bench) -> None:
    hanging, engine, file_id = EmbeddingEngine(), EmbeddingEngine(), await bench.add()
    hanging.hold_call = 1
    dead, server = bench.start_server(hanging), bench.start_server(engine)
    await dead.scan()
    await hanging.held.wait()
    await server.scan()
    assert len(server) == 0  # the lease of the other one has not expired
    bench.clock.now += 16.0
    await bench.index_all(server)
    assert (await bench.get(file_id)).status == "completed"
    hanging.released.set()
    await finish(dead)
    assert (await bench.get(file_id)).status == "completed"
    assert await bench.read(file_id) == TEXT


@pytest.mark.shows("E5.11")
async def test_a_file_that_is_not_finished_has_no_text_yet(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.hold_call = 2  # the first batch is written then
    server = bench.start_server(engine)
    await server.scan()
    await engine.held.wait()
    assert await bench.read(file_id) == ""
    engine.released.set()
    await finish(server)
    assert await bench.read(file_id) == TEXT


async def test_a_server_that_stops_releases_its_files_at_once(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.hold_call = 1
    stopped = bench.start_server(engine)
    running = asyncio.create_task(stopped.run_forever())
    await engine.held.wait()
    running.cancel()
    await asyncio.wait([running])
    await bench.index_all(bench.start_server(EmbeddingEngine()))
    assert (await bench.get(file_id)).status == "completed"


async def test_leases_are_renewed_while_a_file_is_indexed(bench: Bench) -> None:
    slow, file_id = EmbeddingEngine(), await bench.add()
    slow.hold_call = 1
    server, other = bench.start_server(slow), bench.start_server(EmbeddingEngine())
    await server.scan()
    await slow.held.wait()
    bench.clock.now += 10.0
    bench_time = bench.clock.now
    await server.scan()
    await other.scan()
    assert (len(server), len(other), bench.clock.now) == (1, 0, bench_time)
    slow.released.set()
    await finish(server)
    assert (await bench.get(file_id)).status == "completed"


async def test_a_server_indexes_as_many_files_at_once_as_it_has_slots(bench: Bench) -> None:
    engine = EmbeddingEngine()
    engine.hold_call = 1
    file_ids = [await bench.add("one text"), await bench.add("two text"), await bench.add("three text")]
    server = bench.start_server(engine, slots=2)
    await server.scan()
    await engine.held.wait()
    assert (len(server), server.get_poll_delay()) == (2, 1000)
    engine.released.set()
    await finish(server)
    await bench.index_all(server)
    assert {(await bench.get(file_id)).status for file_id in file_ids} == {"completed"}
    assert server.get_poll_delay() == 100


@pytest.mark.shows("E5.6")
async def test_a_model_that_fails_for_a_moment_is_asked_again(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.errors = [EngineFailed("broken"), Unavailable("away")]
    await bench.index_all(bench.start_server(engine))
    assert (await bench.get(file_id)).status == "completed"
    assert bench.delays == [1.0, 2.0]


@pytest.mark.shows("E5.6")
async def test_a_model_that_keeps_failing_fails_the_file_with_its_reason(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.errors = [EngineFailed("The engine is broken.")] * 6
    await bench.index_all(bench.start_server(engine))
    row = await bench.get(file_id)
    assert (row.status, row.error_code) == ("failed", "server_error")
    assert "The engine is broken." in (row.error_message or "")


async def test_a_file_waits_for_a_model_that_is_away(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.errors = [Unavailable("away")] * 6
    server = bench.start_server(engine)
    await server.scan()
    await finish(server)
    await server.scan()
    assert (len(server), (await bench.get(file_id)).status) == (0, "in_progress")
    bench.clock.now += 61.0
    await bench.index_all(server)
    assert (await bench.get(file_id)).status == "completed"


async def test_after_an_hour_without_a_model_the_file_has_failed(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.errors = [Unavailable("The engine is away.")] * 600
    server = bench.start_server(engine)
    for attempt in range(10):
        assert (await bench.get(file_id)).status == "in_progress", attempt
        await server.scan()
        await finish(server)
        bench.clock.now += 601.0
    row = await bench.get(file_id)
    assert (row.status, row.error_code, row.error_message) == ("failed", "server_error", "The engine is away.")


async def test_vectors_of_another_dimension_are_not_mixed(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    server = bench.start_server(engine)
    await bench.index_all(server)
    engine.size = 32
    other = await bench.add("another text")
    await bench.index_all(server)
    row = await bench.get(other)
    assert (row.status, row.error_code) == ("failed", "server_error")
    assert "32 dimensions" in (row.error_message or "")
    assert (await bench.get(file_id)).status == "completed"


@pytest.mark.parametrize("gone", ["removed", "deleted", "store deleted"])
async def test_a_file_that_disappears_while_it_is_indexed_leaves_nothing(bench: Bench, gone: str) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.hold_call = 1
    server = bench.start_server(engine)
    await server.scan()
    await engine.held.wait()
    if gone == "removed":
        await bench.store.remove_vector_file(TENANT, STORE, file_id)
    elif gone == "deleted":
        await bench.files.delete(TENANT, file_id)
    else:
        await bench.store.delete_vector_store(TENANT, STORE)
    engine.released.set()
    await finish(server)
    assert await bench.store.vector_file(TENANT, STORE, file_id) is None
    while await bench.store.purge_vector_chunks(100):
        pass
    assert await bench.read(file_id) == ""


async def test_work_is_stopped_once_its_file_is_removed(bench: Bench) -> None:
    engine, file_id = EmbeddingEngine(), await bench.add()
    engine.hold_call = 1
    server = bench.start_server(engine)
    await server.scan()
    await engine.held.wait()
    await bench.store.remove_vector_file(TENANT, STORE, file_id)
    await server.scan()
    await finish(server)  # although the engine never answers


@pytest.mark.shows("E5.12")
async def test_another_model_in_the_settings_indexes_all_files_again(bench: Bench) -> None:
    file_id = await bench.add()
    await bench.index_all(bench.start_server(EmbeddingEngine()))
    engine = EmbeddingEngine()
    engine.size = 32
    server = bench.start_server(engine, model="other")
    await bench.index_all(server)
    row, store = await bench.get(file_id), await bench.store.vector_store(TENANT, STORE)
    assert store is not None
    assert (row.status, store.embedder, store.dimensions) == ("completed", "other", 32)
    assert await bench.read(file_id) == TEXT
    calls = len(engine.calls)
    await bench.index_all(bench.start_server(engine, model="other"))
    assert len(engine.calls) == calls


async def test_a_text_with_too_many_tokens_is_an_invalid_file(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr("antiphon.service.vector_stores.file_indexer._MAX_TOKENS", 100)
    file_id = await bench.add()
    await bench.index_all(bench.start_server(EmbeddingEngine()))
    row = await bench.get(file_id)
    assert (row.status, row.error_code) == ("failed", "invalid_file")
    assert "more than 100 tokens" in (row.error_message or "")
