"""Vector stores in the files drill: what clients do with them, and what must hold after a kill.

Each file that was added ends as completed, and its chunks joined are its text. No search ever finds only some of them.
At the end no chunk, no row of the text index and no job is left that belongs to no file.
"""

import asyncio
import random
import time

from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.store import Store
from drills.harness.client import Client
from drills.state.file_ledger import Attachment, FileLedger, get_tag

INDEX_SECONDS = 30.0  # for all files that a killed server has left
METHODS = (
    *("create_vector_store", "add_vector_files", "claim_vector_files", "write_chunks", "finish_vector_file"),
    *("remove_vector_file", "delete_vector_store"),
)
_STORES = 3
_BATCH_FILES = 4
_PAGE = 100
_POLL_SECONDS = 0.05
_CHUNKING = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
_BY_WORDS = {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}}
_ORPHANS = {
    "chunks of no file": """vector_chunks c WHERE NOT EXISTS (
        SELECT 1 FROM vector_files f WHERE f.store = c.store AND f.file = c.file AND f.visible = c.fence
    )""",
    "vectors of no chunk": "vector_embeddings WHERE chunk NOT IN (SELECT id FROM vector_chunks)",
    "chunks without vectors": "vector_chunks WHERE id NOT IN (SELECT chunk FROM vector_embeddings)",
    "jobs that have not ended": "vector_files WHERE status = 'in_progress'",
    "jobs of no vector store": "vector_files WHERE store NOT IN (SELECT id FROM vector_stores)",
    "jobs of no file": "vector_files WHERE file NOT IN (SELECT id FROM files)",
    "batches of no vector store": "vector_batches WHERE store NOT IN (SELECT id FROM vector_stores)",
    "chunks that are still to be deleted": "vector_garbage",
}
_TEXT_TABLES = "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'"


async def create_store(client: Client, ledger: FileLedger) -> None:
    if len(ledger.stores) < _STORES:
        files = random.sample(texts := ledger.find_texts(), min(len(texts), _BATCH_FILES))
        with ledger.use("", *files):
            body = {"file_ids": files, "chunking_strategy": _CHUNKING}
            store = ledger.accept(await client.post(body, "/v1/vector_stores"))["id"]
        ledger.stores.add(store)
        ledger.attached |= {(store, file) for file in files}


async def delete_store(client: Client, ledger: FileLedger) -> None:
    if len(ledger.stores) >= _STORES and (unused := ledger.find_unused_stores()):
        store = random.choice(unused)
        ledger.deleting_stores.add(store)
        ledger.accept(await client.send("DELETE", f"/v1/vector_stores/{store}"))
        ledger.deleting_stores.discard(store)
        ledger.deleted_stores.add(store)
        ledger.stores.discard(store)


async def attach_file(client: Client, ledger: FileLedger) -> None:
    """Add a file to a vector store, which may have it already."""
    for store, file in _choose_new(ledger, 1):
        with ledger.use(store, file):
            body = {"file_id": file, "chunking_strategy": _CHUNKING}
            ledger.accept(await client.post(body, f"/v1/vector_stores/{store}/files"))
            ledger.attached.add((store, file))


async def attach_batch(client: Client, ledger: FileLedger) -> None:
    if chosen := _choose_new(ledger, _BATCH_FILES):
        store, files = chosen[0][0], [file for _, file in chosen]
        with ledger.use(store, *files):
            body = {"file_ids": files, "chunking_strategy": _CHUNKING}
            ledger.accept(await client.post(body, f"/v1/vector_stores/{store}/file_batches"))
            ledger.attached |= {*chosen}


async def detach_file(client: Client, ledger: FileLedger) -> None:
    if attached := ledger.find_attached():
        store, file = chosen = random.choice(attached)
        ledger.detaching.add(chosen)
        with ledger.use(store, file):
            ledger.accept(await client.send("DELETE", f"/v1/vector_stores/{store}/files/{file}"))
        ledger.detaching.discard(chosen)
        ledger.attached.discard(chosen)
        ledger.detached.add(chosen)


async def search_file(client: Client, ledger: FileLedger) -> None:
    """Search for a file, which may be in progress."""
    if attached := ledger.find_attached():
        store, file = chosen = random.choice(attached)
        with ledger.use(store, file):
            found = await _search(client, ledger, chosen)
        if found not in (0, len(ledger.find_text(file))):
            ledger.problems.append(f"a search in {store} has found a part of {file}")


def _choose_new(ledger: FileLedger, count: int) -> list[Attachment]:
    """Choose files for one vector store, but none that is being removed from it."""
    if not (stores := ledger.stores - ledger.deleting_stores):
        return []
    store = random.choice([*stores])
    files = [file for file in ledger.find_texts() if (store, file) not in ledger.detaching]
    chosen = [(store, file) for file in random.sample(files, min(len(files), count))]
    ledger.detached -= {*chosen}
    return chosen


