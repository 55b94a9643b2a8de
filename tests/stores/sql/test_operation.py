"""Statements and pages of all operations, without a database."""

import pytest
from msgspec import Struct

from antiphon.stores.base import Page
from antiphon.stores.sql.operation import LARGE_BYTES, autocommit_sql, cut_page, in_list, inline, sql, write_pieces


@pytest.mark.parametrize(
    ("size", "in_row", "pieces"),
    [(0, 0, []), (LARGE_BYTES, LARGE_BYTES, []), (LARGE_BYTES + 1, 0, [LARGE_BYTES, 1])],
)
def test_a_large_value_is_stored_in_pieces_and_not_in_its_row(size: int, in_row: int, pieces: list[int]) -> None:
    assert len(inline(bytes(size))) == in_row
    values = [statement.values for statement in write_pieces("tenant", "resp_1", bytes(size))]
    assert [(number, len(piece)) for _, _, number, piece in values] == [*enumerate(pieces)]


def test_only_a_statement_that_says_so_needs_no_transaction() -> None:
    assert autocommit_sql("", 1).autocommit
    assert not sql("", 1).autocommit


class Row(Struct, frozen=True):
    number: int


@pytest.mark.parametrize(("count", "has_more"), [(0, False), (2, False), (3, True)])
def test_a_page_has_more_only_if_one_more_row_was_read(count: int, has_more: bool) -> None:
    rows = [(number,) for number in range(count)]
    assert cut_page(Row, rows, 2) == Page([Row(number) for number in range(min(count, 2))], has_more)


@pytest.mark.parametrize(("count", "size"), [(0, 8), (8, 8), (9, 64), (65, 512)])
def test_a_list_of_parameters_has_one_of_few_sizes(count: int, size: int) -> None:
    text, values = in_list(range(count), 3)
    assert text.count("$") == len(values) == size
    assert text.startswith("($3, $4, ")
    assert values[count:] == [-1] * (size - count)
