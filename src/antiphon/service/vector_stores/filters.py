"""Applies the filters of a search to the attributes of files.

A comparison with an attribute that a file lacks, or that has another type, is false; `ne` and `nin` are true then.
`filename` is the name of the file, unless it has such an attribute.
"""

from collections.abc import Mapping

from antiphon.protocol.types.filters import (
    AndFilter,
    AtLeastFilter,
    AttributeValue,
    EqualFilter,
    Filter,
    GreaterFilter,
    InFilter,
    LessFilter,
    NotEqualFilter,
    NotInFilter,
    OrFilter,
)
from antiphon.stores.vector_rows import SearchableFile


def select_files(files: Mapping[str, SearchableFile], condition: Filter) -> set[str]:
    """Return the ids of the files that match."""
    return {name for name, file in files.items() if _matches(condition, file)}


def _matches(condition: Filter, file: SearchableFile) -> bool:
    match condition:
        case AndFilter():
            return all(_matches(part, file) for part in condition.filters)
        case OrFilter():
            return any(_matches(part, file) for part in condition.filters)
    actual = file.attributes.get(condition.key, file.filename if condition.key == "filename" else None)
    match condition:
        case EqualFilter():
            return _equals(actual, condition.value)
        case NotEqualFilter():
            return not _equals(actual, condition.value)
        case InFilter():
            return any(_equals(actual, value) for value in condition.value)
        case NotInFilter():
            return not any(_equals(actual, value) for value in condition.value)
    order = _compare(actual, condition.value)
    match condition:
        case GreaterFilter():
            return order == 1
        case AtLeastFilter():
            return order in (0, 1)
        case LessFilter():
            return order == -1
    return order in (-1, 0)


def _equals(actual: AttributeValue | None, value: AttributeValue) -> bool:
    return actual == value and isinstance(actual, bool) == isinstance(value, bool)  # in Python, True equals 1


def _compare(actual: AttributeValue | None, value: AttributeValue) -> int | None:
    """Return −1, 0 or 1, or None for values of different types."""
    if isinstance(actual, bool) or actual is None or isinstance(actual, str) != isinstance(value, str):
        return None
    return (actual > value) - (actual < value)  # type: ignore[operator]  # both are strings, or both are numbers
