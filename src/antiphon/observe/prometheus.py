"""Counters, histograms and gauges in the Prometheus text format 0.0.4. Incrementing a value takes well under 1 µs.

All access happens in the event loop's thread, so there are no locks. Label values are names from the server (routes,
statuses, engines), never client input, so the number of series is bounded.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Generic, Literal, TypeVar

from msgspec import Struct

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
# a value, values by label or by a pair of labels, or None if the system does not provide the value
GaugeReader = Callable[[], float | Mapping[str, float] | Mapping[tuple[str, str], float] | None]
Sample = tuple[str, float]  # the rendered name with labels, and the value
# how the values of several workers are merged; "each": labelled with `worker`
MergeMode = Literal["sum", "most", "least", "each"]


class FamilySnapshot(Struct, frozen=True, array_like=True):
    """A family of series with its current samples."""

    name: str
    help: str
    kind: str
    merge_mode: MergeMode
    samples: list[Sample]


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount

    def names(self, name: str, labels: str) -> list[str]:
        return [_render_name(name, labels)]

    def values(self) -> list[float]:
        """Return the values in the order of `names`."""
        return [self.value]


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def names(self, name: str, labels: str) -> list[str]:
        bucket_labels = [f'le="{_render_number(bound)}"' for bound in (*self.bounds, math.inf)]
        buckets = [
            _render_name(name + "_bucket", f"{labels},{bucket_label}" if labels else bucket_label)
            for bucket_label in bucket_labels
        ]
        return [*buckets, _render_name(name + "_sum", labels), _render_name(name + "_count", labels)]

    def values(self) -> list[float]:
        """Return the values in the order of `names`."""
        buckets = [float(total) for total in accumulate(self.counts)]
        return [*buckets, self.sum, buckets[-1]]


Child = TypeVar("Child", Counter, Histogram)


class MetricFamily(Generic[Child]):
    """All series of one name, with one child per combination of labels, created once."""

    merge_mode: MergeMode = "sum"

    def __init__(self, name: str, help: str, labels: Labels, kind: str, make: Callable[[], Child]) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.kind = kind
        self._make: Callable[[], Child] = make
        self._children: dict[Labels, Child] = {}
        # rendered sample names; rendering them takes longer than all other work
        self._names: dict[Labels, list[str]] = {}
        if not labels:
            self[()]

    def __getitem__(self, values: Labels) -> Child:
        if (child := self._children.get(values)) is None:
            child = self._children[values] = self._make()
        return child

    def collect(self) -> FamilySnapshot | None:
        """Return the current samples; None if there is no child yet."""
        if not self._children:
            return None
        samples: list[Sample] = []
        for labels, child in self._children.items():
            if (names := self._names.get(labels)) is None:
                names = self._names[labels] = child.names(self.name, _render_labels(self.labels, labels))
            samples += zip(names, child.values(), strict=True)
        return FamilySnapshot(self.name, self.help, self.kind, self.merge_mode, samples)


class Gauge(Struct, frozen=True):
    """Series whose values are read on each scrape."""

    name: str
    help: str
    labels: Labels
    read: GaugeReader
    merge_mode: MergeMode

    @property
    def kind(self) -> str:
        """The type by the naming convention of Prometheus: names of counters end with `_total`."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def collect(self) -> FamilySnapshot:
        return FamilySnapshot(self.name, self.help, self.kind, self.merge_mode, self._read_samples())

    def _read_samples(self) -> list[Sample]:
        match self.read():
            case None:
                return []
            case Mapping() as values:
                # a copy: another thread may add a label value meanwhile
                return [(self._sample_name(key), float(value)) for key, value in list(values.items())]
            case value:
                return [(self.name, float(value))]

    def _sample_name(self, key: str | Labels) -> str:
        return _render_name(self.name, _render_labels(self.labels, (key,) if isinstance(key, str) else key))


Family = MetricFamily[Counter] | MetricFamily[Histogram] | Gauge
F = TypeVar("F", bound=Family)


class Registry:
    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def counter(self, name: str, help: str, labels: Labels = ()) -> MetricFamily[Counter]:
        return self._register(MetricFamily(name, help, labels, "counter", Counter))

    def histogram(
        self, name: str, help: str, labels: Labels = (), *, bounds: tuple[float, ...]
    ) -> MetricFamily[Histogram]:
        return self._register(MetricFamily(name, help, labels, "histogram", lambda: Histogram(bounds)))

    def gauge(
        self, name: str, help: str, labels: Labels = (), *, read: GaugeReader, merge_mode: MergeMode = "sum"
    ) -> None:
        self._register(Gauge(name, help, labels, read, merge_mode))

    def families(self) -> list[Family]:
        """Return all families in the order of output."""
        return [*self._families.values()]

    def collect(self) -> list[FamilySnapshot]:
        return [snapshot for family in self._families.values() if (snapshot := family.collect()) is not None]

    def text(self) -> bytes:
        return render(self.collect())

    def _register(self, family: F) -> F:
        if family.name in self._families:
            raise ValueError(f"metric already registered: {family.name}.")
        self._families[family.name] = family
        return family


def render(families: Iterable[FamilySnapshot]) -> bytes:
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{name} {_render_number(value)}" for name, value in family.samples]
    return "\n".join([*lines, ""]).encode()


def _render_name(name: str, labels: str) -> str:
    return f"{name}{{{labels}}}" if labels else name


def _render_labels(names: Labels, values: Labels) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _render_number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
