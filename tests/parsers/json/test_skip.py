"""How far text is valid JSON: a leap ends after a value or at the beginning of a container, and tells what is open."""

import pytest

from antiphon.parsers.json.skip import CONTAINER, DEEPEST, LONG, after, leap


@pytest.mark.parametrize(
    ("text", "closer", "end", "opened"),
    [
        ('{"a": 1} rest', "", '{"a": 1}', None),
        ('{"a": 1, "b": [2, 3', "", '{"a": 1, "b": [2', ["}", "]"]),
        ('{"a": 1, "b": "tex', "", '{"a": 1', ["}"]),
        ('{"a": 1, "b": x}', "", '{"a": 1', ["}"]),
        ('{"a": "b", "c"', "", '{"a": "b"', ["}"]),
        ('["a", "b"', "", '["a", "b"', ["]"]),
        ('{"a": {"b": [', "", '{"a": {"b": [', ["}", "}", "]"]),
        ('{"a', "", "{", ["}"]),
        ('{"a\\"": ["\\\\", "], [', "", '{"a\\"": ["\\\\"', ["}", "]"]),
        (", 2, [3], 4", "]", ", 2, [3]", []),
        (', "b": {"c": 1}, "d"', "}", ', "b": {"c": 1}', []),
        ("] rest", "]", "]", None),
        (".25, 1]", "]", "", []),
        (", NaN]", "]", "", []),
        ("x", "]", "", []),
    ],
)
def test_a_leap_ends_after_a_value_or_where_a_container_begins(
    text: str, closer: str, end: str, opened: list[str] | None
) -> None:
    landed = leap(f"..{text}", 2, LONG, closer, bool(closer))
    assert (f"..{text}"[2 : landed.end], landed.opened) == (end, opened)


def test_a_leap_counts_commas_and_containers_and_says_if_it_goes_too_deep() -> None:
    assert leap('{"a": [1, 2], "b, [": {}}', 0, LONG, "", 0).parts == 2 + 3 * CONTAINER
    assert leap(", [1], {}]", 0, LONG, "]", 1).parts == 2 + 2 * CONTAINER
    assert not leap("[" * DEEPEST + "]" * DEEPEST, 0, LONG, "", 0).deep
    assert not leap("[]," * 200, 0, LONG, "", 0).deep
    assert leap("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), 0, LONG, "", 0).deep
    assert leap("[" * (DEEPEST + 1), 0, LONG, "", 0).deep
    assert leap("," + "[" * DEEPEST + "]" * DEEPEST, 0, LONG, "]", 1).deep


def test_after_goes_over_long_stretches() -> None:
    assert after(" \n" * 10_000 + "x", 0, " \n") == 20_000
    assert after("abc", 1, " ") == 1
    assert after("  ", 0, " ") == 2
