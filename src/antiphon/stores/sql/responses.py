"""Responses from their beginning to their end, and how they are found again.

A row is visible if it is neither hidden nor past its time; both look, to everybody, as if it had never been.

Rows of responses, and how many are written at once: one statement for them all, and one for each tenant's totals.

To run a statement takes more than to write a row: whoever runs it lets other threads go on meanwhile, and waits for its
turn among them.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import inf
from typing import Any

from msgspec import Struct

from antiphon.errors import Busy, UnknownConversation, UnknownPrevious
from antiphon.stores.base import Claim, End, Key, Link, Lost, NewResponse, StoredResponse
from antiphon.stores.sql import conversations, idempotency_keys, totals
from antiphon.stores.sql.operation import LARGE, Operation, Statement, alone, inserting, sought, sql
from antiphon.stores.sql.totals import Tally

_COLUMNS = (
    *("tenant", "id", "status", "background", "rank", "bearer", "created", "deadline", "ended", "expires", "previous"),
    *("conversation", "owner", "lease", "fence", "bytes", "request", "response", "tape"),
)
_MOST = 16  # rows of a statement
_OR_FAIL = "INSERT OR FAIL"  # SQLite need not note how to take back the rows before one that is there already

Values = tuple[Any, ...]


class Addition(Struct, frozen=True):
    """An operation that inserts a row and books its bytes, and nothing else, if the row is not there already.

    To call it is to begin the operation; what `together` does for several comes to the same.
    """

    tenant: str
    size: int
    values: Values
    alone: Callable[[], Operation[Any]]

    def __call__(self) -> Operation[Any]:
        return self.alone()


def together(added: Sequence[Addition]) -> Operation[None]:
    """For SQLite. It complains of a row that is there already: then nothing may stay of what was written here."""
    size = sum([one.size for one in added])
    most = _MOST if size <= LARGE else 1  # a prepared statement holds on to what it wrote until it is run again
    for at in range(0, len(added), most):
        rows = added[at : at + most]
        values: list[Any] = []
        for one in rows:
            values += one.values
        yield Statement(insert(len(rows), _OR_FAIL), tuple(values), large=most == 1 and rows[0].size > LARGE)
    sizes: dict[str, list[int]] = {}
    for one in added:
        sizes.setdefault(one.tenant, []).append(one.size)
    for tenant, each in sizes.items():
        yield totals.book(tenant, "", len(each), sum(each))


@cache
def insert(count: int, verb: str = "INSERT") -> str:
    """So many rows."""
    width = len(_COLUMNS)
    rows = [", ".join(f"${row * width + column + 1}" for column in range(width)) for row in range(count)]
    into = f"{verb} INTO responses ({', '.join(_COLUMNS)}, hidden, attempts) VALUES "
    return into + ", ".join(f"({row}, 0, 1)" for row in rows)


COLUMNS = """
id, status, background, created, deadline, previous, conversation, request, response, tape, fence, attempts, waited,
bearer
"""
SEEN = "tenant = $1 AND id = $2 AND hidden = 0 AND (expires IS NULL OR expires > $3)"

_INSERT = f"{insert(1)} ON CONFLICT (tenant, id) DO NOTHING RETURNING fence"

_START = """
UPDATE responses SET status = 'in_progress'
WHERE tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL RETURNING fence
"""
_RUNNING = """
SELECT fence, bytes, LENGTH(request), waited FROM responses WHERE tenant = $1 AND id = $2 AND ended IS NULL {lock}
"""
_ENDED = """
SELECT fence, ended, status, bytes, LENGTH(request) FROM responses WHERE tenant = $1 AND id = $2 {lock}
"""
_FINISH = """
UPDATE responses SET status = $3, response = $4, tape = $5, ended = $6, expires = $7, bytes = $8,
    owner = NULL, lease = NULL
WHERE tenant = $1 AND id = $2
"""

# The first so many of a chain. The order of the rows is for the caller to see to: sorting them here would copy them.
# Who joins whom is said by CROSS JOIN: SQLite would rather walk through all that a tenant has.
_WALK = """
WITH RECURSIVE walk (depth, id, previous) AS (
    SELECT 0, id, previous FROM responses WHERE tenant = $1 AND id = $2
    UNION ALL
    SELECT walk.depth + 1, r.id, r.previous FROM walk CROSS JOIN responses r
    WHERE r.tenant = $1 AND r.id = walk.previous AND walk.depth + 1 < $3
)
"""
_NAMES = _WALK + "SELECT depth, id, previous FROM walk"
_LINKS = (
    _WALK
    + """
