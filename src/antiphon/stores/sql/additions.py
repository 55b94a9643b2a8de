"""Rows of responses, and how many are written at once: one statement for them all, and one for each tenant's totals.

To run a statement takes more than to write a row: whoever runs it lets other threads go on meanwhile, and waits for its
turn among them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from antiphon.stores.sql import totals
from antiphon.stores.sql.operation import LARGE, Operation, Statement

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
