"""Applies the filters of a search to the attributes of files.

A comparison with an attribute that a file lacks, or that has another type, is false; `ne` and `nin` are true then.
`filename` is the name of the file, unless it has such an attribute.
"""

from collections.abc import Mapping

from antiphon.protocol.types import filters as wire
from antiphon.stores.vector_rows import SearchableFile

# The results of `_compare` with which a comparison is true.
_ORDERS = {wire.GreaterFilter: (1,), wire.AtLeastFilter: (0, 1), wire.LessFilter: (-1,), wire.AtMostFilter: (-1, 0)}


def select_files(files: Mapping[str, SearchableFile], condition: wire.Filter) -> set[str]:
    return {name for name, file in files.items() if _matches(condition, file)}


def _matches(condition: wire.Filter, file: SearchableFile) -> bool:
    if isinstance(condition, wire.AndFilter | wire.OrFilter):
        combine = all if isinstance(condition, wire.AndFilter) else any
        return combine(_matches(part, file) for part in condition.filters)
    actual = file.attributes.get(condition.key, file.filename if condition.key == "filename" else None)
    match condition:
        case wire.EqualFilter():
            return _equals(actual, condition.value)
        case wire.NotEqualFilter():
            return not _equals(actual, condition.value)
        case wire.InFilter():
            return any(_equals(actual, value) for value in condition.value)
        case wire.NotInFilter():
            return not any(_equals(actual, value) for value in condition.value)
        case _:
            return _compare(actual, condition.value) in _ORDERS[type(condition)]


def _equals(actual: wire.AttributeValue | None, value: wire.AttributeValue) -> bool:
    return actual == value and isinstance(actual, bool) == isinstance(value, bool)  # in Python, True equals 1


def _compare(actual: wire.AttributeValue | None, value: wire.AttributeValue) -> int | None:
    """Return −1, 0 or 1, or None for values of different types."""
    if isinstance(actual, bool) or actual is None or isinstance(actual, str) != isinstance(value, str):
        return None
    return (actual > value) - (actual < value)  # type: ignore[operator]  # both are strings, or both are numbers
