"""The query plans of SQLite: no statement of a store scans a whole table."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from antiphon.core.image_generation import StoredImage
from antiphon.service.access.api_keys import issue
from antiphon.stores.base import PageQuery, RetentionBounds, SummaryFilter, UsageRow
from antiphon.stores.sql.operation import LARGE_BYTES
from antiphon.stores.sql.store import Store
from antiphon.stores.sqlite import SqliteStore
from antiphon.stores.vector_rows import VectorStoreUpdate
from antiphon.testing.rows.container_rows import make_container, make_container_file
from antiphon.testing.rows.response_rows import (
    TENANT,
    TTL,
    Clock,
    begin_response,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_key,
    make_response,
    store_conversation,
    store_response,
)
from antiphon.testing.rows.skill_rows import QUOTA, make_skill_version
from antiphon.testing.rows.vector_rows import EMBEDDER, attach_file, claim_one, create_vector_store, index_texts

pytestmark = pytest.mark.anyio

# Scans that are always short: rows that the operation has just found, running responses, files that wait to be indexed,
# a few rows per owner or tenant, and API keys, of which one or all are requested. A text index finds rows by words, and
# subqueries that count them have a limit.
SHORT_SCANS = re.compile(
    r"SCAN (walk|up|gone|searched|owners|totals|api_keys|responses USING COVERING INDEX responses_(running|queue)"
    r"|vector_garbage|vector_files USING COVERING INDEX vector_files_queue|text_vs_\w+|.subquery)\b"
)


# Lists of a tenant in the order of an index, its running responses, and sums for its quotas.
TENANT_SCANS = re.compile(
    r"conversations_used|responses_running|vector_files_queue|vector_stores_\w+|files_size|containers_created|skills_created|skill_versions_\w+"
)


@contextmanager
def trace_statements() -> Iterator[dict[str, Any]]:
    """Collect the statements of all connections opened in this context, each with its latest values."""
    seen: dict[str, Any] = {}

    def note(_: apsw.Cursor, text: str, values: Any) -> bool:
        seen[text] = values
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = note

    apsw.connection_hooks.append(hook)
    try:
        yield seen
    finally:
        apsw.connection_hooks.remove(hook)


async def run_all_operations(store: Store, clock: Clock) -> None:
    first = await store_response(store, clock)
    second = await store_response(store, clock, first)
    third = await begin_response(store, clock, background=True, previous=second)
    one, other = make_item("one"), make_item("other")
    conversation = await store_conversation(store, clock, one)
    turn = make_response(clock, background=True, conversation=conversation)
    await store.begin(TENANT, turn, make_claim(clock), make_key(clock), max_background=10)
    await store.begin(TENANT, make_response(clock), make_claim(clock), make_key(clock))
    large = make_response(clock, text="x" * LARGE_BYTES, previous=first)
    await store.begin(TENANT, large, make_claim(clock))
    await store.get(TENANT, large.id)
    await store.finish(TENANT, make_end(clock, large))
    await store.delete(TENANT, large.id)
    await store.keyed(TENANT, make_key(clock))
    await store.start(TENANT, third.id, 1)
    await store.append(TENANT, third.id, 1, 0, b"batch")
    await store.read(TENANT, third.id, -1)
    await store.expect_outputs(TENANT, third.id, 1, ["call"])
    for _ in range(2):
        await store.submit_output(TENANT, third.id, "call", b"output")
    await store.outputs(TENANT, third.id)
    await store.expect_outputs(TENANT, turn.id, 1, ["call"])
    await store.ask_approval(TENANT, "asked", b"digest", clock() + 10)
    await store.approval(TENANT, "asked")
    await store.use_approval(TENANT, "asked", b"digest")
    await store.deny_approval(TENANT, "asked")
    for descending in (False, True):
        await store.page_approvals(TENANT, "asked", 10, descending)
        await store.page_waiting(TENANT, third.id, 10, descending)
    await store.finish(TENANT, make_end(clock, turn, items=(other,)))
    await store.finish(TENANT, make_end(clock, turn))
    await store.release(TENANT, third.id, 1)
    clock.now += 100
    await store.renew(make_claim(clock), [])
    await store.claim(make_claim(clock), 10)
    await store.take(TENANT, third.id, make_claim(clock))
    await store.get(TENANT, third.id)
    await store.chain(TENANT, third.id, frozenset([first]))
    for name in (first, second, third.id):
        await store.delete(TENANT, name)
    await store.merge_metadata(TENANT, conversation, {"a": None}, 10)
    await store.add_items(TENANT, conversation, [one, make_item("new")], 100)
    await store.all_items(TENANT, conversation)
    for descending in (False, True):
        await store.page_items(TENANT, conversation, one.id, 10, descending)
    await store.item(TENANT, conversation, one.id)
    await store.find_item(TENANT, one.id)
    await store.delete_item(TENANT, conversation, one.id)
    await store.delete_conversation(TENANT, await store_conversation(store, clock, make_item()))
    for descending in (False, True):
        await store.page_responses(TENANT, turn.id, 10, descending, 1000)
        await store.page_conversations(TENANT, conversation, 10, descending)
        for wanted in (SummaryFilter(), SummaryFilter(statuses=frozenset({"failed"}), model="m", background=True)):
            await store.page_summaries(TENANT, turn.id, 10, descending, wanted)
    await store.page_summaries(TENANT, None, 10, True, SummaryFilter(statuses=frozenset({"queued"})))
    await store.find_summaries(TENANT, [turn.id])
    await store.find_tree(TENANT, turn.id, 10)
    row, _ = issue(TENANT, "", (), clock(), None)
    await store.add_api_key(row)
    await store.find_api_keys([row.id])
    await store.has_api_keys()
    await store.api_keys()
    await store.page_api_keys(TENANT, row.id, 10, True)
    await store.page_api_keys(None, None, 10, False)
    await store.revoke_api_key(row.id)
    for bounds in (RetentionBounds(conversations=0), RetentionBounds(entries=0), RetentionBounds(bytes=0)):
        await store_response(store, clock)
        await store_conversation(store, clock, make_item())
        await store.sweep(bounds)
    clock.now += 2 * TTL
    await store.sweep(RetentionBounds())
    await store.tenants()
    await store.add_usage([UsageRow(1, TENANT, "", 1, 1, 1, 1)], 0)
    await store.usage(1, TENANT, 10)
    await store.usage(1, None, 10)


async def run_vector_operations(store: Store, clock: Clock) -> None:
    name = await create_vector_store(store, clock, days=1)
    file = await index_texts(store, clock, name, ["some text"])
    await store.vector_store(TENANT, name)
    await store.update_vector_store(TENANT, name, VectorStoreUpdate(name="new"))
    await store.touch_vector_store(TENANT, name)
    await store.vector_store_version(TENANT, name)
    await store.vector_file(TENANT, name, file)
    for query in (PageQuery(), PageQuery(after=name), PageQuery(before=name)):
        await store.page_vector_stores(TENANT, query)
    for query in (PageQuery(), PageQuery(after=file), PageQuery(before=file)):
        await store.page_vector_files(TENANT, name, query)
    await store.set_vector_attributes(TENANT, name, file, {})
    await store.page_chunks(TENANT, name, file, 0, 1)
    await store.list_searchable_files(TENANT, name)
    loaded = await store.load_vectors(TENANT, name, EMBEDDER, (0, 0), 1)
    await store.read_vectors([row.chunk for row in loaded])
    await store.read_chunks(TENANT, name, [row.chunk for row in loaded])
    await store.search_text(TENANT, name, ["text"], 1, [file])
    await store.reindex_vector_files("other", 1)
    await store.index_words_again(1)
    await attach_file(store, clock, name, batch="vsfb_1")
    await store.page_vector_files(TENANT, name, PageQuery(), "completed", "vsfb_1")
    await store.cancel_vector_batch(TENANT, name, "vsfb_1")
    job = await claim_one(store, clock)
    await store.renew_vector_files(make_claim(clock), [job.key])
    await store.release_vector_file(job.key, 0, 0)
    await store.remove_vector_file(TENANT, name, file)
    await store.delete_file(TENANT, file)
    clock.now += 86400
    await store.expire_vector_stores()
    await store.delete_vector_store(TENANT, name)
    await store.purge_vector_chunks(100)


async def run_container_operations(store: Store, clock: Clock) -> None:
    row, file = make_container(clock), make_container_file(clock, "a.txt")
    await store.add_container(TENANT, row, 10)
    await store.note_container_start(TENANT, row.id)
    await store.use_container(TENANT, row.id, 10.0)
    await store.add_container_files(TENANT, row.id, [file])
    await store.container_file(TENANT, row.id, file.id)
    await store.find_container_path(TENANT, row.id, file.path)
    for query in (PageQuery(), PageQuery(after=row.id)):
        await store.page_containers(TENANT, query)
        await store.page_containers(TENANT, query, row.name)
    await store.page_container_files(TENANT, row.id, PageQuery(after=file.id))
    await store.delete_container_file(TENANT, row.id, file.id)
    await store.list_running_containers(row.sandbox)
    await store.list_due_containers(row.sandbox)
    await store.delete_container(TENANT, row.id)
    await store.end_container(TENANT, row.id)
    await store.add_container(TENANT, row, 10)
    clock.now += 86_400
    assert await store.purge_containers(60.0) == 1


async def run_skill_operations(store: Store, clock: Clock) -> None:
    first, second = make_skill_version(clock), make_skill_version(clock)
    await store.add_skill(TENANT, first, QUOTA)
    await store.add_skill_version(TENANT, replace(second, skill=first.skill), QUOTA, True)
    for query in (PageQuery(), PageQuery(after=first.skill, descending=False)):
        await store.page_skills(TENANT, query)
    for query in (PageQuery(), PageQuery(after=first.id, descending=False)):
        await store.page_skill_versions(TENANT, first.skill, query)
    await store.skill_version(TENANT, first.skill, "latest")
    await store.set_default_version(TENANT, first.skill, "1")
    assert await store.delete_skill_version(TENANT, first.skill, 2) == [second.content]
    assert await store.delete_skill(TENANT, first.skill) == [first.content]


async def run_image_operations(store: Store, clock: Clock) -> None:
    new, image = make_response(clock), StoredImage("file-" + "0" * 32, 3)
    await store.finish(TENANT, replace(make_inserting_end(clock, new), images=[image.key]))
    await store.finish(TENANT, make_inserting_end(clock, make_response(clock, text=str(image))))
    assert await store.has_image(TENANT, image.key)
    assert await store.list_images(TENANT, new.id) == [image.key]
    assert await store.find_unused(image.key) == []
    assert await store.delete(TENANT, new.id)


@pytest.mark.parametrize(
    "run_operations",
    [run_all_operations, run_vector_operations, run_container_operations, run_skill_operations, run_image_operations],
)
async def test_no_statement_scans_all_rows(
    run_operations: Callable[[Store, Clock], Awaitable[None]], tmp_path: Path
) -> None:
    path, clock = str(tmp_path / "store.db"), Clock()
    empty = SqliteStore(path, TTL, clock)
    await empty.open()  # migrations may scan all rows, once
    await empty.close()
    with trace_statements() as seen:
        store = SqliteStore(path, TTL, clock)
        await store.open()
        await run_operations(store, clock)
        await store.close()
    with closing(apsw.Connection(path)) as connection:
        for text, values in list(seen.items()):
            if text.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH"):
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)]
                assert [step for step in plan if is_slow(step)] == [], text


def is_slow(step: str) -> bool:
    if step.startswith("SCAN"):
        return not SHORT_SCANS.match(step)
    return "AUTOMATIC" in step or (step.endswith(("(tenant=?)", "(store=?)")) and not TENANT_SCANS.search(step))
