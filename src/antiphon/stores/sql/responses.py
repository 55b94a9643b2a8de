"""Responses from begin to finish, and their lookup.

A row is visible if it is neither hidden nor expired; any other row behaves as if it had never existed.

Several new rows are written at once: one statement for all rows and one per tenant for the totals. Executing a
statement costs more than writing a row: SQLite releases the GIL meanwhile, and the thread then waits to get it back.

A large request is stored in pieces (see `operation.py`) and empty in its row, of which SQLite makes a copy in memory to
change one column.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import inf
from typing import Any

from msgspec import Struct

from antiphon.core.image_generation import IMAGE_MARK
from antiphon.errors import Busy, UnknownConversation, UnknownPrevious
from antiphon.stores.base import (
    ChainLink,
    Claim,
    IdempotencyKey,
    NewResponse,
    OwnershipLost,
    Page,
    ResponseEnd,
    StoredResponse,
)
from antiphon.stores.sql import conversations, files, keys, totals
from antiphon.stores.sql.operation import (
    LARGE_BYTES,
    Operation,
    Statement,
    autocommit_sql,
    direction,
    inline,
    read_pieces,
    sanitise_id,
    sql,
    start_id,
    write_pieces,
)
from antiphon.stores.sql.totals import TotalsDelta

_COLUMNS = (
    *("tenant", "id", "status", "background", "rank", "bearer", "created", "deadline", "ended", "expires", "previous"),
    *("conversation", "owner", "lease", "fence", "bytes", "request", "response", "tape", "model", "summary"),
)
_MAX_ROWS = 16  # per INSERT statement
_INSERT_OR_FAIL = "INSERT OR FAIL"  # FAIL spares SQLite the journal that would undo the rows before a conflict

Values = tuple[Any, ...]


class RowInsert(Struct, frozen=True):
    """An operation that only inserts one new row and records its bytes in the totals.

    Calling it starts the operation; `insert_batch` has the same effect for several of them.
    """

    tenant: str
    size: int
    values: Values
    operation: Callable[[], Operation[Any]]

    def __call__(self) -> Operation[Any]:
        return self.operation()


def insert_batch(inserts: Sequence[RowInsert]) -> Operation[None]:
    """Insert several rows (SQLite only). An existing row raises a constraint error; the caller must then roll back."""
    size = sum([row_insert.size for row_insert in inserts])
    # A prepared statement retains its bound values until its next execution.
    rows_per_statement = _MAX_ROWS if size <= LARGE_BYTES else 1
    for at in range(0, len(inserts), rows_per_statement):
        rows = inserts[at : at + rows_per_statement]
        values: list[Any] = []
        for row_insert in rows:
            values += row_insert.values
        yield Statement(render_insert(len(rows), _INSERT_OR_FAIL), tuple(values))
    sizes: dict[str, list[int]] = {}
    for row_insert in inserts:
        sizes.setdefault(row_insert.tenant, []).append(row_insert.size)
    for tenant, tenant_sizes in sizes.items():
        yield totals.record(tenant, "", len(tenant_sizes), sum(tenant_sizes))


@cache
def render_insert(count: int, verb: str = "INSERT") -> str:
    width = len(_COLUMNS)
    rows = [", ".join(f"${row * width + column + 1}" for column in range(width)) for row in range(count)]
    into = f"{verb} INTO responses ({', '.join(_COLUMNS)}, hidden, attempts) VALUES "
    return into + ", ".join(f"({row}, 0, 1)" for row in rows)


COLUMNS = """
id, status, background, created, deadline, previous, conversation, request, response, tape, fence, attempts, waited,
bearer
"""
_COLUMNS_WITHOUT_REQUEST = COLUMNS.replace("request", "NULL")
_TENANT_RESPONSES = "FROM responses WHERE tenant = $1 AND hidden = 0 AND (expires IS NULL OR expires > $2)"
VISIBLE = "tenant = $1 AND id = $2 AND hidden = 0 AND (expires IS NULL OR expires > $3)"

_INSERT = f"{render_insert(1)} ON CONFLICT (tenant, id) DO NOTHING RETURNING fence"

_START = """
UPDATE responses SET status = 'in_progress'
WHERE tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL RETURNING fence
"""
_SELECT_RUNNING = """
SELECT fence, bytes, LENGTH(request), waited FROM responses WHERE tenant = $1 AND id = $2 AND ended IS NULL {lock}
"""
_SELECT_ENDED = """
SELECT fence, ended, status, bytes, LENGTH(request) FROM responses WHERE tenant = $1 AND id = $2 {lock}
"""
_SUM_PIECES = "SELECT SUM(LENGTH(piece)) FROM pieces WHERE tenant = $1 AND holder = $2"
_FINISH = """
UPDATE responses SET status = $3, response = $4, tape = $5, ended = $6, expires = $7, bytes = $8,
    owner = NULL, lease = NULL, summary = $9
