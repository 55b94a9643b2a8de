"""Versions of skills, as clients write them."""

import pytest

from antiphon.stores.sql.skills import _parse_number


@pytest.mark.parametrize(
    ("version", "number"),
    [("1", 1), ("999999999", 999_999_999), ("1000000000", 0), ("0", 0), ("01", 0), ("-1", 0), ("", 0), ("²", 0)],
)
def test_a_version_is_a_number_of_at_most_nine_digits(version: str, number: int) -> None:
    assert _parse_number(version) == number
