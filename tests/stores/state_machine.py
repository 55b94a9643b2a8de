"""A store and its model side by side: whatever is done to both, they stay alike, and the totals are what is there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.errors import UnknownConversation, UnknownPrevious
from antiphon.stores.base import Bounds, Lost, Store
from tests.stores.reference_store import Model, Row, Talk, expiry
from tests.stores.rows import Clock, end, item, owner, response, talk, whole

T = TypeVar("T")
Count = Callable[[str], list[tuple[Any, ...]]]

TENANTS = st.sampled_from(["a", "b"])
NUMBERS = st.integers(0, 1000)
OWNERS = st.sampled_from(["one", "two"])
CALLS = st.sampled_from(["call_a", "call_b"])

# What `totals` says against what is there: the difference must be empty.
RECOUNTS = [
    "SELECT tenant, SUM(entries), SUM(hidden) FROM totals GROUP BY tenant HAVING SUM(entries) <> 0 "
    "EXCEPT SELECT tenant, COUNT(*), SUM(hidden) FROM responses GROUP BY tenant",
    "SELECT tenant, SUM(bytes) FROM totals GROUP BY tenant HAVING SUM(bytes) <> 0 EXCEPT SELECT tenant, SUM(bytes) "
    "FROM (SELECT tenant, bytes FROM responses UNION ALL SELECT tenant, bytes FROM items) AS sizes GROUP BY tenant",
    "SELECT tenant, SUM(conversations) FROM totals GROUP BY tenant HAVING SUM(conversations) <> 0 "
    "EXCEPT SELECT tenant, COUNT(*) FROM conversations WHERE expires IS NULL GROUP BY tenant",
    "SELECT id FROM responses WHERE bytes <> LENGTH(request) + LENGTH(response) + COALESCE(LENGTH(tape), 0)",
    "SELECT id FROM items WHERE bytes <> COALESCE(LENGTH(item), 0)",
    "SELECT id, items, bytes FROM conversations WHERE items <> 0 OR bytes <> 0 EXCEPT "
    "SELECT conversation, COUNT(item), SUM(bytes) FROM items GROUP BY conversation",
    "SELECT id FROM responses WHERE hidden = 1 AND "
    "(tape IS NOT NULL OR expires IS NOT NULL OR ended IS NULL OR owner IS NOT NULL)",
    "SELECT previous FROM responses WHERE previous IS NOT NULL EXCEPT SELECT id FROM responses",
    "SELECT id FROM live EXCEPT SELECT id FROM responses WHERE ended IS NULL",
    "SELECT id FROM outputs EXCEPT SELECT id FROM responses WHERE ended IS NULL AND waited = 1",
    "SELECT response FROM keys EXCEPT SELECT id FROM responses WHERE hidden = 0",
]


class Machine(RuleBasedStateMachine):
    def __init__(self, make: Callable[[Clock], Store], count: Count) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self.clock = Clock()
        self.model = Model()
        self.store = make(self.clock)
        self.count = count
        self.run(self.store.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def teardown(self) -> None:
        self.run(self.store.close())
        self._runner.close()

    def some(self, number: int) -> Row | None:
        rows = list(self.model.rows.values())
        return rows[number % len(rows)] if rows else None

    @rule(tenant=TENANTS, background=st.booleans(), parent=NUMBERS, continues=st.booleans(), once=st.booleans())
    def create(self, tenant: str, background: bool, parent: int, continues: bool, once: bool) -> None:
        row = self.some(parent) if continues else None
        previous = row.new.id if row else None
        new = response(self.clock, background=background, previous=previous)
        claim = owner(self.clock, "one")
        ended = whole(self.clock, new)
        work: Coroutine[Any, Any, Any] = (
            self.store.finish(tenant, ended) if once else self.store.begin(tenant, new, claim)
        )
        try:
            self.run(work)
        except UnknownPrevious:
            assert previous
            assert not self.model.visible(tenant, previous, self.clock())
            return
        assert previous is None or self.model.visible(tenant, previous, self.clock())
        made = Row(tenant=tenant, new=new, fence=0 if once else 1, owner=claim.owner, lease=claim.until)
        self.model.rows[new.id] = made
        if once:
            self.model.finish(made, expiry(self.clock()))

    @rule(which=NUMBERS, behind=st.sampled_from([0, 0, 0, 1]))
    def finish(self, which: int, behind: int) -> None:
        row = self.some(which)
        if row is None or row.fence == 0:
            return
        fence = row.fence - behind
        lost = behind or row.cut
        try:
            self.run(self.store.finish(row.tenant, end(self.clock, row.new, fence)))
        except Lost:
            assert lost
            return
        assert not lost
        if row.running:
            self.model.finish(row, expiry(self.clock()))

    @rule(which=NUMBERS, behind=st.sampled_from([0, 0, 0, 1]), call=CALLS)
    def expect(self, which: int, behind: int, call: str) -> None:
        row = self.some(which)
        if row is None:
            return
        try:
            self.run(self.store.expect_outputs(row.tenant, row.new.id, row.fence - behind, [call]))
        except Lost:
            assert behind or not row.running
            return
        assert row.running
        assert not behind
        row.calls.setdefault(call, None)

    @rule(which=NUMBERS, tenant=TENANTS, call=CALLS)
    def submit(self, which: int, tenant: str, call: str) -> None:
        row = self.some(which)
        if row is not None:
            said = self.run(self.store.submit_output(tenant, row.new.id, call, tenant.encode()))
            assert said == self.model.submit(tenant, row.new.id, call, tenant.encode(), self.clock())

    @rule(which=NUMBERS, who=OWNERS)
    def take(self, which: int, who: str) -> None:
        row = self.some(which)
        claim = owner(self.clock, who)
        if row is not None:
            taken = self.run(self.store.take(row.tenant, row.new.id, claim))
            assert (taken is not None) == row.running
            if taken is not None:
                self.model.take(row, claim)

    @rule(who=OWNERS)
    def renew(self, who: str) -> None:
        mine = {row.new.id for row in self.model.rows.values() if row.running and row.owner == who}
        claim = owner(self.clock, who)
        assert self.run(self.store.renew(claim, mine)) == mine
        self.model.owners[who] = claim.until

    @rule(who=OWNERS)
    def claim(self, who: str) -> None:
        claim = owner(self.clock, who)
        expected = self.model.orphans(self.clock())
        claimed = self.run(self.store.claim(claim, 1000))
        assert [one.row.id for one in claimed] == [row.new.id for row in expected]
        for row in expected:
            self.model.take(row, claim)

    @rule(which=NUMBERS, twice=st.booleans())
    def delete(self, which: int, twice: bool) -> None:
        row = self.some(which)
        if row is not None:
            seen = self.model.visible(row.tenant, row.new.id, self.clock())
            assert self.run(self.store.delete(row.tenant, row.new.id)) == seen
            if seen:
                self.model.forget(row.new.id)

    @rule(seconds=st.sampled_from([1, 5, 20, 400]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule(entries=st.sampled_from([None, None, 0, 2, 5]), most=st.sampled_from([1, 3, 500]))
    def sweep(self, entries: int | None, most: int) -> None:
        while self.run(self.store.sweep(Bounds(entries=entries), most)):
            pass
        self.model.sweep(self.clock(), entries)

    @rule(tenant=TENANTS, count=st.integers(0, 3))
    def converse(self, tenant: str, count: int) -> None:
        rows = [item() for _ in range(count)]
        name = self.run(talk(self.store, self.clock, *rows, tenant=tenant))
        self.model.talks[name] = Talk(tenant, [row.id for row in rows])

    @precondition(lambda self: self.model.talks)
    @rule(which=NUMBERS, count=st.integers(1, 3), responds=st.booleans())
    def say(self, which: int, count: int, responds: bool) -> None:
        name, known = list(self.model.talks.items())[which % len(self.model.talks)]
        rows = tuple(item() for _ in range(count))
        if responds:
            new = response(self.clock, conversation=name)
            try:
                self.run(self.store.begin(known.tenant, new, owner(self.clock)))
            except UnknownConversation:
                assert known.deleted
                return
            self.run(self.store.finish(known.tenant, end(self.clock, new, items=rows)))
            self.model.rows[new.id] = made = Row(tenant=known.tenant, new=new, fence=1)
            self.model.finish(made, expiry(self.clock()))
        else:
            added = self.run(self.store.add_items(known.tenant, name, rows, 1000))
            assert added != known.deleted
        if not known.deleted:
            known.items += [row.id for row in rows]

    @precondition(lambda self: self.model.talks)
    @rule(which=NUMBERS, whole=st.booleans())
    def unsay(self, which: int, whole: bool) -> None:
        name, known = list(self.model.talks.items())[which % len(self.model.talks)]
        if whole:
            assert self.run(self.store.delete_conversation(known.tenant, name)) != known.deleted
            known.deleted = True
        elif known.items:
            gone = known.items[which % len(known.items)]
            assert self.run(self.store.delete_item(known.tenant, name, gone)) != known.deleted
            if not known.deleted:
                known.items.remove(gone)

    @invariant()
    def all_rows_are_alike(self) -> None:
        for name, row in self.model.rows.items():
            seen = self.model.visible(row.tenant, name, self.clock())
            found = self.run(self.store.get(row.tenant, name))
            assert (found is not None) == seen
            if found is not None:
                assert (found.fence, found.tape is None, found.attempts) == (row.fence, row.running, row.attempts)
            assert self.run(self.store.outputs(row.tenant, name)) == row.calls
            chain = self.run(self.store.chain(row.tenant, name))
            assert [link.id for link in chain] == self.model.chain(row.tenant, name, self.clock())

    @invariant()
    def all_conversations_are_alike(self) -> None:
        for name, known in self.model.talks.items():
            page = self.run(self.store.page_items(known.tenant, name, None, 1000, False))
            assert (page is None) == known.deleted
            if page is not None:
                assert [row.id for row in page.rows] == known.items

    @invariant()
    def the_lists_have_all_that_is_seen(self) -> None:
        now, model = self.clock(), self.model
        for tenant in ("a", "b"):
            rows = self.run(self.store.page_responses(tenant, None, 1000, True, 1 << 30)).rows
            seen = [name for name in model.rows if model.visible(tenant, name, now)]
            assert [row.id for row in rows] == sorted(seen, reverse=True)
            talks = self.run(self.store.page_conversations(tenant, None, 1000, False)).rows
            there = [name for name, known in model.talks.items() if known.tenant == tenant and not known.deleted]
            assert [row.id for row in talks] == sorted(there)

    @invariant()
    def the_totals_are_what_is_there(self) -> None:
        entries = {tenant: count for tenant, (count, _) in self.run(self.store.tenants()).items() if count}
        rows = [row.tenant for row in self.model.rows.values()]
        assert entries == {tenant: rows.count(tenant) for tenant in set(rows)}
        assert self.count(";".join(RECOUNTS)) == []
