"""How far text is valid JSON: a skip ends after a value or at the start of a container, and reports the open
containers.
"""

import pytest

from antiphon.parsers.json.skip import CONTAINER_WEIGHT, MAX_DEPTH, MAX_SKIP_LENGTH, skip_characters, skip_valid_json


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
def test_a_skip_ends_after_a_value_or_at_the_start_of_a_container(
    text: str, closer: str, end: str, opened: list[str] | None
) -> None:
    skipped = skip_valid_json(f"..{text}", 2, MAX_SKIP_LENGTH, closer, bool(closer))
    assert (f"..{text}"[2 : skipped.end], skipped.opened) == (end, opened)


def test_a_skip_counts_commas_and_containers_and_reports_excessive_depth() -> None:
    assert skip_valid_json('{"a": [1, 2], "b, [": {}}', 0, MAX_SKIP_LENGTH, "", 0).parts == 2 + 3 * CONTAINER_WEIGHT
    assert skip_valid_json(", [1], {}]", 0, MAX_SKIP_LENGTH, "]", 1).parts == 2 + 2 * CONTAINER_WEIGHT
    assert not skip_valid_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, 0, MAX_SKIP_LENGTH, "", 0).too_deep
    assert not skip_valid_json("[]," * 200, 0, MAX_SKIP_LENGTH, "", 0).too_deep
    assert skip_valid_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 0, MAX_SKIP_LENGTH, "", 0).too_deep
    assert skip_valid_json("[" * (MAX_DEPTH + 1), 0, MAX_SKIP_LENGTH, "", 0).too_deep
    assert skip_valid_json("," + "[" * MAX_DEPTH + "]" * MAX_DEPTH, 0, MAX_SKIP_LENGTH, "]", 1).too_deep


def test_long_runs_of_characters_are_skipped() -> None:
    assert skip_characters(" \n" * 10_000 + "x", 0, " \n") == 20_000
    assert skip_characters("abc", 1, " ") == 1
    assert skip_characters("  ", 0, " ") == 2
