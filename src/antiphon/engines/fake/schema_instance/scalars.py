"""Small strings and numbers for a JSON schema: candidates, the smallest first.

A candidate need not be valid (bounds may be exclusive, a pattern may be beyond us): instance.py checks each.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from antiphon.core.prompt import Json
from antiphon.engines.fake.schema_instance.pattern import matching

FORMATS = {
    "date-time": "1970-01-01T00:00:00Z",
    "date": "1970-01-01",
    "time": "00:00:00Z",
    "duration": "P0D",
    "email": "a@a.aa",
    "idn-email": "a@a.aa",
    "hostname": "a.a",
    "idn-hostname": "a.a",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "uri": "http://a.a",
    "iri": "http://a.a",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "relative-json-pointer": "0",
}

_LONGEST = 100_000
_LETTERS = "abcdefghijklmnopqrstuvwyz0123456789"
_LENGTHS = 40
_NUMBERS = 1_000


def strings(schemas: Sequence[Json]) -> Iterator[str]:
    least = max((int(schema["minLength"]) for schema in schemas if "minLength" in schema), default=0)
    if least > _LONGEST:
        return
    for schema in schemas:
        if "pattern" in schema:
            yield from matching(schema["pattern"], least)
    for schema in schemas:
        if sample := FORMATS.get(schema.get("format", "")):
            padding = "x" * (least - len(sample))
            yield from (sample, f"{sample}/{padding[1:]}", padding + sample)
    yield from _plain(least)


def _plain(least: int) -> Iterator[str]:
    """Runs of x, then the same with another last letter: an array may want many that differ."""
    for length in range(least, least + _LENGTHS):
        yield "x" * length
    for length in range(max(least, 1), least + 3):
        for letter in _LETTERS:
            yield "x" * (length - 1) + letter


def numbers(schemas: Sequence[Json], *, whole: bool) -> Iterator[int | float]:
    low, high = _bounds(schemas)
    for value in _grid(low, high, _step(schemas, whole=whole)):
        yield _number(value)
    if not whole:
        yield from map(_number, _between(low, high))


def _bounds(schemas: Sequence[Json]) -> tuple[Fraction | None, Fraction | None]:
    """The tightest bounds, inclusive or not; draft 4's boolean exclusiveMinimum is no bound by itself."""
    lows = [
        _fraction(schema[key]) for schema in schemas for key in ("minimum", "exclusiveMinimum") if _has(schema, key)
    ]
    highs = [
        _fraction(schema[key]) for schema in schemas for key in ("maximum", "exclusiveMaximum") if _has(schema, key)
    ]
    return max(lows, default=None), min(highs, default=None)


def _has(schema: Json, key: str) -> bool:
    return not isinstance(schema.get(key, True), bool)


def _step(schemas: Sequence[Json], *, whole: bool) -> Fraction:
    """The distance of the candidates: what all multipleOf have in common, and 1 without any."""
    steps = [_fraction(schema["multipleOf"]) for schema in schemas if "multipleOf" in schema]
    if whole or not steps:
        steps.append(Fraction(1))
    denominator = math.lcm(*(step.denominator for step in steps))
    return Fraction(math.lcm(*(int(step * denominator) for step in steps)), denominator)


def _grid(low: Fraction | None, high: Fraction | None, step: Fraction) -> Iterator[Fraction]:
    """Multiples of the step, the one nearest to zero first, then outward."""
    if low is not None and high is not None and low > high:
        return
    if low is not None and low > 0:
        nearest = math.ceil(low / step)
    elif high is not None and high < 0:
        nearest = math.floor(high / step)
    else:
        nearest = 0
    for distance in range(_NUMBERS):
        for multiple in {nearest + distance: None, nearest - distance: None}:
            value = multiple * step
            if (low is None or low <= value) and (high is None or value <= high):
                yield value


def _between(low: Fraction | None, high: Fraction | None) -> Iterator[Fraction]:
    """For bounds with no whole number between them."""
    if low is not None and high is not None:
        yield from (low + (high - low) * Fraction(part, 100) for part in (50, 0, 100, *range(1, 100)))


def _fraction(value: float) -> Fraction:
    return Fraction(repr(value))


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 and abs(value) < 2**63 else float(value)