WHERE tenant = $1 AND id = $2
"""

# The first $3 responses of a chain, unordered: sorting here would copy the rows. CROSS JOIN fixes the join order in
# SQLite, whose planner would otherwise scan all rows of the tenant.
_WALK = """
WITH RECURSIVE walk (depth, id, previous) AS (
    SELECT 0, id, previous FROM responses WHERE tenant = $1 AND id = $2
    UNION ALL
    SELECT walk.depth + 1, r.id, r.previous FROM walk CROSS JOIN responses r
    WHERE r.tenant = $1 AND r.id = walk.previous AND walk.depth + 1 < $3
)
"""
WALK_IDS = _WALK + "SELECT depth, id, previous FROM walk"
_LINKS = (
    _WALK
    + """
SELECT walk.depth, r.id, r.previous, r.request, r.response
FROM walk CROSS JOIN responses r WHERE r.tenant = $1 AND r.id = walk.id
"""
)
_FIRST_STRIDE, _MAX_STRIDE = 32, 256


def prepare_begin(
    tenant: str, new: NewResponse, claim: Claim, key: IdempotencyKey | None, max_background: int | None, now: float
) -> Callable[[], Operation[str | None]]:
    """Return a RowInsert, which can be batched, if the row depends on nothing else; otherwise the plain operation."""
    operation = partial(begin, tenant, new, claim, key, max_background, now)
    if key is not None or max_background is not None or new.previous is not None or new.conversation is not None:
        return operation
    if _fills_other_tables(new.request):
        return operation
    return RowInsert(tenant, _size(new), _running_values(tenant, new, claim), operation)


def begin(
    tenant: str, new: NewResponse, claim: Claim, key: IdempotencyKey | None, max_background: int | None, now: float
) -> Operation[str | None]:
    if key is not None:
        holder = yield from keys.take_key(tenant, key, new.id, now)
        if holder is not None:
            return None if holder == new.id else holder
    if max_background is not None:
        yield from _check_background_limit(tenant, max_background)
    yield from _lock_previous(tenant, new, now)
    if new.conversation is not None and not (yield from conversations.touch(tenant, new.conversation, now)):
        raise UnknownConversation(f"Conversation with id {new.conversation!r} not found.", param="conversation")
    written = yield sql(_INSERT, *_running_values(tenant, new, claim))
    if written:  # otherwise the row exists: an earlier reply was lost
        yield from write_pieces(tenant, new.id, new.request)
        yield from files.share_images(tenant, new.id, new.request)
        yield totals.record(tenant, new.id, 1, _size(new))
    return None


def start(tenant: str, response_id: str, fence: int) -> Operation[None]:
    """Change the status from queued to in_progress."""
    if not (yield autocommit_sql(_START, tenant, response_id, fence)):
        raise OwnershipLost(response_id)


def prepare_finish(tenant: str, end: ResponseEnd, now: float) -> Callable[[], Operation[None]]:
    """Return a RowInsert if a new row is written that depends on nothing else; otherwise the plain operation."""
    operation, new = partial(finish, tenant, end, now), end.new
    if new is None or new.previous is not None or end.items or end.images or _fills_other_tables(new.request):
        return operation
    size, values = _ended_values(tenant, end, new)
    return RowInsert(tenant, size, values, operation)


def finish(tenant: str, end: ResponseEnd, now: float) -> Operation[None]:
    """Write the end of a response. Totals come last: their rows are contended, and no lock is awaited after them."""
    added_bytes = yield from (
        _update_ended(tenant, end) if end.new is None else _insert_ended(tenant, end, end.new, now)
    )
    if added_bytes is None:
        return
    yield from files.add_images(tenant, end.id, end.images)
    if end.new is not None:
        yield from files.share_images(tenant, end.id, end.new.request)
    item_bytes = 0
    if end.conversation is not None and end.items:
        item_bytes = yield from conversations.append(tenant, end.conversation, end.items, now)
    entries = 0 if end.new is None else 1
    if not item_bytes:
        yield totals.record(tenant, end.id, entries, added_bytes)
        return
    delta = TotalsDelta()
    delta.add(tenant, end.id, entries, size=added_bytes)
    delta.add(tenant, end.conversation or "", size=item_bytes)
    yield from delta.record()


def get(now: float, tenant: str, response_id: str, with_request: bool = True) -> Operation[StoredResponse | None]:
    """Return a visible response. Without its request, which may be large, that field is empty."""
    columns = COLUMNS if with_request else _COLUMNS_WITHOUT_REQUEST
    rows = yield sql(f"SELECT {columns} FROM responses WHERE {VISIBLE}", tenant, sanitise_id(response_id), now)
    return (yield from read_response(tenant, rows[0], with_request)) if rows else None


def chain(
    now: float, tenant: str, response_id: str, stop_at: frozenset[str] = frozenset()
) -> Operation[list[ChainLink]]:
    """Return the chain from this response back to the first, or up to an id in `stop_at` (exclusive).

    Empty if the response is unknown. The depth is unlimited. The first response must be visible; its ancestors may be
    hidden. The chain is read in strides: a long one then does not block other operations for long, and little is walked
    if it reaches `stop_at` early.
    """
    links: list[ChainLink] = []
    first = yield sql(f"SELECT id FROM responses WHERE {VISIBLE}", tenant, sanitise_id(response_id), now)
    at: str | None = first[0][0] if first else None
    stride = _FIRST_STRIDE
    while at is not None and at not in stop_at:
        count = (yield from _count_missing(tenant, at, stop_at, stride)) if stop_at else stride
        rows = sorted((yield sql(_LINKS, tenant, at, count)))
        if not rows:  # deleted concurrently
            return []
        for _, link_id, previous, inline_request, response in rows:
            if not (request := inline_request or (yield from read_pieces(tenant, link_id))):
                return []
            links.append(ChainLink(link_id, previous, request, response))
        at = links[-1].previous
        stride = min(stride * 4, _MAX_STRIDE)
    return links


def page_responses(
    now: float, tenant: str, after: str | None, limit: int, descending: bool, max_bytes: int
) -> Operation[Page[StoredResponse]]:
    """Return the responses that `get` would find, up to `max_bytes` bytes in total, but at least one.

    Raises InvalidValue(param="after") if the cursor is not, or no longer, a response of the tenant.
    """
    start = yield from start_id("responses", tenant, after, descending)
    comparison, order = direction(descending)
    selection = f"{_TENANT_RESPONSES} AND id {comparison} $3 ORDER BY id {order} LIMIT $4"
    sizes = yield sql(f"SELECT id, bytes {selection}", tenant, now, start, limit + 1)
    count = _count_fitting([size for _, size in sizes[:limit]], max_bytes)
    if not count:
        return Page([], False)
    responses = []
    for row in (yield sql(f"SELECT {COLUMNS} {selection}", tenant, now, start, count)):
        if (response := (yield from read_response(tenant, row))) is not None:
            responses.append(response)
    return Page(responses, len(sizes) > count)


def _count_missing(tenant: str, at: str, stop_at: frozenset[str], stride: int) -> Operation[int]:
    """Return how many of the next responses to read, by walking only the ids, which is cheaper than the contents."""
    ids = sorted((yield sql(WALK_IDS, tenant, at, stride)))
    return next((depth for depth, response_id, _ in ids if response_id in stop_at), stride)


def lock_visible(tenant: str, response_id: str, now: float) -> Operation[bool]:
    """Lock the row if it is visible, until the end of the transaction. Returns whether it is visible."""
    return bool(
        (yield sql(f"SELECT fence FROM responses WHERE {VISIBLE} {{lock}}", tenant, sanitise_id(response_id), now))
    )


def read_response(tenant: str, row: tuple[Any, ...], with_request: bool = True) -> Operation[StoredResponse | None]:
    """Convert a row of COLUMNS. None: it was deleted meanwhile, and its request with it."""
    values = [*row]
    values[2], values[12] = bool(row[2]), bool(row[12])  # background, waited
    values[7] = row[7] or ((yield from read_pieces(tenant, row[0])) if with_request else b"")
    return StoredResponse(*values) if values[7] or not with_request else None


def _fills_other_tables(request: bytes) -> bool:
    return not inline(request) or IMAGE_MARK in request


def _count_fitting(sizes: list[int], max_bytes: int) -> int:
    """Return how many rows fit into `max_bytes`; the first always does."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > max_bytes:
            return count
    return len(sizes)


