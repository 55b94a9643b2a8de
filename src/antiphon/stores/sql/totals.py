"""Totals per tenant, updated with every change, so that nothing has to be counted.

The totals of a tenant are spread over several rows, chosen by the changed ids, so writers seldom block each other. They
are written last and in row order, which prevents deadlocks.
"""

from zlib import crc32

from antiphon.stores.sql.operation import Operation, Statement, sql

_SLOTS = 16
_LOCK_SLOT = -1  # row that serialises operations of one tenant by its lock

_RECORD = """
INSERT INTO totals (tenant, slot, entries, hidden, bytes, conversations) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, slot) DO UPDATE SET
    entries = totals.entries + excluded.entries,
    hidden = totals.hidden + excluded.hidden,
    bytes = totals.bytes + excluded.bytes,
    conversations = totals.conversations + excluded.conversations
"""

_LOCK_TENANT = """
INSERT INTO totals (tenant, slot, entries, hidden, bytes, conversations) VALUES ($1, $2, 0, 0, 0, 0)
ON CONFLICT (tenant, slot) DO UPDATE SET entries = 0
"""


def record(tenant: str, changed_id: str, entries: int = 0, size: int = 0, conversations: int = 0) -> Statement:
    return sql(_RECORD, tenant, _slot(changed_id), entries, 0, size, conversations)


def lock_tenant(tenant: str) -> Statement:
    """Lock the tenant until the end of the transaction, against other operations that lock it."""
    return sql(_LOCK_TENANT, tenant, _LOCK_SLOT)


class TotalsDelta:
    """Collects the changes of an operation that touches many rows, and records them at its end."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, int], list[int]] = {}

    def add(
        self, tenant: str, changed_id: str, entries: int = 0, hidden: int = 0, size: int = 0, conversations: int = 0
    ) -> None:
        change = self._changes.setdefault((tenant, _slot(changed_id)), [0, 0, 0, 0])
        for index, amount in enumerate((entries, hidden, size, conversations)):
            change[index] += amount

    def sum_for(self, tenant: str) -> list[int]:
        """Return the change so far in entries, hidden entries, bytes and conversations."""
        changes = [change for (owner, _), change in self._changes.items() if owner == tenant]
        return [sum(amounts) for amounts in zip(*changes, strict=True)] if changes else [0, 0, 0, 0]

    def record(self) -> Operation[None]:
        """Record the changes, always in the same order, which prevents deadlocks."""
        for (tenant, slot), change in sorted(self._changes.items()):
            yield sql(_RECORD, tenant, slot, *change)
        self._changes.clear()


def list_tenants() -> Operation[dict[str, tuple[int, int]]]:
    """Return entries and bytes per tenant. Hidden rows are included, and the bytes include conversations."""
    rows = yield from read_all()
    return {tenant: (entries, size) for tenant, entries, _, size, _ in rows if entries or size}


def read_all() -> Operation[list[tuple[str, int, int, int, int]]]:
    """Return tenant, entries, hidden entries, bytes and conversations."""
    rows = yield sql("""
        SELECT tenant, CAST(SUM(entries) AS BIGINT), CAST(SUM(hidden) AS BIGINT), CAST(SUM(bytes) AS BIGINT),
            CAST(SUM(conversations) AS BIGINT)
        FROM totals GROUP BY tenant
    """)
    return [(row[0], row[1], row[2], row[3], row[4]) for row in rows]


def _slot(changed_id: str) -> int:
    return crc32(changed_id.encode()) % _SLOTS
