"""Lists that several requests share, with values that are derived from them once."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
D = TypeVar("D")


class SharedList(list[T]):
    """A list that is not changed any more. What depends on nothing but its entries is computed once: see `derive`."""

    __slots__ = ("derived",)

    def __init__(self, entries: Iterable[T]) -> None:
        super().__init__(entries)
        self.derived: dict[Hashable, Any] = {}


class SharedTuple(tuple[T, ...]):
    """The same as a tuple."""

    derived: dict[Hashable, Any]

    def __new__(cls, entries: Iterable[T]) -> "SharedTuple[T]":
        shared = super().__new__(cls, entries)
        shared.derived = {}
        return shared


def derive(entries: Sequence[T], key: Hashable, build: Callable[[], D]) -> D:
    """Return `build()`, which must depend on nothing but the entries and `key`: computed once for a shared list."""
    if not isinstance(entries, SharedList | SharedTuple):
        return build()
    if key not in entries.derived:
        entries.derived[key] = build()
    value: D = entries.derived[key]
    return value
