"""A store operation without a database: a generator that yields statements and receives their rows.

One SQL text serves SQLite and PostgreSQL. Parameters are written $1, $2 …, and the driver replaces two placeholders:
{lock} (FOR UPDATE, or nothing for the single SQLite writer) and {skip} (FOR UPDATE SKIP LOCKED, or nothing). A driver
runs an operation within one transaction and may restart it from the beginning, so it must have no other side effects.
"""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.stores.base import Page, PageQuery

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
Rows = list[tuple[Any, ...]]

LARGE_BYTES = 1024 * 1024  # a request or an item above this size is stored in pieces of this size

MAX_LIST = 512  # numbers in a list of parameters
_LIST_SIZES = (8, 64, MAX_LIST)

_INSERT_PIECE = "INSERT INTO pieces (tenant, holder, number, piece) VALUES ($1, $2, $3, $4)"

BEFORE_FIRST, AFTER_LAST = "", "~"  # less than and greater than every id


class Statement(Struct, frozen=True):
    """One SQL statement with its values."""

    text: str
    values: tuple[Any, ...]
    autocommit: bool = False


Operation = Generator[Statement, Rows, T]


def sql(text: str, *values: Any) -> Statement:
    return Statement(text, values)


def autocommit_sql(text: str, *values: Any) -> Statement:
    """A statement that needs no transaction: it makes every change of the operation; later statements only read."""
    return Statement(text, values, autocommit=True)


def inline(value: bytes) -> bytes:
    """Return what the row of a value holds: nothing if it is stored in pieces."""
    return value if len(value) <= LARGE_BYTES else b""


def write_pieces(tenant: str, holder: str, value: bytes) -> Operation[None]:
    """Store a large value in pieces: drivers and SQLite copy it whole, and PostgreSQL takes seconds to compress it.

    The row is written first; a small value is in the row alone.
    """
    for number, at in enumerate(range(0, 0 if inline(value) else len(value), LARGE_BYTES)):
        yield sql(_INSERT_PIECE, tenant, holder, number, value[at : at + LARGE_BYTES])


def read_pieces(tenant: str, holder: str) -> Operation[bytes]:
    """Return a large value; it is empty if it was removed after its row was read."""
    rows = yield sql("SELECT piece FROM pieces WHERE tenant = $1 AND holder = $2 ORDER BY number", tenant, holder)
    return b"".join([piece for (piece,) in rows])


def remove_pieces(tenant: str, holder: str) -> Statement:
    return sql("DELETE FROM pieces WHERE tenant = $1 AND holder = $2", tenant, holder)


def read_row(kind: type[S], row: tuple[Any, ...]) -> S:
    """Return the struct of a row, whose columns have the order of the fields."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def find_row(kind: type[S], text: str, *values: Any) -> Operation[S | None]:
    """Return the first row of a query; None if there is none."""
    rows = yield sql(text, *values)
    return read_row(kind, rows[0]) if rows else None


def cut_page(kind: type[S], rows: Rows, limit: int) -> Page[S]:
    """Return a page of rows, of which one more than `limit` was read to know whether there are more."""
    return Page([read_row(kind, row) for row in rows[:limit]], len(rows) > limit)


def sanitise_id(text: str) -> str:
    """Prepare an id from a client for a lookup.

    An id with characters that this server never generates becomes "", which matches nothing; a database might reject
    such characters (PostgreSQL rejects NUL in text).
    """
    return text if text.isascii() and "\0" not in text else ""


def in_list(numbers: Sequence[int], first: int = 1) -> tuple[str, list[int]]:
    """Return a list of parameters, the first of which is `$first`, and its values.

    It is filled up with −1, which is no id, so that lists of any length make few different statements.
    """
    size = next(size for size in _LIST_SIZES if size >= len(numbers))
    return f"({', '.join(f'${first + n}' for n in range(size))})", [*numbers, *[-1] * (size - len(numbers))]


def direction(descending: bool) -> tuple[str, str]:
    return ("<", "DESC") if descending else (">", "ASC")


def start_id(table: str, tenant: str, after: str | None, descending: bool) -> Operation[str]:
    """Return the id after which the page starts. A deleted row is a valid cursor as long as its row still exists."""
    if after is None:
        return AFTER_LAST if descending else BEFORE_FIRST
    if not (yield sql(f"SELECT id FROM {table} WHERE tenant = $1 AND id = $2", tenant, sanitise_id(after))):
        raise InvalidValue(f"There is nothing with the id {after!r} in this list.", param="after")
    return after


def read_page(select: str, key: str, scope: dict[str, Any], query: PageQuery) -> Operation[tuple[Rows, bool]]:
    """Read a page of rows that have these values, ordered by creation time, and whether there are more.

    Raises InvalidValue for a cursor that is not in the list.
    """
    values = [*scope.values()]
    condition = " AND ".join(f"{column} = ${number}" for number, column in enumerate(scope, 1))
    table = select.rpartition(" ")[2]
    backwards = query.after is None and query.before is not None
    text = f"{select} WHERE {condition}"
    for param, cursor, flipped in (("after", query.after, False), ("before", query.before, True)):
        if cursor is None:
            continue
        start = yield sql(
            f"SELECT created FROM {table} WHERE {condition} AND {key} = ${len(scope) + 1}",
            *scope.values(),
            sanitise_id(cursor),
        )
        if not start:
            raise InvalidValue(f"There is nothing with the id {cursor!r} in this list.", param=param)
        comparison, _ = direction(query.descending != flipped)
        text += f" AND (created, {key}) {comparison} (${len(values) + 1}, ${len(values) + 2})"
        values += [start[0][0], cursor]
    _, order = direction(query.descending != backwards)
    text += f" ORDER BY created {order}, {key} {order} LIMIT ${len(values) + 1}"
    rows = yield sql(text, *values, query.limit + 1)
    page = rows[: query.limit]
    return (page[::-1] if backwards else page), len(rows) > query.limit
