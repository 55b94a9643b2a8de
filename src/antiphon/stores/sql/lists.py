"""A tenant's own responses and conversations, a page at a time. Ids are in the order of time, and so are the pages.

A page may be shorter than asked for: no more of it is read than fits into a bound of bytes.
"""

from antiphon.errors import InvalidValue
from antiphon.stores.base import ConversationPage, ResponsePage
from antiphon.stores.sql.conversations import conversation_row
from antiphon.stores.sql.operation import Operation, sought, sql
from antiphon.stores.sql.responses import COLUMNS, stored

_RESPONSES = "FROM responses WHERE tenant = $1 AND hidden = 0 AND (expires IS NULL OR expires > $2)"
_CONVERSATIONS = "FROM conversations WHERE tenant = $1 AND expires IS NULL"
_FIRST, _LAST = "", "~"  # before and behind every id


def responses(
    tenant: str, after: str | None, limit: int, descending: bool, room: int, now: float
) -> Operation[ResponsePage]:
    start = yield from _start("responses", tenant, after, descending)
    beyond, order = _direction(descending)
    sizes = yield sql(
        f"SELECT id, bytes {_RESPONSES} AND id {beyond} $3 ORDER BY id {order} LIMIT $4", tenant, now, start, limit + 1
    )
    count = _fitting([size for _, size in sizes[:limit]], room)
    if not count:
        return ResponsePage([], False)
    rows = yield sql(
        f"SELECT {COLUMNS} {_RESPONSES} AND id {beyond} $3 ORDER BY id {order} LIMIT $4", tenant, now, start, count
    )
    return ResponsePage([stored(row) for row in rows], len(sizes) > count)


def conversations(tenant: str, after: str | None, limit: int, descending: bool) -> Operation[ConversationPage]:
    start = yield from _start("conversations", tenant, after, descending)
    beyond, order = _direction(descending)
    rows = yield sql(
        f"SELECT id, created, metadata {_CONVERSATIONS} AND id {beyond} $2 ORDER BY id {order} LIMIT $3",
        tenant,
        start,
        limit + 1,
    )
    return ConversationPage([conversation_row(row) for row in rows[:limit]], len(rows) > limit)


def _direction(descending: bool) -> tuple[str, str]:
    return ("<", "DESC") if descending else (">", "ASC")


def _start(table: str, tenant: str, after: str | None, descending: bool) -> Operation[str]:
    """What was deleted since its page was read is still a place to go on from, for as long as it is there."""
    if after is None:
        return _LAST if descending else _FIRST
    if not (yield sql(f"SELECT id FROM {table} WHERE tenant = $1 AND id = $2", tenant, sought(after))):
        raise InvalidValue(f"There is nothing with the id {after!r} in this list.", param="after")
    return after


def _fitting(sizes: list[int], room: int) -> int:
    """How many of them go into the room; the first one always does."""
    taken = 0
    for count, size in enumerate(sizes):
        taken += size
        if count and taken > room:
            return count
    return len(sizes)
