"""Filters of a search, applied to the attributes of files."""

import msgspec
import pytest

from antiphon.protocol.types.filters import Filter
from antiphon.service.vector_stores.filters import select_files
from antiphon.stores.vector_rows import AttributeValue, SearchableFile

FILES: dict[str, dict[str, AttributeValue]] = {
    "a": {"year": 2024, "topic": "otters", "draft": True},
    "b": {"year": 2025.5, "topic": "Foxes", "draft": False},
    "c": {"year": "2025", "draft": 1},
    "d": {},
}
ALL = {
    name: SearchableFile(filename=f"{name}.txt", attributes=attributes, changed=1) for name, attributes in FILES.items()
}


def select(condition: object) -> str:
    return "".join(sorted(select_files(ALL, msgspec.convert(condition, Filter))))


@pytest.mark.parametrize(
    ("kind", "key", "value", "expected"),
    [
        ("eq", "year", 2024, "a"),
        ("eq", "year", 2024.0, "a"),
        ("eq", "year", "2025", "c"),
        ("eq", "draft", True, "a"),
        ("eq", "draft", 1, "c"),
        ("eq", "missing", "", ""),
        ("ne", "draft", True, "bcd"),
        ("ne", "topic", "otters", "bcd"),
        ("gt", "year", 2024, "b"),
        ("gte", "year", 2024, "ab"),
        ("lt", "year", 2025.5, "a"),
        ("lte", "year", 2025.5, "ab"),
        ("gt", "topic", "Foxes", "a"),
        ("lte", "topic", "a", "b"),
        ("gte", "draft", 0, "c"),
        ("in", "year", [2024, "2025"], "ac"),
        ("in", "draft", [True], "a"),
        ("nin", "topic", ["otters", "Foxes"], "cd"),
        ("eq", "filename", "d.txt", "d"),
    ],
)
def test_a_comparison_selects_files_by_type_and_value(kind: str, key: str, value: object, expected: str) -> None:
    assert select({"type": kind, "key": key, "value": value}) == expected


def test_comparisons_are_combined_and_nested() -> None:
    draft = {"type": "eq", "key": "draft", "value": True}
    later = {"type": "gt", "key": "year", "value": 2025}
    otters = {"type": "eq", "property": "topic", "value": "otters"}
    assert select({"type": "or", "filters": [draft, later]}) == "ab"
    assert select({"type": "and", "filters": [draft, later]}) == ""
    assert select({"type": "and", "filters": [otters, {"type": "or", "filters": [draft, later]}]}) == "a"


def test_an_attribute_named_filename_comes_before_the_name() -> None:
    files = {"a": SearchableFile(filename="a.txt", attributes={"filename": "other"}, changed=1)}
    condition = msgspec.convert({"type": "eq", "key": "filename", "value": "other"}, Filter)
    assert select_files(files, condition) == {"a"}
