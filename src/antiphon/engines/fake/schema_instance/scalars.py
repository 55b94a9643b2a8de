"""Candidates for small strings and numbers of a JSON schema, the smallest first.

A candidate may be invalid (bounds may be exclusive, a pattern unsupported): `instance.py` checks each.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from antiphon.core.prompt import Json
from antiphon.engines.fake.schema_instance.pattern import generate_matches

FORMAT_SAMPLES = {
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

_MAX_LENGTH = 100_000
_LETTERS = "abcdefghijklmnopqrstuvwyz0123456789"
_LENGTHS_TRIED = 40
_MAX_DISTANCE = 1_000


def string_candidates(schemas: Sequence[Json]) -> Iterator[str]:
    min_length = max((int(schema["minLength"]) for schema in schemas if "minLength" in schema), default=0)
    if min_length > _MAX_LENGTH:
        return
    for schema in schemas:
        if "pattern" in schema:
            yield from generate_matches(schema["pattern"], min_length)
    for schema in schemas:
        if sample := FORMAT_SAMPLES.get(schema.get("format", "")):
            padding = "x" * (min_length - len(sample))
            yield from (sample, f"{sample}/{padding[1:]}", padding + sample)
    yield from _plain_strings(min_length)


def _plain_strings(min_length: int) -> Iterator[str]:
    """Yield runs of x, then the same with another last character: an array of unique items may need many different
    strings.
    """
    for length in range(min_length, min_length + _LENGTHS_TRIED):
        yield "x" * length
    for length in range(max(min_length, 1), min_length + 3):
        for letter in _LETTERS:
            yield "x" * (length - 1) + letter


def number_candidates(schemas: Sequence[Json], *, integral: bool) -> Iterator[int | float]:
    low, high = _bounds(schemas)
    for value in _grid(low, high, _grid_step(schemas, integral=integral)):
        yield _to_number(value)
    if not integral:
        yield from map(_to_number, _between(low, high))


def _bounds(schemas: Sequence[Json]) -> tuple[Fraction | None, Fraction | None]:
    """Return the tightest bounds, inclusive or not; the boolean exclusiveMinimum of draft 4 is not a bound by
    itself.
    """
    lows = [
        _to_fraction(schema[key])
        for schema in schemas
        for key in ("minimum", "exclusiveMinimum")
        if _has_bound(schema, key)
    ]
    highs = [
        _to_fraction(schema[key])
        for schema in schemas
        for key in ("maximum", "exclusiveMaximum")
        if _has_bound(schema, key)
    ]
    return max(lows, default=None), min(highs, default=None)


def _has_bound(schema: Json, key: str) -> bool:
    return not isinstance(schema.get(key, True), bool)


def _grid_step(schemas: Sequence[Json], *, integral: bool) -> Fraction:
    """Return the distance between candidates: the least common multiple of all multipleOf, or 1."""
    steps = [_to_fraction(schema["multipleOf"]) for schema in schemas if "multipleOf" in schema]
    if integral or not steps:
        steps.append(Fraction(1))
    denominator = math.lcm(*(step.denominator for step in steps))
    return Fraction(math.lcm(*(int(step * denominator) for step in steps)), denominator)


def _grid(low: Fraction | None, high: Fraction | None, step: Fraction) -> Iterator[Fraction]:
    """Yield multiples of the step within the bounds, the one nearest to zero first, then outward."""
    if low is not None and high is not None and low > high:
        return
    if low is not None and low > 0:
        nearest = math.ceil(low / step)
    elif high is not None and high < 0:
        nearest = math.floor(high / step)
    else:
        nearest = 0
    for distance in range(_MAX_DISTANCE):
        for multiple in {nearest + distance: None, nearest - distance: None}:
            value = multiple * step
            if (low is None or low <= value) and (high is None or value <= high):
                yield value


def _between(low: Fraction | None, high: Fraction | None) -> Iterator[Fraction]:
    """Yield fractions, for bounds that have no integer between them."""
    if low is not None and high is not None:
        yield from (low + (high - low) * Fraction(part, 100) for part in (50, 0, 100, *range(1, 100)))


def _to_fraction(value: float) -> Fraction:
    return Fraction(repr(value))


def _to_number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 and abs(value) < 2**63 else float(value)
