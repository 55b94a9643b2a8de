"""Which new rows are written together, in how many statements, and rows that are deleted while they are read."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.image_generation import IMAGE_MARK
from antiphon.stores.base import NewResponse
from antiphon.stores.sql.operation import LARGE_BYTES, Operation, Rows, Statement
from antiphon.stores.sql.responses import RowInsert, chain, get, insert_batch, prepare_begin, prepare_finish
from antiphon.testing.rows.response_rows import (
    TENANT,
    Clock,
    make_claim,
    make_end,
    make_inserting_end,
    make_item,
    make_key,
    make_response,
)


def list_statements(*sizes: int) -> list[Statement]:
    """Return the statements that insert rows of these sizes, without those of the totals."""
    operation = insert_batch([RowInsert(TENANT, size, (size,), partial(next, iter([]))) for size in sizes])
    statements, sent = [next(operation)], True
    while sent:
        try:
            statements.append(operation.send([]))
        except StopIteration:
            sent = False
    return statements[:-1]


def run_operation(operation: Operation[Any], results: Iterable[Rows]) -> Any:
    next(operation)
    try:
        for rows in results:
            operation.send(rows)
    except StopIteration as done:
        return done.value
    raise AssertionError("The operation has more statements.")


@pytest.mark.parametrize(
    ("sizes", "rows"), [([1] * 17, [16, 1]), ([LARGE_BYTES - 1, 1], [2]), ([LARGE_BYTES, 1], [1, 1])]
)
def test_rows_are_inserted_together_unless_they_are_large(sizes: list[int], rows: list[int]) -> None:
    assert [len(statement.values) for statement in list_statements(*sizes)] == rows


def test_a_new_row_that_depends_on_nothing_else_can_be_inserted_with_others(clock: Clock) -> None:
    new, claim = make_response(clock), make_claim(clock)
    assert isinstance(prepare_begin(TENANT, new, claim, None, None, clock()), RowInsert)
    assert isinstance(prepare_finish(TENANT, make_inserting_end(clock, new), clock()), RowInsert)


def mark_image(new: NewResponse) -> NewResponse:
    return replace(new, request=new.request + IMAGE_MARK)


def test_a_new_row_that_depends_on_others_is_inserted_alone(clock: Clock) -> None:
    new, claim, now = make_response(clock), make_claim(clock), clock()
    continuing, marked = make_response(clock, previous="resp_1"), mark_image(new)
    large = make_response(clock, text="x" * LARGE_BYTES)
    for begun, key, limit in (
        (continuing, None, None),
        (make_response(clock, conversation="conv_1"), None, None),
        (marked, None, None),
        (large, None, None),
        (new, make_key(clock), None),
        (new, None, 3),
    ):
        assert not isinstance(prepare_begin(TENANT, begun, claim, key, limit, now), RowInsert)
    for end in (
        make_end(clock, new),
        make_inserting_end(clock, continuing),
        make_inserting_end(clock, marked),
        make_inserting_end(clock, large),
        replace(make_inserting_end(clock, new), items=[make_item()]),
        replace(make_inserting_end(clock, new), images=["image"]),
    ):
        assert not isinstance(prepare_finish(TENANT, end, now), RowInsert)


def test_a_response_that_is_deleted_between_its_row_and_its_request_is_not_found(clock: Clock) -> None:
    """PostgreSQL reads them by two statements, each of which sees what was committed before it."""
    row = ("resp_1", "completed", 0, 1.0, None, None, None, b"", b"{}", None, 1, 1, 0, "")
    link = (0, "resp_1", None, b"", b"{}")
    assert run_operation(get(clock(), TENANT, "resp_1"), [[row], []]) is None
    assert run_operation(chain(clock(), TENANT, "resp_1"), [[("resp_1",)], [link], []]) == []