async def _search(client: Client, ledger: FileLedger, attachment: Attachment) -> int:
    """Return the length of all chunks of the file that a search for its own word finds."""
    store, file = attachment
    body = {"query": get_tag(ledger.find_text(file)), "max_num_results": 50, "ranking_options": _BY_WORDS}
    hits = ledger.accept(await client.post(body, f"/v1/vector_stores/{store}/search"))["data"]
    return sum(len(hit["content"][0]["text"]) for hit in hits if hit["file_id"] == file)


async def verify_stores(client: Client, ledger: FileLedger) -> list[str]:
    """Return what is wrong with the vector stores of a new server, whose files the ledger has, and take them over."""
    listed = {store["id"] for store in (await client.get(f"/v1/vector_stores?limit={_PAGE}")).json()["data"]}
    wrong = [f"{store}, which was acknowledged, is lost" for store in ledger.stores - ledger.deleting_stores - listed]
    wrong += [f"{store}, which was deleted, has returned" for store in ledger.deleted_stores & listed]
    attached = set[Attachment]()
    for store in listed:
        statuses = await _wait_indexed(client, store)
        attached |= {(store, file) for file in statuses}
        wrong += [f"{file} in {store} is {status}" for file, status in statuses.items() if status != "completed"]
    wrong += [f"{file} in {store} is in no list of files" for store, file in attached if file not in ledger.stored]
    expected = {(store, file) for store, file in ledger.attached - ledger.detaching if file in ledger.stored}
    lost = [(store, file) for store, file in expected - attached if store in listed]
    wrong += [f"{file}, whose addition to {store} was acknowledged, is lost" for store, file in lost]
    wrong += [f"{file}, which was removed from {store}, has returned" for store, file in ledger.detached & attached]
    for attachment in attached:
        wrong += await _verify_text(client, ledger, attachment)
    ledger.deleted_stores |= ledger.deleting_stores - listed
    ledger.detached |= ledger.detaching - attached
    ledger.stores, ledger.attached = listed, attached
    ledger.deleting_stores.clear()
    ledger.detaching.clear()
    return wrong


async def _wait_indexed(client: Client, store: str) -> dict[str, str]:
    """Wait until all files of a vector store are indexed, and return their statuses."""
    deadline = time.monotonic() + INDEX_SECONDS
    while True:
        answer = await client.get(f"/v1/vector_stores/{store}/files?limit={_PAGE}")
        statuses = {file["id"]: file["status"] for file in answer.json()["data"]}
        if "in_progress" not in statuses.values() or time.monotonic() > deadline:
            return statuses
        await asyncio.sleep(_POLL_SECONDS)


async def _verify_text(client: Client, ledger: FileLedger, attachment: Attachment) -> list[str]:
    store, file = attachment
    text, wrong = ledger.find_text(file), []
    content = await client.get(f"/v1/vector_stores/{store}/files/{file}/content")
    if "".join(chunk["text"] for chunk in content.json()["data"]) != text:
        wrong.append(f"{file} in {store} has other chunks than its text")
    if (found := await _search(client, ledger, attachment)) != len(text):
        wrong.append(f"a search in {store} has found {found:,} of {len(text):,} characters of {file}")
    return wrong


async def find_orphans(store: Store) -> list[str]:
    """Return what is left of files that are in no vector store any more, once the sweep has run."""
    found = await store._run(_count_orphans, write=False)
    return found + (await store._run(_count_text_orphans, write=False) if store.name == "sqlite" else [])


def _count_orphans() -> Operation[list[str]]:
    found = []
    for name, condition in _ORPHANS.items():
        if count := (yield sql(f"SELECT COUNT(*) FROM {condition}"))[0][0]:
            found.append(f"{count:,} {name} after the sweep")
    return found


def _count_text_orphans() -> Operation[list[str]]:
    """Compare the text indexes of SQLite with the chunks."""
    found = []
    for (table,) in (yield sql(_TEXT_TABLES)):
        rows = yield sql(
            f"SELECT COUNT(*) FROM {table}_docsize WHERE id NOT IN (SELECT id FROM vector_chunks WHERE store = $1)",
            table.removeprefix("text_"),
        )
        found += [f"{table} has {count:,} rows of no chunk after the sweep" for (count,) in rows if count]
        if not (yield sql("SELECT 1 FROM vector_stores WHERE id = $1", table.removeprefix("text_"))):
            found.append(f"{table} belongs to no vector store")
    return found
