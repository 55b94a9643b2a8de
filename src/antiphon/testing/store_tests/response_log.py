"""Contract suite of stores: lists of responses without their contents, with filters.

Covers `stores/sql/response_log.py`.
"""

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidValue
from antiphon.ids import new_id
from antiphon.stores.base import RowStatus, SummaryFilter
from antiphon.stores.sql import response_log
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    TENANT,
    TTL,
    Clock,
    begin_response,
    make_claim,
    make_end,
    make_inserting_end,
    make_response,
    store_conversation,
    store_response,
)

ALL = SummaryFilter()
RUNNING = SummaryFilter(statuses=frozenset({"queued", "in_progress"}))


async def store_model(store: Store, clock: Clock, model: str, status: RowStatus = "completed") -> str:
    new = replace(make_response(clock), model=model)
    await store.finish(TENANT, replace(make_inserting_end(clock, new), status=status, new=new, summary="{}"))
    return new.id


async def list_ids(
    store: Store, limit: int, descending: bool, wanted: SummaryFilter, tenant: str = TENANT
) -> list[str]:
    """Read all pages and return the ids of their responses."""
    names: list[str] = []
    after: str | None = None
    while True:
        page = await store.page_summaries(tenant, after, limit, descending, wanted)
        assert len(page.rows) <= limit
        names += [row.id for row in page.rows]
        if page.next_after is None:
            return names
        after = page.next_after


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_of_the_log_neither_skip_nor_repeat(store: Store, clock: Clock, limit: int) -> None:
    names = [await store_model(store, clock, "one") for _ in range(4)]
    names += [(await begin_response(store, clock, background=True)).id for _ in range(3)]
    for descending in (False, True):
        order = slice(None, None, -1 if descending else 1)
        assert await list_ids(store, limit, descending, ALL) == sorted(names)[order]
        assert await list_ids(store, limit, descending, RUNNING) == sorted(names[4:])[order]
        assert await list_ids(store, limit, descending, SummaryFilter(model="one")) == sorted(names[:4])[order]


async def test_a_response_is_listed_as_it_begins_and_as_it_ends(store: Store, clock: Clock) -> None:
    new = replace(make_response(clock, background=True), model="m")
    await store.begin(TENANT, new, make_claim(clock))
    [row] = await store.find_summaries(TENANT, [new.id])
    assert (row.status, row.background, row.created, row.ended, row.model) == ("queued", True, clock(), None, "m")
    assert row.summary == ""
    clock.now += 5
    await store.finish(TENANT, replace(make_end(clock, new), summary='{"items":{}}'))
    [row] = await store.find_summaries(TENANT, [new.id])
    assert (row.status, row.ended, row.model, row.summary) == ("completed", clock(), "m", '{"items":{}}')
    assert (await store.page_summaries(TENANT, None, 10, True, ALL)).rows == [row]


async def test_filters_select_by_status_model_and_background(store: Store, clock: Clock) -> None:
    one = await store_model(store, clock, "one")
    failed = await store_model(store, clock, "one", "failed")
    other = await store_model(store, clock, "other")
    queued = (await begin_response(store, clock, background=True)).id
    running = (await begin_response(store, clock)).id
    for wanted, expected in (
        (SummaryFilter(model="one"), {one, failed}),
        (SummaryFilter(model="one", statuses=frozenset({"failed", "queued"})), {failed}),
        (SummaryFilter(statuses=frozenset({"completed", "queued"})), {one, other, queued}),
        (SummaryFilter(background=True), {queued}),
        (SummaryFilter(background=False), {one, failed, other, running}),
        (replace(RUNNING, background=True), {queued}),
        (RUNNING, {queued, running}),
        (replace(RUNNING, model="one"), set()),
        (SummaryFilter(model="o\0ne"), set()),
    ):
        assert {*await list_ids(store, 10, True, wanted)} == expected