def _lock_previous(tenant: str, new: NewResponse, now: float) -> Operation[None]:
    if new.previous is not None and not (yield from lock_visible(tenant, new.previous, now)):
        raise UnknownPrevious(f"Previous response with id {new.previous!r} not found.", param="previous_response_id")


def _check_background_limit(tenant: str, limit: int) -> Operation[None]:
    yield totals.lock_tenant(tenant)
    rows = yield sql("SELECT COUNT(*) FROM responses WHERE tenant = $1 AND background = 1 AND ended IS NULL", tenant)
    if rows[0][0] >= limit:
        raise Busy(f"{limit} background responses are unfinished, which is the limit.", retry_after=5.0)


def _running_values(tenant: str, new: NewResponse, claim: Claim) -> Values:
    return (
        *(tenant, new.id, new.status, int(new.background), new.rank, new.charged_key, new.created, new.deadline),
        *(None, None, new.previous, new.conversation),  # ended, expires: still running
        *(claim.owner, claim.until, 1, _size(new), inline(new.request), new.response, None, new.model, ""),
    )


def _size(new: NewResponse) -> int:
    return len(new.request) + len(new.response)


def _insert_ended(tenant: str, end: ResponseEnd, new: NewResponse, now: float) -> Operation[int | None]:
    """Write begin and end in one step. Returns the bytes added, or None if the response had already ended."""
    yield from _lock_previous(tenant, new, now)
    size, values = _ended_values(tenant, end, new)
    if (yield sql(_INSERT, *values)):
        yield from write_pieces(tenant, end.id, new.request)
        return size
    yield from _check_already_ended(tenant, end)
    return None


