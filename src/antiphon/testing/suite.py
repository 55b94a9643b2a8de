"""Test suites as classes: the tests are functions of modules, and a class that collects them gives them fixtures."""

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def shows(*rows: str) -> Callable[[T], T]:
    """Name the rows of requirements.toml that a test shows; the tests of this repository read them."""

    def mark(test: T) -> T:
        setattr(test, "shown_rows", rows)  # noqa: B010 - functions have no such attribute for a type checker
        return test

    return mark


def collect_tests(*modules: ModuleType) -> Callable[[type[T]], type[T]]:
    """Add the tests of modules to a class, which pytest then runs for each subclass with a name that begins with Test.

    They are static methods, since they have no state. Two tests of one name are an error, as one would be lost.
    """

    def add(suite: type[T]) -> type[T]:
        for module in modules:
            for name, test in vars(module).items():
                if name.startswith("test_"):
                    assert name not in vars(suite), f"{module.__name__} has a second {name}"
                    setattr(suite, name, staticmethod(test))
        return suite

    return add
