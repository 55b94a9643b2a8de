"""An operation on a store, without a database: a generator that yields statements and is sent their rows.

One text serves SQLite and PostgreSQL: parameters are $1, $2 …, and a driver replaces the two words in which these
differ: {lock} (FOR UPDATE, or nothing where there is but one writer) and {skip} (FOR UPDATE SKIP LOCKED, or nothing).
A driver runs an operation within one transaction and may run it again from the start: it touches nothing else.
"""

from collections.abc import Generator
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

LARGE = 256 * 1024  # bytes that a database should not have to copy more often than it must


class Statement(Struct, frozen=True):
    text: str
    values: tuple[Any, ...]
    alone: bool = False
    large: bool = False  # it inserts one row, whose first columns have these values in this order, and much in them


Operation = Generator[Statement, Rows, T]


def sql(text: str, *values: Any) -> Statement:
    return Statement(text, values)


def alone(text: str, *values: Any) -> Statement:
    """What the operation does is done by this one statement; what it may ask afterwards changes nothing."""
    return Statement(text, values, alone=True)


def inserting(text: str, size: int, values: tuple[Any, ...]) -> Statement:
    """One row, with so many bytes in it."""
    return Statement(text, values, large=size > LARGE)


def sought(text: str) -> str:
    """An id from a client, to look for. One that we cannot have made finds nothing; nor may it trouble a database,
    which may refuse some characters."""
    return text if text.isascii() and "\0" not in text else ""
