"""Lists of the store: a page with all that is left has no successor."""

import pytest

from antiphon.ids import new_id
from antiphon.stores.base import PageQuery, SummaryFilter, UsageRow
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    TENANT,
    Clock,
    begin_response,
    make_item,
    store_conversation,
    store_response,
)
from antiphon.testing.rows.skill_rows import QUOTA, make_skill_version
from antiphon.testing.store_tests.files import add_file, make_file

pytestmark = pytest.mark.anyio


async def test_a_page_with_all_that_is_left_has_no_successor(store: Store, clock: Clock) -> None:
    for _ in range(2):
        conversation = await store_conversation(store, clock, make_item(), make_item())
        await add_file(store, make_file(clock))
        await store.add_skill(TENANT, make_skill_version(clock), QUOTA)
        await store.ask_approval(TENANT, new_id("mcpr"), b"", clock() + 10)
        new = await begin_response(store, clock, background=True)
        await store.expect_outputs(TENANT, new.id, 1, ["call_1"])
        await store.add_usage([UsageRow(day, TENANT, "", 1, 1, 0, 1) for day in (1, 2)], 0)
    for limit, more in ((1, True), (2, False)):
        for page in (
            await store.page_items(TENANT, conversation, None, limit, False),
            await store.page_conversations(TENANT, None, limit, False),
            await store.page_files(TENANT, None, limit, False),
            await store.page_skills(TENANT, PageQuery(limit=limit)),
            await store.page_approvals(TENANT, None, limit, False),
            await store.page_waiting(TENANT, None, limit, False),
            await store.page_responses(TENANT, None, limit, False, 10_000),
            await store.usage(0, None, limit),
        ):
            assert page is not None
            assert (len(page.rows), page.has_more) == (limit, more)
        for statuses in (frozenset[str](), frozenset({"queued"})):
            summaries = await store.page_summaries(TENANT, None, limit, False, SummaryFilter(statuses=statuses))
            assert (len(summaries.rows), summaries.next_after is not None) == (limit, more)


async def test_a_tree_says_whether_responses_are_missing(store: Store, clock: Clock) -> None:
    names: list[str] = []
    for _ in range(4):
        clock.now += 1  # ids of one millisecond have no order
        names.append(await store_response(store, clock, names[-1] if names else None))
    for limit, missing in ((3, True), (4, False)):
        rows, is_cut = await store.find_tree(TENANT, names[0], limit)
        assert ([row.id for row in rows], is_cut) == (names[:limit], missing)
    rows, is_cut = await store.find_tree(TENANT, names[3], 8)  # half of them are those that it continues
    assert ([row.id for row in rows], is_cut) == (names, False)
    assert (await store.find_tree(TENANT, names[3], 6))[1]
