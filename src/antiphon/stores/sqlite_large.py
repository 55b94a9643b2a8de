"""Large values are written into a row of a SQLite file once it is there.

Bound to a statement they would be copied twice more, into the statement and into the row; and the statement would hold
on to its copy until it is run again. Zeros in their place take no memory, as long as nothing but zeros follows them.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import apsw

from antiphon.stores.sql.operation import Rows, Statement

_INTO = re.compile(r"INTO (\w+) \(([^)]*)\) VALUES")


def insert(connection: apsw.Connection, statement: Statement, run: Callable[[tuple[Any, ...]], Rows]) -> Rows:
    """`run` carries it out with these values in place of its own."""
    table, columns = _target(statement.text)
    rows: list[int] = []
    connection.set_update_hook(lambda kind, database, name, row: rows.append(row))
    try:
        told = run(tuple([apsw.zeroblob(len(one)) if type(one) is bytes else one for one in statement.values]))
    finally:
        connection.set_update_hook(None)
    assert rows or not connection.changes(), f"{table} tells of no row: it has to be a table with rowids"
    for row in rows:  # none, if it was there already
        for column, value in zip(columns, statement.values):  # noqa: B905 - what follows are no values
            if type(value) is bytes and value:
                with connection.blob_open("main", table, column, row, True) as blob:
                    blob.write(value)
    return told


@cache
def _target(text: str) -> tuple[str, list[str]]:
    """The table, and its columns in the order of the values."""
    found = _INTO.search(text)
    assert found is not None, text
    return found[1], found[2].split(", ")
