"""Finds the smallest valid instance of a JSON schema. Every returned value is validated.

"Smallest" means: the required properties of an object, the minimum number of items of an array, the first alternative
that works (anyOf, oneOf, enum, a list of types) in the order written, numbers near zero, and short strings.

A node of the search is a conjunction of sub-schemas (parts): following $ref and allOf adds parts, and each choice of
anyOf, oneOf, if and dependentSchemas gives another conjunction. Candidates of a conjunction are checked against each of
its parts, so a wrong guess costs time, not correctness.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice, product
from typing import Any

import jsonschema_rs
from msgspec.json import encode

from antiphon.core.prompt import Json
from antiphon.engines.fake.schema_instance.scalars import number_candidates, string_candidates
from antiphon.engines.fake.schema_instance.subschemas import (
    VALIDATOR_OPTIONS,
    SchemaPart,
    SchemaParts,
    candidate_types,
    item_parts,
    list_alternatives,
    max_keyword,
    property_parts,
    required_properties,
    resolve_ref,
)
from antiphon.errors import InvalidValue

_MAX_CANDIDATES = 10_000  # candidates examined before giving up, for each recursion depth
_MAX_RECURSION = 4  # how often a $ref may be entered again below itself
_FIRST_CANDIDATES = 4  # candidates of an alternative that are examined before the next alternative
_MAX_ITEMS = 10_000
_MAX_ARRAY_CHARS = 1_000_000  # limit for an array of equal items

_MISSING = object()

Refs = tuple[str, ...]  # the $refs entered on the path to a node


class _SearchExhausted(Exception):
    """The search used up its candidates."""


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
        validator = jsonschema_rs.validator_for(schema, **VALIDATOR_OPTIONS)
    except ValueError as error:
        raise InvalidValue(f"The fake engine cannot read this JSON schema: {_first_line(error)}.") from None
    for recursion in range(_MAX_RECURSION + 1):
        search = _InstanceSearch(schema, recursion)
        try:
            for value in search.instances((search.root,), (search.root.pointer,)):
                if validator.is_valid(value):
                    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except (_SearchExhausted, RecursionError):
            continue
        if not search.recursion_limited:
            break
    raise InvalidValue("The fake engine found no valid instance of this JSON schema.")


def _first_line(error: ValueError) -> str:
    return str(error).splitlines()[0].rstrip(".")


class _InstanceSearch:
    """Depth-first search for instances, with bounded effort and recursion."""

    def __init__(self, root: Json | bool, recursion: int) -> None:
        self.root = SchemaPart("#", root)
        self.recursion_limited = False  # a $ref was not followed; a deeper recursion may help
        self._validators = jsonschema_rs.validator_map_for(root, **VALIDATOR_OPTIONS)
        self._recursion = recursion
        self._remaining = _MAX_CANDIDATES

    def instances(self, parts: SchemaParts, refs: Refs) -> Iterator[Any]:
        """Yield valid instances from the first few candidates of every alternative, then from all of them."""
        for start, stop in ((0, _FIRST_CANDIDATES), (_FIRST_CANDIDATES, None)):
            yield from self._find_instances(parts, refs, start, stop)

    def _find_instances(self, parts: SchemaParts, refs: Refs, start: int, stop: int | None) -> Iterator[Any]:
        for conjunction, entered in self._conjunctions(parts, (), refs):
            for value in islice(self._candidates(conjunction, entered), start, stop):
                self._count_candidate()
                if all(self._accepts(part, value) for part in conjunction):
                    yield value

    def _count_candidate(self) -> None:
        self._remaining -= 1
        if self._remaining < 0:
            raise _SearchExhausted

    def _accepts(self, part: SchemaPart, value: Any) -> bool:
        validator = self._validators.get(part.pointer)
        return validator is None or validator.is_valid(value)

    def _conjunctions(self, todo: SchemaParts, done: SchemaParts, refs: Refs) -> Iterator[tuple[SchemaParts, Refs]]:
        """Yield every combination of resolved references and alternatives, except unsatisfiable ones."""
        while todo:
            self._count_candidate()
            part, todo = todo[0], todo[1:]
            if part.schema is False:
                return
            if part.schema is True or any(part.pointer == other.pointer for other in done):
                continue
            done = (*done, part)
            todo = (*(part.child("allOf", index) for index in range(len(part.schema.get("allOf", ())))), *todo)
            if "$ref" in part.schema:
                target = resolve_ref(self.root, part.schema["$ref"])
                if all(target.pointer != other.pointer for other in done):
                    if refs.count(target.pointer) > self._recursion:
                        self.recursion_limited = True
                        return
                    refs, todo = (*refs, target.pointer), (target, *todo)
            if alternatives := list_alternatives(part):
                for choice in product(*alternatives):
                    yield from self._conjunctions((*chain(*choice), *todo), done, refs)
                return
        yield done, refs

    def _candidates(self, parts: SchemaParts, refs: Refs) -> Iterator[Any]:
        schemas = [part.schema for part in parts]
        for schema in schemas:
            if "const" in schema or "enum" in schema:
                yield from [schema["const"]] if "const" in schema else schema["enum"]
                return
        for kind in candidate_types(schemas):
            yield from self._candidates_of_type(kind, parts, refs)

    def _candidates_of_type(self, kind: str, parts: SchemaParts, refs: Refs) -> Iterator[Any]:
        schemas = [part.schema for part in parts]
        match kind:
            case "object":
                yield from self._object_candidates(parts, refs)
            case "array":
                yield from self._array_candidates(parts, refs)
            case "string":
                yield from string_candidates(schemas)
            case "integer" | "number":
                yield from number_candidates(schemas, integral=kind == "integer")
            case "boolean":
                yield from (False, True)
            case "null":
                yield None

    def _object_candidates(self, parts: SchemaParts, refs: Refs) -> Iterator[Json]:
        for names in self._property_name_lists(parts, refs):
            filled: Json = {}
            for name in names:
                first = next(self.instances(property_parts(parts, name), refs), _MISSING)
                if first is _MISSING:
                    break
                filled[name] = first
            else:
                yield filled
                yield from self._vary_properties(filled, parts, refs)

    def _vary_properties(self, filled: Json, parts: SchemaParts, refs: Refs) -> Iterator[Json]:
        """Vary one property at a time, for a `not`, an overlapping oneOf or unique items."""
        for name in filled:
            values = self.instances(property_parts(parts, name), refs)
            next(values, None)
            for value in values:
                yield {**filled, name: value}

    def _property_name_lists(self, parts: SchemaParts, refs: Refs) -> Iterator[list[str]]:
        """Yield lists of properties to include: the required ones first, then with optional ones added."""
        schemas = [part.schema for part in parts]
        optional = dict.fromkeys(name for schema in schemas for name in schema.get("properties", ()))
        min_properties = max_keyword(schemas, "minProperties")
        names = required_properties(schemas)
        pool = chain((name for name in optional if name not in names), self._invent_names(parts, refs))
        while len(names) < min_properties and (name := next(pool, None)) is not None:
            names += [name] if name not in names else []
        yield names
        for name in optional:
            if name not in names:
                yield required_properties([*schemas, {"required": [*names, name]}])
        yield required_properties([*schemas, {"required": [*names, *optional]}])

    def _invent_names(self, parts: SchemaParts, refs: Refs) -> Iterator[str]:
        name_parts = tuple(part.child("propertyNames") for part in parts if "propertyNames" in part.schema)
        patterns = [{"pattern": pattern} for part in parts for pattern in part.schema.get("patternProperties", ())]
        for pattern in patterns:
            yield from string_candidates([pattern])
        yield from self.instances((*name_parts, SchemaPart("", {"type": "string", "minLength": 1})), refs)

    def _array_candidates(self, parts: SchemaParts, refs: Refs) -> Iterator[list[Any]]:
        min_items = max_keyword([part.schema for part in parts], "minItems")
        contained = [
            part.child("contains")
            for part in parts
            if "contains" in part.schema
            for _ in range(min(int(part.schema.get("minContains", 1)), _MAX_ITEMS))
        ]
        for length in range(min_items, min_items + len(contained) + 2):
            if length <= _MAX_ITEMS and (items := self._fill_array(parts, refs, length, contained)) is not None:
                yield items

    def _fill_array(self, parts: SchemaParts, refs: Refs, length: int, contained: list[SchemaPart]) -> list[Any] | None:
        """Fill an array of this length. Items for `contains` come last, where prefixItems do not constrain them."""
        unique = any(part.schema.get("uniqueItems") for part in parts)
        items: list[Any] = []
        seen: set[str] = set()
        cache: dict[SchemaParts, Any] = {}
        for index in range(length):
            extra = contained[index - length : index - length + 1 or None]
            parts_of_item = (*item_parts(parts, index), *extra)
            key = tuple(SchemaPart(part.pointer, None) for part in parts_of_item)
            if key not in cache or unique:
                values = self.instances(parts_of_item, refs)
                cache[key] = next((value for value in values if not unique or _to_key(value) not in seen), _MISSING)
            if cache[key] is _MISSING or (not index and length * len(_to_key(cache[key])) > _MAX_ARRAY_CHARS):
                return None
            items.append(cache[key])
            seen.add(_to_key(items[-1]) if unique else "")
        return items


def _to_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
