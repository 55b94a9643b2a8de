"""Contract suite of stores: containers in which code runs, and their files.

Covers `stores/sql/containers.py`.
"""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidValue, StorageLimitReached
from antiphon.stores.base import ContainerRow, PageQuery
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.container_rows import SANDBOX, make_container, make_container_file
from antiphon.testing.rows.response_rows import TENANT, Clock
from antiphon.testing.store_tests.responses import MALFORMED_IDS


async def add_container(store: Store, clock: Clock, **fields: str | int) -> ContainerRow:
    """Add a container that runs in its sandbox."""
    row = make_container(clock, **fields)  # type: ignore[arg-type]  # by name
    await store.add_container(TENANT, row, 10)
    assert await store.note_container_start(TENANT, row.id)
    return replace(row, state="running")


async def test_a_container_is_read_as_added_by_its_tenant_only(store: Store, clock: Clock) -> None:
    row = await add_container(store, clock, name="Bücher")
    assert await store.use_container(TENANT, row.id) == row
    assert await store.use_container("other", row.id) is None
    assert await store.delete_container("other", row.id) is None
    for name in MALFORMED_IDS:
        assert await store.use_container(TENANT, name) is None
        assert await store.delete_container(TENANT, name) is None
    assert (await store.page_containers("other", PageQuery())).rows == []


async def test_a_use_postpones_the_expiry_until_it_has_come(store: Store, clock: Clock) -> None:
    row = await add_container(store, clock, minutes=2)
    clock.now += 100
    used = replace(row, last_active=clock.now, expires=clock.now + 120)
    assert await store.use_container(TENANT, row.id) == used
    assert await store.use_container(TENANT, row.id, 50.0) == replace(used, expires=clock.now + 170)
    clock.now += 170
    expired = await store.use_container(TENANT, row.id)
    assert expired is not None
    assert (expired.state, expired.last_active) == ("ended", used.last_active)
    assert [one.state for one in (await store.page_containers(TENANT, PageQuery())).rows] == ["ended"]


async def test_a_tenant_has_a_maximum_of_containers_that_have_not_expired(
    store: Store, other_store: Store, clock: Clock
) -> None:
    rows = [make_container(clock) for _ in range(6)]
    adding = [one.add_container(TENANT, row, 3) for one, row in zip((store, other_store) * 3, rows, strict=True)]
    results = await asyncio.gather(*adding, return_exceptions=True)
    assert [type(one) for one in results if one is not None] == [StorageLimitReached] * 3
    assert len((await store.page_containers(TENANT, PageQuery())).rows) == 3
    await store.add_container("other", make_container(clock), 1)
    clock.now += 1200
    await store.add_container(TENANT, make_container(clock), 1)


async def test_beyond_the_maximum_the_container_of_a_conversation_expires_that_was_not_used_for_longest(
    store: Store, clock: Clock
) -> None:
    made, old, used, running = [
        await add_container(store, clock, prefix=prefix) for prefix in ("cntr", *["cntr_auto"] * 3)
    ]
    clock.now += 1
    await store.use_container(TENANT, used.id)
    await store.use_container(TENANT, running.id, 180.0)
    for evicted in (old, used):
        new = make_container(clock)
        await store.add_container(TENANT, new, 4)
        assert await store.list_due_containers(SANDBOX) == [(TENANT, evicted.id)]
        await store.end_container(TENANT, evicted.id)
    with pytest.raises(StorageLimitReached):
        await store.add_container(TENANT, make_container(clock), 4)
    states = {row.id: row.state for row in (await store.page_containers(TENANT, PageQuery())).rows}
    assert (states[made.id], states[running.id], states[old.id], states[used.id]) == (*["running"] * 2, *["ended"] * 2)


