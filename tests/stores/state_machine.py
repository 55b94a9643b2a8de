"""A state machine that runs the same operations on a store and on `ReferenceStore`.

After every step both must hold the same rows, and the totals of the store must match its rows.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.errors import UnknownConversation, UnknownPrevious
from antiphon.stores.base import OwnershipLost, RetentionBounds
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import (
    Clock,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_response,
    store_conversation,
)
from tests.stores.reference_store import ReferenceConversation, ReferenceRow, ReferenceStore, compute_expiry

T = TypeVar("T")
Query = Callable[[str], list[tuple[Any, ...]]]

TENANTS = st.sampled_from(["a", "b"])
NUMBERS = st.integers(0, 1000)
OWNERS = st.sampled_from(["one", "two"])
CALLS = st.sampled_from(["call_a", "call_b"])
LARGE_BYTES = 90  # of requests and items in this test
TEXTS = st.sampled_from(["short", "long" * LARGE_BYTES])

# Each query returns the rows that violate an invariant, for example sums in `totals` that differ from the rows.
CONSISTENCY_CHECKS = [
    "SELECT tenant, SUM(entries), SUM(hidden) FROM totals GROUP BY tenant HAVING SUM(entries) <> 0 "
    "EXCEPT SELECT tenant, COUNT(*), SUM(hidden) FROM responses GROUP BY tenant",
    "SELECT tenant, SUM(bytes) FROM totals GROUP BY tenant HAVING SUM(bytes) <> 0 EXCEPT SELECT tenant, SUM(bytes) "
    "FROM (SELECT tenant, bytes FROM responses UNION ALL SELECT tenant, bytes FROM items) AS sizes GROUP BY tenant",
    "SELECT tenant, SUM(conversations) FROM totals GROUP BY tenant HAVING SUM(conversations) <> 0 "
    "EXCEPT SELECT tenant, COUNT(*) FROM conversations WHERE expires IS NULL GROUP BY tenant",
    "SELECT id FROM responses WHERE bytes <> LENGTH(request) + LENGTH(response) + COALESCE(LENGTH(tape), 0) + "
    "(SELECT COALESCE(SUM(LENGTH(piece)), 0) FROM pieces WHERE pieces.tenant = responses.tenant AND holder = id)",
    "SELECT id FROM items WHERE bytes <> COALESCE(LENGTH(item), 0) + "
    "(SELECT COALESCE(SUM(LENGTH(piece)), 0) FROM pieces WHERE pieces.tenant = items.tenant "
    "AND holder = conversation || '/' || id)",
    "SELECT tenant, holder FROM pieces EXCEPT SELECT tenant, id FROM responses "
    "EXCEPT SELECT tenant, conversation || '/' || id FROM items",
    "SELECT id, items, bytes FROM conversations WHERE items <> 0 OR bytes <> 0 EXCEPT "
    "SELECT conversation, COUNT(item), SUM(bytes) FROM items GROUP BY conversation",
    "SELECT id FROM responses WHERE hidden = 1 AND "
    "(tape IS NOT NULL OR expires IS NOT NULL OR ended IS NULL OR owner IS NOT NULL)",
    "SELECT previous FROM responses WHERE previous IS NOT NULL EXCEPT SELECT id FROM responses",
    "SELECT id FROM live EXCEPT SELECT id FROM responses WHERE ended IS NULL",
    "SELECT id FROM outputs EXCEPT SELECT id FROM responses WHERE ended IS NULL AND waited = 1",
    "SELECT response FROM keys EXCEPT SELECT id FROM responses WHERE hidden = 0",
]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, make: Callable[[Clock], Store], query: Query) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self.clock = Clock()
        self.model = ReferenceStore()
        self.store = make(self.clock)
        self.query = query
        self.run(self.store.open())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def teardown(self) -> None:
        self.run(self.store.close())
        self._runner.close()

    def pick_row(self, number: int) -> ReferenceRow | None:
        rows = list(self.model.rows.values())
        return rows[number % len(rows)] if rows else None

    @rule(
        tenant=TENANTS,
        background=st.booleans(),
        parent=NUMBERS,
        continues=st.booleans(),
        once=st.booleans(),
        text=TEXTS,
    )
    def create(self, tenant: str, background: bool, parent: int, continues: bool, once: bool, text: str) -> None:
        row = self.pick_row(parent) if continues else None
        previous = row.new.id if row else None
        new = make_response(self.clock, background=background, previous=previous, text=text)
        claim = make_claim(self.clock, "one")
        ended = make_inserting_end(self.clock, new)
        operation: Coroutine[Any, Any, Any] = (
            self.store.finish(tenant, ended) if once else self.store.begin(tenant, new, claim)
        )
        try:
            self.run(operation)
        except UnknownPrevious:
            assert previous
            assert not self.model.is_visible(tenant, previous, self.clock())
            return
        assert previous is None or self.model.is_visible(tenant, previous, self.clock())
        made = ReferenceRow(tenant=tenant, new=new, fence=0 if once else 1, owner=claim.owner, lease=claim.until)
        self.model.rows[new.id] = made
        if once:
            self.model.finish(made, compute_expiry(self.clock()))

    @rule(which=NUMBERS, behind=st.sampled_from([0, 0, 0, 1]))
    def finish(self, which: int, behind: int) -> None:
        row = self.pick_row(which)
        if row is None or row.fence == 0:
            return
        fence = row.fence - behind
        lost = behind or row.deleted_while_running
        try:
            self.run(self.store.finish(row.tenant, make_end(self.clock, row.new, fence)))
        except OwnershipLost:
            assert lost
            return
        assert not lost
        if row.running:
            self.model.finish(row, compute_expiry(self.clock()))

    @rule(which=NUMBERS, behind=st.sampled_from([0, 0, 0, 1]), call=CALLS)
    def expect_output(self, which: int, behind: int, call: str) -> None:
        row = self.pick_row(which)
        if row is None:
            return
        try:
            self.run(self.store.expect_outputs(row.tenant, row.new.id, row.fence - behind, [call]))
        except OwnershipLost:
            assert behind or not row.running
            return
        assert row.running
        assert not behind
        row.calls.setdefault(call, None)

    @rule(which=NUMBERS, tenant=TENANTS, call=CALLS)
    def submit_output(self, which: int, tenant: str, call: str) -> None:
        row = self.pick_row(which)
        if row is not None:
            outcome = self.run(self.store.submit_output(tenant, row.new.id, call, tenant.encode()))
            assert outcome == self.model.submit(tenant, row.new.id, call, tenant.encode(), self.clock())

    @rule(which=NUMBERS, who=OWNERS)
    def take(self, which: int, who: str) -> None:
        row = self.pick_row(which)
        claim = make_claim(self.clock, who)
        if row is not None:
            taken = self.run(self.store.take(row.tenant, row.new.id, claim))
            assert (taken is not None) == row.running
            if taken is not None:
                self.model.take(row, claim)

    @rule(who=OWNERS)
    def renew(self, who: str) -> None:
        mine = {row.new.id for row in self.model.rows.values() if row.running and row.owner == who}
        claim = make_claim(self.clock, who)
        assert self.run(self.store.renew(claim, mine)) == mine
        self.model.owners[who] = claim.until

    @rule(who=OWNERS)
    def claim(self, who: str) -> None:
        claim = make_claim(self.clock, who)
        expected = self.model.find_orphans(self.clock())
        claimed = self.run(self.store.claim(claim, 1000))
        assert [one.row.id for one in claimed] == [row.new.id for row in expected]
        for row in expected:
            self.model.take(row, claim)

    @rule(which=NUMBERS, twice=st.booleans())
    def delete(self, which: int, twice: bool) -> None:
        row = self.pick_row(which)
        if row is not None:
            seen = self.model.is_visible(row.tenant, row.new.id, self.clock())
            assert self.run(self.store.delete(row.tenant, row.new.id)) == seen
            if seen:
                self.model.delete(row.new.id)

    @rule(seconds=st.sampled_from([1, 5, 20, 400]))
    def advance_clock(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(entries=st.sampled_from([None, None, 0, 2, 5]), limit=st.sampled_from([1, 3, 500]))
    def sweep(self, entries: int | None, limit: int) -> None:
        while self.run(self.store.sweep(RetentionBounds(entries=entries), limit)):
            pass
        self.model.sweep(self.clock(), entries)

    @rule(tenant=TENANTS, count=st.integers(0, 3), text=TEXTS)
    def add_conversation(self, tenant: str, count: int, text: str) -> None:
        rows = [make_item(text) for _ in range(count)]
        name = self.run(store_conversation(self.store, self.clock, *rows, tenant=tenant))
        self.model.talks[name] = ReferenceConversation(tenant, [row.id for row in rows])

    @precondition(lambda self: self.model.talks)
    @rule(which=NUMBERS, count=st.integers(1, 3), responds=st.booleans(), text=TEXTS)
    def add_to_conversation(self, which: int, count: int, responds: bool, text: str) -> None:
        name, conversation = list(self.model.talks.items())[which % len(self.model.talks)]
        rows = tuple(make_item(text) for _ in range(count))
        if responds:
            new = make_response(self.clock, conversation=name)
            try:
                self.run(self.store.begin(conversation.tenant, new, make_claim(self.clock)))
            except UnknownConversation:
                assert conversation.deleted
                return
            self.run(self.store.finish(conversation.tenant, make_end(self.clock, new, items=rows)))
            self.model.rows[new.id] = made = ReferenceRow(tenant=conversation.tenant, new=new, fence=1)
            self.model.finish(made, compute_expiry(self.clock()))
        else:
            added = self.run(self.store.add_items(conversation.tenant, name, rows, 1000))
            assert added != conversation.deleted
        if not conversation.deleted:
            conversation.items += [row.id for row in rows]

    @precondition(lambda self: self.model.talks)
    @rule(which=NUMBERS, whole=st.booleans())
    def delete_from_conversation(self, which: int, whole: bool) -> None:
        name, conversation = list(self.model.talks.items())[which % len(self.model.talks)]
        if whole:
            assert self.run(self.store.delete_conversation(conversation.tenant, name)) != conversation.deleted
            conversation.deleted = True
        elif conversation.items:
            gone = conversation.items[which % len(conversation.items)]
            assert self.run(self.store.delete_item(conversation.tenant, name, gone)) != conversation.deleted
            if not conversation.deleted:
                conversation.items.remove(gone)

    @invariant()
    def responses_match(self) -> None:
        for name, row in self.model.rows.items():
            seen = self.model.is_visible(row.tenant, name, self.clock())
            found = self.run(self.store.get(row.tenant, name))
            assert (found is not None) == seen
            if found is not None:
                assert found.request == row.new.request
                assert (found.fence, found.packed_log is None, found.attempts) == (row.fence, row.running, row.attempts)
            assert self.run(self.store.outputs(row.tenant, name)) == row.calls
            chain = self.run(self.store.chain(row.tenant, name))
            assert [link.id for link in chain] == self.model.chain(row.tenant, name, self.clock())

    @invariant()
    def conversations_match(self) -> None:
        for name, conversation in self.model.talks.items():
            page = self.run(self.store.page_items(conversation.tenant, name, None, 1000, False))
            assert (page is None) == conversation.deleted
            if page is not None:
                assert [row.id for row in page.rows] == conversation.items

    @invariant()
    def lists_match(self) -> None:
        now, model = self.clock(), self.model
        for tenant in ("a", "b"):
            rows = self.run(self.store.page_responses(tenant, None, 1000, True, 1 << 30)).rows
            seen = [name for name in model.rows if model.is_visible(tenant, name, now)]
            assert [row.id for row in rows] == sorted(seen, reverse=True)
            conversations = self.run(self.store.page_conversations(tenant, None, 1000, False)).rows
            expected = [
                name
                for name, conversation in model.talks.items()
                if conversation.tenant == tenant and not conversation.deleted
            ]
            assert [row.id for row in conversations] == sorted(expected)

    @invariant()
    def totals_match(self) -> None:
        entries = {tenant: count for tenant, (count, _) in self.run(self.store.tenants()).items() if count}
        rows = [row.tenant for row in self.model.rows.values()]
        assert entries == {tenant: rows.count(tenant) for tenant in set(rows)}
        assert self.query(";".join(CONSISTENCY_CHECKS)) == []