def _ended_values(tenant: str, end: ResponseEnd, new: NewResponse) -> tuple[int, Values]:
    size = len(new.request) + len(end.response) + len(end.packed_log) + end.image_bytes
    expires = inf if end.expires is None else end.expires
    return size, (
        tenant, new.id, end.status, int(new.background), new.rank, new.charged_key, new.created, new.deadline,
        end.ended, expires, new.previous, new.conversation,
        None, None, end.fence, size, inline(new.request), end.response, end.packed_log,  # no owner, no lease
        new.model, end.summary,
    )  # fmt: skip


def _update_ended(tenant: str, end: ResponseEnd) -> Operation[int | None]:
    rows = yield sql(_SELECT_RUNNING, tenant, end.id)
    if not rows:
        yield from _check_already_ended(tenant, end)
        return None
    fence, old_size, request_size, waited = rows[0]
    if fence != end.fence:
        raise OwnershipLost(end.id)
    size = yield from _write_end(tenant, end, request_size)
    yield sql("DELETE FROM live WHERE tenant = $1 AND id = $2", tenant, end.id)
    if waited:
        yield sql("DELETE FROM outputs WHERE tenant = $1 AND id = $2", tenant, end.id)
    return size - int(old_size)


def _check_already_ended(tenant: str, end: ResponseEnd) -> Operation[None]:
    """Accept an end that was already written under this fence.

    It is either this one, repeated, or an unconfirmed one that this one replaces. Raises OwnershipLost otherwise.
    """
    rows = yield sql(_SELECT_ENDED, tenant, end.id)
    if not rows or rows[0][0] != end.fence or rows[0][1] is None:
        raise OwnershipLost(end.id)
    _, _, status, old_size, request_size = rows[0]
    if end.replaces_unconfirmed and status != end.status:
        size = yield from _write_end(tenant, end, request_size)
        yield totals.record(tenant, end.id, 0, size - int(old_size))


def _write_end(tenant: str, end: ResponseEnd, request_size: int) -> Operation[int]:
    """Update the row and return its new size."""
    request_size = request_size or (yield sql(_SUM_PIECES, tenant, end.id))[0][0]
    size = int(request_size) + len(end.response) + len(end.packed_log) + end.image_bytes
    expires = inf if end.expires is None else end.expires
    written = (end.status, end.response, end.packed_log, end.ended, expires, size, end.summary)
    yield sql(_FINISH, tenant, end.id, *written)
    return size