async def test_containers_are_listed_page_by_page_and_by_name(store: Store, clock: Clock) -> None:
    ids = []
    for name in "aab":
        ids.append((await add_container(store, clock, name=name)).id)
        clock.now += 1
    for descending in (False, True):
        first = await store.page_containers(TENANT, PageQuery(limit=2, descending=descending))
        others = await store.page_containers(TENANT, PageQuery(after=first.rows[-1].id, descending=descending))
        found = [row.id for row in (*first.rows, *others.rows)]
        assert (found, first.has_more, others.has_more) == (ids[::-1] if descending else ids, True, False)
    named = await store.page_containers(TENANT, PageQuery(), "a")
    assert [row.id for row in named.rows] == ids[1::-1]
    assert (await store.page_containers(TENANT, PageQuery(), "a\0")).rows == []
    with pytest.raises(InvalidValue):
        await store.page_containers(TENANT, PageQuery(after=ids[2]), "a")


async def test_a_deleted_container_is_hidden_until_its_sandbox_has_stopped_it(store: Store, clock: Clock) -> None:
    row = await add_container(store, clock)
    await store.add_container_files(TENANT, row.id, [make_container_file(clock, "a")])
    assert await store.list_due_containers(SANDBOX) == []
    deleted = await store.delete_container(TENANT, row.id)
    assert deleted is not None
    assert deleted.state == "running"
    assert await store.use_container(TENANT, row.id) is None
    assert await store.delete_container(TENANT, row.id) is None
    assert not await store.note_container_start(TENANT, row.id)
    assert await store.list_due_containers(SANDBOX) == [(TENANT, row.id)]
    assert await store.list_due_containers("other") == []
    await store.end_container(TENANT, row.id)
    assert await store.list_due_containers(SANDBOX) == []
    assert await store.purge_containers(-1.0) == 0  # nothing is left of it


async def test_an_ended_container_has_no_files_and_stays_until_it_is_purged(store: Store, clock: Clock) -> None:
    row, lost = await add_container(store, clock), await add_container(store, clock)
    [file] = await store.add_container_files(TENANT, row.id, [make_container_file(clock, "a")])
    assert {*await store.list_running_containers(SANDBOX)} == {(TENANT, row.id), (TENANT, lost.id)}
    await store.end_container(TENANT, row.id)
    assert await store.list_running_containers(SANDBOX) == [(TENANT, lost.id)]
    ended = await store.use_container(TENANT, row.id)
    assert ended is not None
    assert ended.state == "ended"
    assert await store.container_file(TENANT, row.id, file.id) is None
    assert await store.add_container_files(TENANT, row.id, [file]) == []
    assert not await store.note_container_start(TENANT, row.id)
    assert await store.purge_containers(60.0) == 0
    clock.now += 1200 + 60
    assert await store.purge_containers(60.0) == 2  # also that of a sandbox that stops nothing any more
    assert await store.use_container(TENANT, row.id) is None


async def test_files_of_a_container_keep_their_id_when_they_are_changed(store: Store, clock: Clock) -> None:
    row, other = await add_container(store, clock), await add_container(store, clock)
    first, second = make_container_file(clock, "ä.txt"), make_container_file(clock, "sub/b.txt", size=2)
    assert await store.add_container_files(TENANT, row.id, [first, second]) == [first, second]
    changed = make_container_file(clock, "ä.txt", size=9, source="assistant")
    assert await store.add_container_files(TENANT, row.id, [changed]) == [replace(changed, id=first.id)]
    assert await store.container_file(TENANT, row.id, first.id) == replace(changed, id=first.id)
    assert await store.find_container_path(TENANT, row.id, "sub/b.txt")
    for tenant, container in ((TENANT, other.id), ("other", row.id)):
        assert await store.container_file(tenant, container, first.id) is None
        assert not await store.find_container_path(tenant, container, "sub/b.txt")
    page = await store.page_container_files(TENANT, row.id, PageQuery(limit=1, descending=False))
    assert (len(page.rows), page.has_more) == (1, True)
    others = await store.page_container_files(TENANT, row.id, PageQuery(after=page.rows[0].id, descending=False))
    assert {page.rows[0].path, others.rows[0].path} == {"ä.txt", "sub/b.txt"}
    await store.delete_container_file(TENANT, row.id, first.id)
    assert [one.id for one in (await store.page_container_files(TENANT, row.id, PageQuery())).rows] == [second.id]
    await store.add_container_files("other", row.id, [first])
    assert (await store.page_container_files("other", row.id, PageQuery())).rows == []
