"""Counters, histograms and gauges in Prometheus' text format 0.0.4; a value that is added to costs well under 1 µs.

Everything happens in the event loop's thread: there are no locks. Labels are names of ours
(routes, statuses, engines), never what a client wrote, so that the number of series is bounded.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Reading = tuple[Labels, float]
Read = Callable[[], Iterable[Reading]]


class Counter:
    __slots__ = ("value",)
    kind = "counter"

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount

    def lines(self, name: str, labels: str) -> Iterator[str]:
        yield _line(name, labels, self.value)


class Histogram:
    __slots__ = ("bounds", "counts", "sum")
    kind = "histogram"

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            mark = f'le="{_number(bound)}"'
            yield _line(name + "_bucket", f"{labels},{mark}" if labels else mark, total)
        yield _line(name + "_sum", labels, self.sum)
        yield _line(name + "_count", labels, total)


Child = TypeVar("Child", Counter, Histogram)


class Family(Generic[Child]):
    """Series of one name; a child for each combination of labels, made once and kept."""

    def __init__(self, name: str, help: str, labels: Labels, kind: str, make: Callable[[], Child]) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.kind = kind
        self._make: Callable[[], Child] = make
        self._children: dict[Labels, Child] = {}
        if not labels:
            self[()]

    def __getitem__(self, values: Labels) -> Child:
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = self._make()
        return child

    def lines(self) -> Iterator[str]:
        for number, (values, child) in enumerate(self._children.items()):
            if number == 0:
                yield from _head(self.name, self.help, self.kind)
            yield from child.lines(self.name, _pairs(self.labels, values))


class Gauge:
    """Read when somebody asks."""

    def __init__(self, name: str, help: str, labels: Labels, read: Read, kind: str) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.kind = kind
        self._read = read

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, self.kind)
        for values, value in self._read():
            yield _line(self.name, _pairs(self.labels, values), value)


class Registry:
    def __init__(self, everywhere: str = "") -> None:
        """`everywhere`: a label of every series, as it is written."""
        self._everywhere = everywhere
        self._families: dict[str, Family[Counter] | Family[Histogram] | Gauge] = {}

    def counter(self, name: str, help: str, labels: Labels = ()) -> Family[Counter]:
        family = Family(name, help, labels, Counter.kind, Counter)
        self._keep(family)
        return family

    def histogram(self, name: str, help: str, labels: Labels = (), *, bounds: tuple[float, ...]) -> Family[Histogram]:
        family = Family(name, help, labels, Histogram.kind, lambda: Histogram(bounds))
        self._keep(family)
        return family

    def gauge(self, name: str, help: str, labels: Labels = (), *, read: Read, kind: str = "gauge") -> None:
        self._keep(Gauge(name, help, labels, read, kind))

    def families(self) -> "list[Family[Counter] | Family[Histogram] | Gauge]":
        """All that there is, in the order in which it is told."""
        return [*self._families.values()]

    def text(self) -> bytes:
        lines = self._lines() if not self._everywhere else map(self._labelled, self._lines())
        return "\n".join([*lines, ""]).encode()

    def _labelled(self, line: str) -> str:
        if line.startswith("#"):
            return line
        name, brace, rest = line.partition("{")
        if brace:
            return f"{name}{{{self._everywhere},{rest}"
        name, _, value = line.partition(" ")
        return f"{name}{{{self._everywhere}}} {value}"

    def _lines(self) -> Iterator[str]:
        for family in self._families.values():
            yield from family.lines()

    def _keep(self, family: Family[Counter] | Family[Histogram] | Gauge) -> None:
        if family.name in self._families:
            raise ValueError(f"there is a series {family.name} already")
        self._families[family.name] = family


def _head(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"


def _pairs(names: Labels, values: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
