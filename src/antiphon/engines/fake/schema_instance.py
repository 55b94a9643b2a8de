"""Finds a small valid instance of a JSON schema: the required properties of an object, the minimum number of items of
an array, the first alternative that works, numbers near zero, and short strings.

It evaluates types, `enum`, `const`, bounds, `format`, `properties`, `required`, `items`, `prefixItems`, `$ref`,
`allOf`, `anyOf` and `oneOf`, and `pattern` with the extra `lark`. The result is validated: a schema whose other
keywords (`not`, `if`, `contains`, …) exclude it is rejected with the name of the keyword.

Short sentences of Lark grammars and regular expressions are found with llguidance, which the extra `lark` installs.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import lru_cache, partial, reduce
from importlib import import_module
from itertools import islice
from operator import add
from typing import Any

import jsonschema_rs
from msgspec.json import encode

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.schemas.grammars import escape_lark_regex, has_lark
from antiphon.protocol.schemas.schema_edits import find_reference

_FORMAT_SAMPLES = {
    "date-time": "1970-01-01T00:00:00Z", "date": "1970-01-01", "time": "00:00:00Z", "duration": "P0D",
    "email": "a@a.aa", "hostname": "a.a", "ipv4": "0.0.0.0", "ipv6": "::", "uri": "http://a.a",
    "uuid": "00000000-0000-0000-0000-000000000000",
}  # fmt: skip
_TYPE_HINTS = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": (),
    "null": (),
}
_SCALAR_KEYWORDS = ("type", "enum", "const", *_TYPE_HINTS["string"], *_TYPE_HINTS["number"])
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")
_VALIDATOR_OPTIONS: dict[str, Any] = {
    "validate_formats": True,
    "offline": True,
    "pattern_options": jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000),
}
_MAX_EFFORT = 10_000  # values and characters built before the search gives up
_MAX_VARIANTS = 100  # candidates tried for one scalar, and for the complete instance
_OFFSETS = sorted(range(-25, 26), key=lambda offset: (abs(offset), -offset))  # of the multiples tried for a number
_MISSING = object()
_GRAMMAR_PREFIX = "It must match this Lark grammar:\n"
# printable ASCII, in the order in which continuations are tried
_TRIED_BYTES = b"\n a0" + bytes(byte for byte in range(33, 127) if byte not in b"a0")
_MAX_STATES = 500  # matcher states examined before giving up
_MAX_BYTES = 2000  # of a sentence; matching a pattern of nested repetitions takes time quadratic in its length

Refs = tuple[str, ...]


def smallest_instance(schema: Json | bool, param: str | None = None) -> str:
    """Return the instance as compact JSON; raises `InvalidValue` with `param` if none is found."""
    try:
        return _find_smallest(encode(schema, order="sorted"))
    except InvalidValue as error:
        raise InvalidValue(error.message, param=param) from None


@lru_cache(maxsize=256)
def _find_smallest(encoded: bytes) -> str:
    schema = json.loads(encoded)
    try:
        validator = jsonschema_rs.validator_for(schema, **_VALIDATOR_OPTIONS)
    except ValueError as error:
        message = str(error).splitlines()[0].rstrip(".")
        raise InvalidValue(f"The fake engine cannot read this JSON schema: {message}.") from None
    search, problem = _InstanceSearch(schema), ""
    try:
        for value in islice(search.instances(schema, (), ("#",)), _MAX_VARIANTS):
            if validator.is_valid(value):
                return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            if not problem:
                path = next(validator.iter_errors(value)).schema_path
                problem = f": it cannot satisfy the keyword at '/{'/'.join(map(str, path))}'"
    except RecursionError:
        problem = problem or ": it is too large"
    raise InvalidValue(f"The fake engine found no valid instance of this JSON schema{problem or search.dead_end}.")


class _InstanceSearch:
    """Depth-first search for instances of a schema, with bounded effort."""

    def __init__(self, root: Any) -> None:
        self.dead_end = ""  # the first scalar without a value, for the error message
        self._root = root
        self._dialect = {"$schema": root["$schema"]} if isinstance(root, dict) and "$schema" in root else {}
        self._effort = _MAX_EFFORT

    def instances(self, schema: Any, above: Refs, entered: Refs = ()) -> Iterator[Any]:
        """Yield candidates, the smallest first; none for a schema that accepts nothing.

        `above` are the $refs entered on the path to this value, `entered` those of this value itself.
        """
        self._spend(1)
        if schema is False:
            return
        schema = {} if schema is True else schema
        applicator = next((key for key in _APPLICATORS if key in schema), None)
        siblings = {key: value for key, value in schema.items() if key != applicator}
        if applicator is None:
            yield from self._plain_instances(schema, above + entered)
        elif applicator == "allOf":
            yield from self.instances(reduce(_merge, schema["allOf"], siblings), above, entered)
        elif applicator != "$ref":
            for alternative in schema[applicator]:
                yield from self.instances(_merge(siblings, alternative), above, entered)
        elif (reference := schema["$ref"]) in entered:
            yield from self.instances(siblings, above, entered)
        elif reference not in above:  # a recursion is not entered again: another alternative ends it
            if (target := find_reference(reference, self._root)) is None:
                raise InvalidValue(f"The fake engine does not support the $ref {reference[:100]!r}.")
            yield from self.instances(_merge(siblings, target), above, (*entered, reference))

    def _spend(self, effort: int) -> None:
        self._effort -= effort
        if self._effort < 0:
            raise RecursionError  # the same for the caller as a schema that is nested too deeply

    def _plain_instances(self, schema: Json, refs: Refs) -> Iterator[Any]:
        if "const" in schema or "enum" in schema:
            yield from self._valid_scalars([schema["const"]] if "const" in schema else schema["enum"], schema)
            return
        self._spend(int(schema.get("minLength", 0)) + int(schema.get("minItems", 0)))
        for kind in _candidate_types(schema):
            if kind == "object":
                yield from self._objects(schema, refs)
            elif kind == "array":
                yield from self._arrays(schema, refs)
            else:
                yield from self._valid_scalars(_SCALARS[kind](schema), {**schema, "type": kind})

    def _valid_scalars(self, candidates: Iterable[Any], schema: Json) -> Iterator[Any]:
        bounds = {key: schema[key] for key in _SCALAR_KEYWORDS if key in schema}
        validator = jsonschema_rs.validator_for({**self._dialect, **bounds}, **_VALIDATOR_OPTIONS)
        found = False
        for value in islice(candidates, _MAX_VARIANTS):
            if validator.is_valid(value):
                found = True
                yield value
        if not found:
            self.dead_end = self.dead_end or f": it cannot satisfy {json.dumps(bounds)[:200]}"

    def _objects(self, schema: Json, refs: Refs) -> Iterator[Json]:
        properties = schema.get("properties", {})
        names = list(dict.fromkeys(schema.get("required", ())))
        optional = [name for name in properties if name not in names]
        names += optional[: max(int(schema.get("minProperties", 0)) - len(names), 0)]
        filled: Json = {}
        for name in names:
            part = properties.get(name, schema.get("additionalProperties", True))
            filled[name] = next(self.instances(part, refs), _MISSING)
        if _MISSING not in filled.values():
            yield filled

    def _arrays(self, schema: Json, refs: Refs) -> Iterator[list[Any]]:
        prefix, remainder = schema.get("prefixItems", ()), schema.get("items", True)
        if isinstance(remainder, list):  # the form of prefixItems before draft 2020-12
            prefix, remainder = remainder, schema.get("additionalItems", True)
        unique, items = schema.get("uniqueItems", False), list[Any]()
        for index in range(int(schema.get("minItems", 0))):
            values = self.instances(prefix[index] if index < len(prefix) else remainder, refs)
            value = next((value for value in values if not (unique and value in items)), _MISSING)
            if value is _MISSING:
                return
            items.append(value)
        yield items


def _merge(one: Any, other: Any) -> Any:
    """Return a schema that accepts what both accept; a keyword that cannot be combined is taken from `other`."""
    if isinstance(one, bool) or isinstance(other, bool):
        return False if one is False or other is False else one if other is True else other
    merged, shared = {**one, **other}, one.keys() & other.keys()
    merged |= {key: _COMBINERS[key](one[key], other[key]) for key in shared & _COMBINERS.keys()}
    if "type" in shared:
        merged["type"] = _common_types(one, other)
        if not merged["type"]:
            return False
    also = [{key: one[key]} for key in _APPLICATORS if key in shared]  # alternatives that `other` would replace
    return {**merged, "allOf": [*merged.get("allOf", ()), *also]} if also else merged


def _merge_properties(one: Json, other: Json) -> Json:
    return {**other, **{name: _merge(part, other.get(name, True)) for name, part in one.items()}}


_COMBINERS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    **dict.fromkeys(("items", "additionalProperties"), _merge),
    "properties": _merge_properties,
    "required": add,
}


def _candidate_types(schema: Json) -> list[str]:
    """Return the declared types, or else those whose keywords the schema uses, or else all."""
    if "type" in schema:
        return [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return [kind for kind, hints in _TYPE_HINTS.items() if any(hint in schema for hint in hints)] or [*_TYPE_HINTS]


def _common_types(one: Json, other: Json) -> list[str]:
    first, second = _candidate_types(one), _candidate_types(other)
    return [kind for kind in first if kind in second] or ["integer"] * ({"integer", "number"} <= {*first, *second})


def _strings(schema: Json) -> Iterator[str]:
    sample, min_length = _FORMAT_SAMPLES.get(schema.get("format", ""), ""), int(schema.get("minLength", 0))
    if "pattern" in schema:
        yield find_pattern_match(schema["pattern"], min_length)
    yield "x" * (min_length - len(sample)) + sample
    yield from ("x" * length for length in range(min_length, min_length + _MAX_VARIANTS))


def _numbers(schema: Json, *, integral: bool = False) -> Iterator[int | float]:
    """Yield multiples of the step, from the one nearest to zero within the bounds on, then the middle of the bounds."""
    lows, highs = _bounds(schema, "minimum", "exclusiveMinimum"), _bounds(schema, "maximum", "exclusiveMaximum")
    step = Fraction(repr(schema.get("multipleOf", 1)))
    step = Fraction(step.numerator) if integral else step
    nearest = round(min([max([Fraction(0), *lows]), *highs]) / step)
    candidates = [(nearest + offset) * step for offset in _OFFSETS]
    for value in [*candidates, (max(lows) + min(highs)) / 2] if lows and highs else candidates:
        yield int(value) if value.denominator == 1 and abs(value) < 2**63 else float(value)


def _bounds(schema: Json, *keys: str) -> list[Fraction]:
    """Return the bounds of these keywords; the boolean exclusiveMinimum of draft 4 is not a bound by itself."""
    return [Fraction(repr(schema[key])) for key in keys if not isinstance(schema.get(key, True), bool)]


_SCALARS: dict[str, Callable[[Json], Iterable[Any]]] = {
    "string": _strings,
    "number": _numbers,
    "integer": partial(_numbers, integral=True),
    "boolean": lambda _: (False, True),
    "null": lambda _: (None,),
}


def find_grammar_input(parameters: Json) -> str | None:
    """Return input for a custom tool whose input description, as models read it, contains a Lark grammar; None if there
    is no grammar or no sentence was found.
    """
    input_schema = parameters.get("properties", {}).get("input", {})
    description = input_schema.get("description", "") if isinstance(input_schema, dict) else ""
    _, prefix, grammar = str(description).partition(_GRAMMAR_PREFIX)
    return _find_sentence(grammar) if prefix and has_lark() else None


def find_pattern_match(pattern: str, min_length: int = 0) -> str:
    """Return a short string of at least `min_length` characters that the complete regular expression matches."""
    if not has_lark():
        raise InvalidValue(
            "The fake engine generates text for a regular expression only with the extra `lark`: "
            "pip install 'antiphon[lark]'."
        )
    longer = rf" & /(.|\n){{{min_length},}}/" if min_length else ""
    if (sentence := _find_sentence(f"start: TEXT\nTEXT: /{escape_lark_regex(pattern)}/{longer}")) is None:
        raise InvalidValue(f"The fake engine found no text that matches the regular expression {pattern[:100]!r}.")
    return sentence


@lru_cache(maxsize=64)
def _find_sentence(grammar: str) -> str | None:
    """Search breadth-first for a sentence with the fewest choices; None if none is found."""
    start = import_module("antiphon.protocol.schemas.lark").compiled(grammar).deep_copy()
    queue = deque([] if start.is_error() else [(_consume_forced(start), start)])
    for _ in range(_MAX_STATES):
        if not queue:
            return None
        text, matcher = queue.popleft()
        if matcher.is_accepting():
            return text.decode("utf-8", "replace") if len(text) <= _MAX_BYTES else None
        queue += [(text + addition, successor) for addition, successor in _successors(matcher)]
    return None


def _successors(matcher: Any) -> Iterator[tuple[bytes, Any]]:
    """Yield continuations of one character and the characters that must follow it; of those after which the same
    characters may follow, only the first.
    """
    allowed, seen = matcher.compute_bitmask(), set[bytes]()
    for byte in _TRIED_BYTES:
        if allowed[byte // 8] >> byte % 8 & 1:
            successor = matcher.deep_copy()
            successor.consume_tokens([byte])
            addition = bytes([byte]) + _consume_forced(successor)
            if (follow := successor.compute_bitmask()) not in seen:
                seen.add(follow)
                yield addition, successor


def _consume_forced(matcher: Any) -> bytes:
    forced = bytes(matcher.compute_ff_bytes())
    matcher.consume_tokens(list(forced))
    return forced
