"""Counters, histograms and gauges in Prometheus' text format 0.0.4; a value that is added to costs well under 1 µs.

Everything happens in the event loop's thread: there are no locks. Labels are names of ours
(routes, statuses, engines), never what a client wrote, so that the number of series is bounded.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Generic, Literal, TypeVar

from msgspec import Struct

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Reading = tuple[Labels, float]
Read = Callable[[], Iterable[Reading]]
Sample = tuple[str, float]  # the name with its labels, as it is written, and the value
Joining = Literal["sum", "most", "least", "each"]  # what several workers say of one series; each: labelled `worker`


class Told(Struct, frozen=True, array_like=True):
    """A family of series, with all that it has to tell just now."""

    name: str
    help: str
    kind: str
    joining: Joining
    samples: list[Sample]


class Counter:
    __slots__ = ("value",)
    kind = "counter"

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount

    def names(self, name: str, labels: str) -> list[str]:
        return [_named(name, labels)]

    def values(self) -> list[float]:
        """In the order of the names."""
        return [self.value]


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

    def names(self, name: str, labels: str) -> list[str]:
        marks = [f'le="{_number(bound)}"' for bound in (*self.bounds, math.inf)]
        buckets = [_named(name + "_bucket", f"{labels},{mark}" if labels else mark) for mark in marks]
        return [*buckets, _named(name + "_sum", labels), _named(name + "_count", labels)]

    def values(self) -> list[float]:
        """In the order of the names."""
        buckets = [float(total) for total in accumulate(self.counts)]
        return [*buckets, self.sum, buckets[-1]]


Child = TypeVar("Child", Counter, Histogram)


class Family(Generic[Child]):
    """Series of one name; a child for each combination of labels, made once and kept."""

    joining: Joining = "sum"

    def __init__(self, name: str, help: str, labels: Labels, kind: str, make: Callable[[], Child]) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.kind = kind
        self._make: Callable[[], Child] = make
        self._children: dict[Labels, Child] = {}
        self._names: dict[Labels, list[str]] = {}  # of what they tell; to make them takes longer than all the rest
        if not labels:
            self[()]

    def __getitem__(self, values: Labels) -> Child:
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = self._make()
        return child

    def told(self) -> Told | None:
        """None: nobody has counted anything yet."""
        if not self._children:
            return None
        samples: list[Sample] = []
        for labels, child in self._children.items():
            samples += zip(self._named(labels, child), child.values(), strict=True)
        return Told(self.name, self.help, self.kind, self.joining, samples)

    def _named(self, labels: Labels, child: Child) -> list[str]:
        names = self._names.get(labels)
        if names is None:
            names = self._names[labels] = child.names(self.name, _pairs(self.labels, labels))
        return names


class Gauge:
    """Read when somebody asks."""

    def __init__(self, name: str, help: str, labels: Labels, read: Read, kind: str, joining: Joining) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.kind = kind
        self.joining: Joining = joining
        self._read = read

    def told(self) -> Told:
        samples = [(_named(self.name, _pairs(self.labels, values)), value) for values, value in self._read()]
        return Told(self.name, self.help, self.kind, self.joining, samples)


class Registry:
    def __init__(self) -> None:
        self._families: dict[str, Family[Counter] | Family[Histogram] | Gauge] = {}

    def counter(self, name: str, help: str, labels: Labels = ()) -> Family[Counter]:
        family = Family(name, help, labels, Counter.kind, Counter)
        self._keep(family)
        return family

    def histogram(self, name: str, help: str, labels: Labels = (), *, bounds: tuple[float, ...]) -> Family[Histogram]:
        family = Family(name, help, labels, Histogram.kind, lambda: Histogram(bounds))
        self._keep(family)
        return family

    def gauge(
        self,
        name: str,
        help: str,
        labels: Labels = (),
        *,
        read: Read,
        kind: str = "gauge",
        joining: Joining = "sum",
    ) -> None:
        self._keep(Gauge(name, help, labels, read, kind, joining))

    def families(self) -> "list[Family[Counter] | Family[Histogram] | Gauge]":
        """All that there is, in the order in which it is told."""
        return [*self._families.values()]

    def told(self) -> list[Told]:
        return [told for family in self._families.values() if (told := family.told()) is not None]

    def text(self) -> bytes:
        return rendered(self.told())

    def _keep(self, family: Family[Counter] | Family[Histogram] | Gauge) -> None:
        if family.name in self._families:
            raise ValueError(f"there is a series {family.name} already")
        self._families[family.name] = family


def rendered(families: Iterable[Told]) -> bytes:
    lines = []
    for one in families:
        lines += [f"# HELP {one.name} {one.help}", f"# TYPE {one.name} {one.kind}"]
        lines += [f"{name} {_number(value)}" for name, value in one.samples]
    return "\n".join([*lines, ""]).encode()


def _named(name: str, labels: str) -> str:
    return f"{name}{{{labels}}}" if labels else name


def _pairs(names: Labels, values: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
