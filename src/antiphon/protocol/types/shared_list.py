"""A list that several requests share, with values that are derived from it once."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
D = TypeVar("D")


class SharedList(list[T]):
    """A list that several requests share. Values that are derived from it alone are computed once."""

    __slots__ = ("_derived",)

    def __init__(self, entries: Iterable[T]) -> None:
        super().__init__(entries)
        self._derived: dict[Hashable, Any] = {}

    def derive(self, key: Hashable, build: Callable[[], D]) -> D:
        """Return the value of `build`, which must depend on nothing but the entries and `key`."""
        if key not in self._derived:
            self._derived[key] = build()
        value: D = self._derived[key]
        return value


def derive(entries: list[T], key: Hashable, build: Callable[[], D]) -> D:
    """Return `build()`, computed once if the list is shared."""
    return entries.derive(key, build) if isinstance(entries, SharedList) else build()
