"""Rows of responses, and how many are written at once: one statement for them all, and one for each tenant's totals.

To run a statement takes more than to write a row: whoever runs it lets other threads go on meanwhile, and waits for its
turn among them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from msgspec import Struct

from antiphon.stores.sql import totals
from antiphon.stores.sql.operation import Operation, sql

_COLUMNS = (
    *("tenant", "id", "status", "background", "rank", "bearer", "created", "deadline", "ended", "expires", "previous"),
    *("conversation", "owner", "lease", "fence", "bytes", "request", "response", "tape"),
)
_MOST = 16  # rows of a statement

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
    """The database complains of a row that is there already: then nothing may stay of what was written here."""
    at = 0
    while at < len(added):
        count = min(_MOST, 1 << (len(added) - at).bit_length() - 1)  # powers of two: few statements serve all
        yield sql(insert(count), *chain.from_iterable([one.values for one in added[at : at + count]]))
        at += count
    for tenant in {one.tenant: None for one in added}:
        sizes = [one.size for one in added if one.tenant == tenant]
        yield totals.book(tenant, "", len(sizes), sum(sizes))


@cache
def insert(count: int) -> str:
    """So many rows."""
    width = len(_COLUMNS)
    rows = [", ".join(f"${row * width + column + 1}" for column in range(width)) for row in range(count)]
    into = f"INSERT INTO responses ({', '.join(_COLUMNS)}, hidden, attempts) VALUES "
    return into + ", ".join(f"({row}, 0, 1)" for row in rows)
