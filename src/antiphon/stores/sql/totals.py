"""Totals per tenant, updated with every change, so that nothing has to be counted; and what keys use per day.

The totals of a tenant are spread over several rows, chosen by the changed ids, so writers seldom block each other. They
are written last and in row order, which prevents deadlocks.
"""

from collections.abc import Sequence
from zlib import crc32

from msgspec.structs import astuple

from antiphon.stores.base import Page, UsageRow
from antiphon.stores.sql.operation import Operation, Statement, sanitise_id, sql

_SLOTS = 16
_LOCK_SLOT = -1  # row that serialises operations of one tenant by its lock

_USAGE_COLUMNS = "day, tenant, key, responses, input_tokens, cached_tokens, output_tokens"

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


_ADD_USAGE = f"""
INSERT INTO usage ({_USAGE_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (day, tenant, key) DO UPDATE SET
    responses = usage.responses + excluded.responses,
    input_tokens = usage.input_tokens + excluded.input_tokens,
    cached_tokens = usage.cached_tokens + excluded.cached_tokens,
    output_tokens = usage.output_tokens + excluded.output_tokens
"""


def add_usage(rows: Sequence[UsageRow], oldest_day: int) -> Operation[None]:
    """Add to what keys have used, and forget earlier days. Rows are in order, which prevents deadlocks."""
    for row in rows:
        yield sql(_ADD_USAGE, *astuple(row))
    yield sql("DELETE FROM usage WHERE day < $1", oldest_day)


def list_usage(first_day: int, tenant: str | None, limit: int) -> Operation[Page[UsageRow]]:
    """Return what the keys of all tenants, or of one, have used since a day; the latest day first."""
    condition, values = ("", ()) if tenant is None else ("AND tenant = $3", (sanitise_id(tenant),))
    rows = yield sql(
        f"SELECT {_USAGE_COLUMNS} FROM usage WHERE day >= $1 {condition} ORDER BY day DESC, tenant, key LIMIT $2",
        *(first_day, limit + 1, *values),
    )
    return Page([UsageRow(*row) for row in rows[:limit]], len(rows) > limit)


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
