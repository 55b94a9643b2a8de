"""How much each tenant has, kept in step with every change, so that nobody need count.

A tenant's totals are spread over a few rows by the ids of what was changed: writers then seldom wait for each other.
They are booked last, in the order of the rows, so that no two operations wait for each other.
"""

from zlib import crc32

from antiphon.stores.sql.operation import Operation, Statement, sql

_SLOTS = 16
_GATE = -1  # a row of its own, locked by those who have to come one after the other

_BOOK = """
INSERT INTO totals (tenant, slot, entries, hidden, bytes, conversations) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, slot) DO UPDATE SET
    entries = totals.entries + excluded.entries,
    hidden = totals.hidden + excluded.hidden,
    bytes = totals.bytes + excluded.bytes,
    conversations = totals.conversations + excluded.conversations
"""

_ENTER = """
INSERT INTO totals (tenant, slot, entries, hidden, bytes, conversations) VALUES ($1, $2, 0, 0, 0, 0)
ON CONFLICT (tenant, slot) DO UPDATE SET entries = 0
"""


def book(tenant: str, at: str, entries: int = 0, size: int = 0, conversations: int = 0) -> Statement:
    """One change, where there is but one."""
    return sql(_BOOK, tenant, _slot(at), entries, 0, size, conversations)


def enter(tenant: str) -> Statement:
    """From here to the end of its transaction an operation is the only one of the tenant that entered."""
    return sql(_ENTER, tenant, _GATE)


class Tally:
    """The changes of an operation that touches many rows, booked at its end."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, int], list[int]] = {}

    def add(
        self, tenant: str, at: str, entries: int = 0, hidden: int = 0, size: int = 0, conversations: int = 0
    ) -> None:
        change = self._changes.setdefault((tenant, _slot(at)), [0, 0, 0, 0])
        for index, amount in enumerate((entries, hidden, size, conversations)):
            change[index] += amount

    def of(self, tenant: str) -> list[int]:
        """Entries, hidden ones, bytes and conversations that came (or, below zero, went) so far."""
        mine = [change for (whose, _), change in self._changes.items() if whose == tenant]
        return [sum(amounts) for amounts in zip(*mine, strict=True)] if mine else [0, 0, 0, 0]

    def book(self) -> Operation[None]:
        """Always in the same order, so that two operations cannot wait for each other."""
        for (tenant, slot), change in sorted(self._changes.items()):
            yield sql(_BOOK, tenant, slot, *change)
        self._changes.clear()


def tenants() -> Operation[dict[str, tuple[int, int]]]:
    rows = yield from of_all()
    return {tenant: (entries, size) for tenant, entries, _, size, _ in rows if entries or size}


def of_all() -> Operation[list[tuple[str, int, int, int, int]]]:
    """Tenant, entries, hidden ones, bytes, conversations."""
    rows = yield sql("""
        SELECT tenant, CAST(SUM(entries) AS BIGINT), CAST(SUM(hidden) AS BIGINT), CAST(SUM(bytes) AS BIGINT),
            CAST(SUM(conversations) AS BIGINT)
        FROM totals GROUP BY tenant
    """)
    return [(row[0], row[1], row[2], row[3], row[4]) for row in rows]


def _slot(at: str) -> int:
    return crc32(at.encode()) % _SLOTS
