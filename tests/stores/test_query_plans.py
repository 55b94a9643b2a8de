"""How SQLite finds rows: never by looking at all of them, whatever is asked."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from antiphon.service.access.api_key_format import issue
from antiphon.stores.base import Bounds, Store
from antiphon.stores.sqlite import SqliteStore
from tests.stores.rows import TENANT, TTL, Clock, end, item, kept, key, owner, response, running, talk

pytestmark = pytest.mark.anyio

# Scans that are short by nature: what an operation has just found, what runs, a few rows for each owner or tenant, and
# one key, or all of them where all are asked for.
SHORT = re.compile(
    r"SCAN (walk|up|gone|owners|totals|api_keys|responses USING COVERING INDEX responses_(running|queue))\b"
)


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """The statements of all connections that are made meanwhile, with the values of the last time."""
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


async def do_everything(store: Store, clock: Clock) -> None:
    first = await kept(store, clock)
    second = await kept(store, clock, first)
    third = await running(store, clock, background=True, previous=second)
    one, other = item("one"), item("other")
    conversation = await talk(store, clock, one)
    turn = response(clock, background=True, conversation=conversation)
    await store.begin(TENANT, turn, owner(clock), key(clock), room=10)
    await store.begin(TENANT, response(clock), owner(clock), key(clock))
    await store.keyed(TENANT, key(clock))
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
    await store.finish(TENANT, end(clock, turn, items=(other,)))
    await store.finish(TENANT, end(clock, turn))
    await store.release(TENANT, third.id, 1)
    clock.now += 100
    await store.renew(owner(clock), [])
    await store.claim(owner(clock), 10)
    await store.take(TENANT, third.id, owner(clock))
    await store.get(TENANT, third.id)
    await store.chain(TENANT, third.id, frozenset([first]))
    for name in (first, second, third.id):
        await store.delete(TENANT, name)
    await store.merge_metadata(TENANT, conversation, {"a": None}, 10)
    await store.add_items(TENANT, conversation, [one, item("new")], 100)
    await store.all_items(TENANT, conversation)
    for descending in (False, True):
        await store.page_items(TENANT, conversation, one.id, 10, descending)
    await store.item(TENANT, conversation, one.id)
    await store.find_item(TENANT, one.id)
    await store.delete_item(TENANT, conversation, one.id)
    await store.delete_conversation(TENANT, await talk(store, clock, item()))
    for descending in (False, True):
        await store.page_responses(TENANT, turn.id, 10, descending, 1000)
        await store.page_conversations(TENANT, conversation, 10, descending)
    row, _ = issue(TENANT, "", (), clock(), None)
    await store.add_api_key(row)
    await store.find_api_keys([row.id])
    await store.has_api_keys()
    await store.api_keys()
    await store.revoke_api_key(row.id)
    for bounds in (Bounds(conversations=0), Bounds(entries=0), Bounds(bytes=0)):
        await kept(store, clock)
        await talk(store, clock, item())
        await store.sweep(bounds)
    clock.now += 2 * TTL
    await store.sweep(Bounds())
    await store.tenants()


async def test_no_statement_looks_at_all_rows(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "store.db"), Clock()
    with watched() as seen:
        store = SqliteStore(path, TTL, clock)
        await store.open()
        await do_everything(store, clock)
        await store.close()
    with closing(apsw.Connection(path)) as connection:
        for text, values in list(seen.items()):
            if text.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT", "WITH"):
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)]
                assert [step for step in plan if is_long(step)] == [], text


def is_long(step: str) -> bool:
    if step.startswith("SCAN"):
        return not SHORT.match(step)
    return "AUTOMATIC" in step or (step.endswith("(tenant=?)") and "conversations_used" not in step)
