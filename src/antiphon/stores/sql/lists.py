"""Pages of a tenant's responses and conversations. Ids are ordered by time, and so are the pages.

A page may be shorter than requested: it is limited to a number of bytes.
"""

from antiphon.errors import InvalidValue
from antiphon.stores.base import ConversationRow, Page, StoredResponse
from antiphon.stores.sql.conversations import to_conversation_row
from antiphon.stores.sql.operation import Operation, sanitise_id, sql
from antiphon.stores.sql.responses import COLUMNS, to_stored_response

_RESPONSES = "FROM responses WHERE tenant = $1 AND hidden = 0 AND (expires IS NULL OR expires > $2)"
_CONVERSATIONS = "FROM conversations WHERE tenant = $1 AND expires IS NULL"
_BEFORE_FIRST, _AFTER_LAST = "", "~"  # less than and greater than every id


def page_responses(
    now: float, tenant: str, after: str | None, limit: int, descending: bool, max_bytes: int
) -> Operation[Page[StoredResponse]]:
    start = yield from _start_id("responses", tenant, after, descending)
    comparison, order = _direction(descending)
    sizes = yield sql(
        f"SELECT id, bytes {_RESPONSES} AND id {comparison} $3 ORDER BY id {order} LIMIT $4",
        tenant,
        now,
        start,
        limit + 1,
    )
    count = _count_fitting([size for _, size in sizes[:limit]], max_bytes)
    if not count:
        return Page([], False)
    rows = yield sql(
        f"SELECT {COLUMNS} {_RESPONSES} AND id {comparison} $3 ORDER BY id {order} LIMIT $4", tenant, now, start, count
    )
    return Page([to_stored_response(row) for row in rows], len(sizes) > count)


def page_conversations(
    tenant: str, after: str | None, limit: int, descending: bool
) -> Operation[Page[ConversationRow]]:
    start = yield from _start_id("conversations", tenant, after, descending)
    comparison, order = _direction(descending)
    rows = yield sql(
        f"SELECT id, created, metadata {_CONVERSATIONS} AND id {comparison} $2 ORDER BY id {order} LIMIT $3",
        tenant,
        start,
        limit + 1,
    )
    return Page([to_conversation_row(row) for row in rows[:limit]], len(rows) > limit)


def _direction(descending: bool) -> tuple[str, str]:
    return ("<", "DESC") if descending else (">", "ASC")


def _start_id(table: str, tenant: str, after: str | None, descending: bool) -> Operation[str]:
    """Return the id after which the page starts. A deleted row is a valid cursor as long as its row still exists."""
    if after is None:
        return _AFTER_LAST if descending else _BEFORE_FIRST
    if not (yield sql(f"SELECT id FROM {table} WHERE tenant = $1 AND id = $2", tenant, sanitise_id(after))):
        raise InvalidValue(f"There is nothing with the id {after!r} in this list.", param="after")
    return after


def _count_fitting(sizes: list[int], max_bytes: int) -> int:
    """Return how many rows fit into `max_bytes`; the first always does."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > max_bytes:
            return count
    return len(sizes)