async def test_a_filtered_page_ends_after_a_bounded_search(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = await store_model(store, clock, "rare")
    for _ in range(6):
        clock.now += 1
        await store_model(store, clock, "frequent")
    monkeypatch.setattr(response_log, "_MAX_SEARCHED", 3)
    names = [row.id for row in (await store.page_summaries(TENANT, None, 10, True, ALL)).rows]
    page = await store.page_summaries(TENANT, None, 10, True, SummaryFilter(model="rare"))
    assert (page.rows, page.next_after) == ([], names[2])
    assert await list_ids(store, 10, True, SummaryFilter(model="rare")) == [rare]


async def test_deleted_hidden_expired_and_foreign_rows_are_not_listed(store: Store, clock: Clock) -> None:
    old = await store_response(store, clock)
    clock.now += TTL
    parent = await store_response(store, clock)
    child = await store_response(store, clock, parent)
    foreign = await store_response(store, clock, tenant="another")
    await store.delete(TENANT, parent)
    assert await list_ids(store, 10, True, ALL) == [child]
    assert [row.id for row in await store.find_summaries(TENANT, [old, parent, child, foreign, "x\0"])] == [child]
    assert await list_ids(store, 10, True, ALL, tenant="another") == [foreign]


async def test_a_log_cursor_of_another_tenant_is_rejected_like_an_unknown_one(store: Store, clock: Clock) -> None:
    for name in (await store_response(store, clock, tenant="another"), new_id("resp"), "resp_\0"):
        for wanted in (ALL, RUNNING):
            with pytest.raises(InvalidValue) as refused:
                await store.page_summaries(TENANT, name, 10, True, wanted)
            assert refused.value.param == "after"


async def test_a_tree_reaches_over_hidden_responses_and_ends_at_the_tenant(store: Store, clock: Clock) -> None:
    root = await store_response(store, clock)
    hidden = await store_response(store, clock, root)
    one, other = [await store_response(store, clock, hidden) for _ in range(2)]
    leaf = await store_response(store, clock, one)
    await store_response(store, clock)
    await store.delete(TENANT, hidden)
    for name in (root, other, leaf):
        rows, has_more = await store.find_tree(TENANT, name, 100)
        assert (sorted([row.id for row in rows]), has_more) == (sorted([root, one, other, leaf]), False)
    for name in (hidden, new_id("resp"), "resp_\0", await store_response(store, clock, tenant="another")):
        assert await store.find_tree(TENANT, name, 100) == ([], False)


async def test_a_tree_has_the_responses_of_a_conversation_and_their_branches(store: Store, clock: Clock) -> None:
    conversation, other = await store_conversation(store, clock), await store_conversation(store, clock)
    names = []
    for within in (conversation, other, conversation):
        new = make_response(clock, conversation=within)
        await store.finish(TENANT, make_inserting_end(clock, new))
        names.append(new.id)
    branch = await store_response(store, clock, names[0])
    rows, _ = await store.find_tree(TENANT, branch, 100)
    assert {row.id for row in rows} == {names[0], names[2], branch}


async def test_a_tree_is_bounded_and_has_the_way_to_the_response(store: Store, clock: Clock) -> None:
    chain = [await store_response(store, clock)]
    for _ in range(8):
        chain.append(await store_response(store, clock, chain[-1]))
    for _ in range(5):
        await store_response(store, clock, chain[6])
    rows, has_more = await store.find_tree(TENANT, chain[-1], 8)
    assert has_more
    assert len(rows) == 8
    assert {*chain[5:]} <= {row.id for row in rows}


async def test_a_tree_has_more_if_either_its_branches_or_its_ancestors_are_too_many(store: Store, clock: Clock) -> None:
    root = await store_response(store, clock)
    for _ in range(9):
        await store_response(store, clock, root)
    assert (await store.find_tree(TENANT, root, 8))[1]
    chain = [await store_response(store, clock)]
    for _ in range(8):
        chain.append(await store_response(store, clock, chain[-1]))
    rows, has_more = await store.find_tree(TENANT, chain[-1], 8)
    assert (len(rows), has_more) == (4, True)