SELECT walk.depth, r.id, r.previous, r.request, r.response
FROM walk CROSS JOIN responses r WHERE r.tenant = $1 AND r.id = walk.id
"""
)
_FIRST_STRIDE, _LONGEST_STRIDE = 32, 256


def beginning(
    tenant: str, new: NewResponse, claim: Claim, key: Key | None, room: int | None, now: float
) -> Callable[[], Operation[str | None]]:
    alone = partial(begin, tenant, new, claim, key, room, now)
    if key is not None or room is not None or new.previous is not None or new.conversation is not None:
        return alone
    return Addition(tenant, _size(new), _begun(tenant, new, claim), alone)


def begin(
    tenant: str, new: NewResponse, claim: Claim, key: Key | None, room: int | None, now: float
) -> Operation[str | None]:
    if key is not None:
        holder = yield from idempotency_keys.take(tenant, key, new.id, now)
        if holder is not None:
            return None if holder == new.id else holder
    if room is not None:
        yield from _find_room(tenant, room)
    yield from _follow(tenant, new, now)
    if new.conversation is not None and not (yield from conversations.touch(tenant, new.conversation, now)):
        raise UnknownConversation(f"Conversation with id {new.conversation!r} not found.", param="conversation")
    written = yield inserting(_INSERT, _size(new), _begun(tenant, new, claim))
    if written:  # else it is there already: an answer got lost on its way
        yield totals.book(tenant, new.id, 1, _size(new))
    return None


def start(tenant: str, response_id: str, fence: int) -> Operation[None]:
    if not (yield alone(_START, tenant, response_id, fence)):
        raise Lost(response_id)


def ending(tenant: str, end: End, now: float) -> Callable[[], Operation[None]]:
    alone, new = partial(finish, tenant, end, now), end.new
    if new is None or new.previous is not None or end.items:
        return alone
    size, values = _whole(tenant, end, new)
    return Addition(tenant, size, values, alone)


def finish(tenant: str, end: End, now: float) -> Operation[None]:
    """Totals are booked last: many write them, and whoever has them waits for nobody any more."""
    written = yield from (_end(tenant, end) if end.new is None else _write(tenant, end, end.new, now))
    if written is None:
        return
    placed = 0
    if end.conversation is not None and end.items:
        placed = yield from conversations.append(tenant, end.conversation, end.items, now)
    entries = 0 if end.new is None else 1
    if not placed:
        yield totals.book(tenant, end.id, entries, written)
        return
    tally = Tally()
    tally.add(tenant, end.id, entries, size=written)
    tally.add(tenant, end.conversation or "", size=placed)
    yield from tally.book()


def get(tenant: str, response_id: str, now: float) -> Operation[StoredResponse | None]:
    rows = yield sql(f"SELECT {COLUMNS} FROM responses WHERE {SEEN}", tenant, sought(response_id), now)
    return stored(rows[0]) if rows else None


def chain(tenant: str, response_id: str, known: frozenset[str], now: float) -> Operation[list[Link]]:
    """In strides: whoever reads all of a long chain holds nobody up for long, and of a known one little is walked."""
    links: list[Link] = []
    first = yield sql(f"SELECT id FROM responses WHERE {SEEN}", tenant, sought(response_id), now)
    at: str | None = first[0][0] if first else None
    stride = _FIRST_STRIDE
    while at is not None and at not in known:
        wanted = (yield from _unknown(tenant, at, known, stride)) if known else stride
        rows = sorted((yield sql(_LINKS, tenant, at, wanted)))
        if not rows:  # it was deleted this very moment
            return []
        links += [Link(*row[1:]) for row in rows]
        at = links[-1].previous
        stride = min(stride * 4, _LONGEST_STRIDE)
    return links


def _unknown(tenant: str, at: str, known: frozenset[str], stride: int) -> Operation[int]:
    """How many of the next ones are to be read: names are cheaper than what they stand for."""
    names = sorted((yield sql(_NAMES, tenant, at, stride)))
    return next((depth for depth, name, _ in names if name in known), stride)


def hold(tenant: str, response_id: str, now: float) -> Operation[bool]:
    """Is it visible? Then it stays so to the end of the transaction."""
    return bool((yield sql(f"SELECT fence FROM responses WHERE {SEEN} {{lock}}", tenant, sought(response_id), now)))


def stored(row: tuple[Any, ...]) -> StoredResponse:
    """From COLUMNS."""
    return StoredResponse(
        id=row[0],
        status=row[1],
        background=bool(row[2]),
        created=row[3],
        deadline=row[4],
        previous=row[5],
        conversation=row[6],
        request=row[7],
        response=row[8],
        tape=row[9],
        fence=row[10],
        attempts=row[11],
        waited=bool(row[12]),
        bearer=row[13],
    )


def _follow(tenant: str, new: NewResponse, now: float) -> Operation[None]:
    if new.previous is not None and not (yield from hold(tenant, new.previous, now)):
        raise UnknownPrevious(f"Previous response with id {new.previous!r} not found.", param="previous_response_id")


def _find_room(tenant: str, room: int) -> Operation[None]:
    yield totals.enter(tenant)
    rows = yield sql("SELECT COUNT(*) FROM responses WHERE tenant = $1 AND background = 1 AND ended IS NULL", tenant)
    if rows[0][0] >= room:
        raise Busy(f"{room} background responses have not ended yet, which is as many as may wait.", retry_after=5.0)


def _begun(tenant: str, new: NewResponse, claim: Claim) -> Values:
    return (
        *(tenant, new.id, new.status, int(new.background), new.rank, new.bearer, new.created, new.deadline),
        *(None, None, new.previous, new.conversation),  # it has not ended
        *(claim.owner, claim.until, 1, _size(new), new.request, new.response, None),
    )


def _size(new: NewResponse) -> int:
    return len(new.request) + len(new.response)


def _write(tenant: str, end: End, new: NewResponse, now: float) -> Operation[int | None]:
    """Beginning and end at once. Gives the bytes that came, or None: it had ended."""
    yield from _follow(tenant, new, now)
    size, values = _whole(tenant, end, new)
    if (yield inserting(_INSERT, size, values)):
        return size
    yield from _had_ended(tenant, end)
    return None


def _whole(tenant: str, end: End, new: NewResponse) -> tuple[int, Values]:
    """Its bytes, and its row."""
    size = len(new.request) + len(end.response) + len(end.tape)
    expires = inf if end.expires is None else end.expires
    return size, (
        tenant, new.id, end.status, int(new.background), new.rank, new.bearer, new.created, new.deadline,
        end.ended, expires, new.previous, new.conversation,
        None, None, end.fence, size, new.request, end.response, end.tape,  # nobody owns it
    )  # fmt: skip


def _end(tenant: str, end: End) -> Operation[int | None]:
    rows = yield sql(_RUNNING, tenant, end.id)
    if not rows:
        yield from _had_ended(tenant, end)
        return None
    fence, before, request, waited = rows[0]
    if fence != end.fence:
        raise Lost(end.id)
    size = int(request) + len(end.response) + len(end.tape)
    expires = inf if end.expires is None else end.expires
    yield sql(_FINISH, tenant, end.id, end.status, end.response, end.tape, end.ended, expires, size)
    yield sql("DELETE FROM live WHERE tenant = $1 AND id = $2", tenant, end.id)
    if waited:
        yield sql("DELETE FROM outputs WHERE tenant = $1 AND id = $2", tenant, end.id)
    return size - int(before)


def _had_ended(tenant: str, end: End) -> Operation[None]:
    """Under this very fence? Then it is this end that is told again, or the one that it stands instead of."""
    rows = yield sql(_ENDED, tenant, end.id)
    if not rows or rows[0][0] != end.fence or rows[0][1] is None:
        raise Lost(end.id)
    _, _, status, before, request = rows[0]
    if end.instead and status != end.status:
        size = int(request) + len(end.response) + len(end.tape)
        expires = inf if end.expires is None else end.expires
        yield sql(_FINISH, tenant, end.id, end.status, end.response, end.tape, end.ended, expires, size)
        yield totals.book(tenant, end.id, 0, size - int(before))
