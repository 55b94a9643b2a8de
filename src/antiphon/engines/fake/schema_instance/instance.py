"""The smallest valid instance of a JSON schema; nothing that is not valid leaves this module.

«Smallest»: of an object the required properties, of an array as many items as it must have, alternatives
(anyOf, oneOf, enum, a list of types) in the order written, the first that works; numbers near zero, short strings.

A node of the search is a conjunction of sub-schemas (parts): following $ref and allOf adds parts, each choice of
anyOf, oneOf, if and dependentSchemas gives another conjunction. Candidates for a conjunction are checked against
each of its parts, so that a mistake in guessing costs time and not truth.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice, product
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
from msgspec.json import encode

from antiphon.core.prompt import Json
from antiphon.engines.fake.schema_instance.scalars import numbers, strings
from antiphon.engines.fake.schema_instance.subschemas import (
    ANYTHING,
    Part,
    Parts,
    choices,
    item,
    most,
    required,
    types,
)
from antiphon.errors import InvalidValue

_EFFORT = 10_000  # candidates looked at before giving up, for each depth of recursion
_RECURSION = 4  # how often a $ref may be entered again on the way down
_FEW = 4  # candidates of an alternative that are looked at before the next one is
_ITEMS = 10_000
_CHARACTERS = 1_000_000  # of an array of equal items

_OPTIONS: dict[str, Any] = {
    "validate_formats": True,
    "offline": True,
    "pattern_options": jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000),
}
_NONE = object()

Refs = tuple[str, ...]  # the $refs entered on the way to a node


class _Exhausted(Exception):
    pass


def smallest(schema: Json | bool, param: str | None = None) -> str:
    """As compact JSON; raises InvalidValue, with `param`, if none can be found."""
    try:
        return _smallest(encode(schema, order="sorted"))
    except InvalidValue as error:
        raise InvalidValue(error.message, param=param) from None


@lru_cache(maxsize=256)
def _smallest(encoded: bytes) -> str:
    schema = json.loads(encoded)
    try:
        whole = jsonschema_rs.validator_for(schema, **_OPTIONS)
    except ValueError as error:
        raise InvalidValue(f"The fake engine cannot read this JSON schema: {_first_line(error)}.") from None
    for recursion in range(_RECURSION + 1):
        search = _Search(schema, recursion)
        try:
            for value in search.instances((search.root,), (search.root.pointer,)):
                if whole.is_valid(value):
                    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except (_Exhausted, RecursionError):
            continue
        if not search.turned_back:
            break
    raise InvalidValue("The fake engine found no valid instance of this JSON schema.")


def _first_line(error: ValueError) -> str:
    return str(error).splitlines()[0].rstrip(".")


class _Search:
    def __init__(self, root: Json | bool, recursion: int) -> None:
        self.root = Part("#", root)
        self.turned_back = False  # a $ref was not followed; going deeper may help
        self._valid = jsonschema_rs.validator_map_for(root, **_OPTIONS)
        self._recursion = recursion
        self._effort = _EFFORT

    def instances(self, parts: Parts, refs: Refs) -> Iterator[Any]:
        """First a few candidates of every alternative, then all of them."""
        for start, stop in ((0, _FEW), (_FEW, None)):
            yield from self._slice(parts, refs, start, stop)

    def _slice(self, parts: Parts, refs: Refs, start: int, stop: int | None) -> Iterator[Any]:
        for conjunction, entered in self._conjunctions(parts, (), refs):
            for value in islice(self._candidates(conjunction, entered), start, stop):
                self._spend()
                if all(self._accepts(part, value) for part in conjunction):
                    yield value

    def _spend(self) -> None:
        self._effort -= 1
        if self._effort < 0:
            raise _Exhausted

    def _accepts(self, part: Part, value: Any) -> bool:
        validator = self._valid.get(part.pointer)
        return validator is None or validator.is_valid(value)

    def _conjunctions(self, todo: Parts, done: Parts, refs: Refs) -> Iterator[tuple[Parts, Refs]]:
        """Every way to resolve references and alternatives; those that cannot be are left out."""
        while todo:
            self._spend()
            part, todo = todo[0], todo[1:]
            if part.schema is False:
                return
            if part.schema is True or any(part.pointer == other.pointer for other in done):
                continue
            done = (*done, part)
            todo = (*(part.at("allOf", index) for index in range(len(part.schema.get("allOf", ())))), *todo)
            if "$ref" in part.schema:
                target = self._target(part.schema["$ref"])
                if all(target.pointer != other.pointer for other in done):
                    if refs.count(target.pointer) > self._recursion:
                        self.turned_back = True
                        return
                    refs, todo = (*refs, target.pointer), (target, *todo)
            if alternatives := choices(part):
                for choice in product(*alternatives):
                    yield from self._conjunctions((*chain(*choice), *todo), done, refs)
                return
        yield done, refs

    def _target(self, reference: str) -> Part:
        part = self.root
        try:
            for key in unquote(reference.partition("#")[2]).split("/")[1:]:
                name = key.replace("~1", "/").replace("~0", "~")
                part = part.at(int(name) if isinstance(part.schema, list) else name)
        except (KeyError, IndexError, TypeError, ValueError):
            return ANYTHING  # an anchor or a nested $id; the checks know better
        return part

    def _candidates(self, parts: Parts, refs: Refs) -> Iterator[Any]:
        schemas = [part.schema for part in parts]
        for schema in schemas:
            if "const" in schema or "enum" in schema:
                yield from [schema["const"]] if "const" in schema else schema["enum"]
                return
        for kind in types(schemas):
            yield from self._of_type(kind, parts, refs)

    def _of_type(self, kind: str, parts: Parts, refs: Refs) -> Iterator[Any]:
        schemas = [part.schema for part in parts]
        match kind:
            case "object":
                yield from self._objects(parts, refs)
            case "array":
                yield from self._arrays(parts, refs)
            case "string":
                yield from strings(schemas)
            case "integer" | "number":
                yield from numbers(schemas, whole=kind == "integer")
            case "boolean":
                yield from (False, True)
            case "null":
                yield None

    def _objects(self, parts: Parts, refs: Refs) -> Iterator[Json]:
        for names in self._namings(parts, refs):
            filled: Json = {}
            for name in names:
                first = next(self.instances(self._property(parts, name), refs), _NONE)
                if first is _NONE:
                    break
                filled[name] = first
            else:
                yield filled
                yield from self._varied(filled, parts, refs)

    def _varied(self, filled: Json, parts: Parts, refs: Refs) -> Iterator[Json]:
        """Other values of one property at a time, for a `not`, an overlapping oneOf or unique items."""
        for name in filled:
            values = self.instances(self._property(parts, name), refs)
            next(values, None)
            for value in values:
                yield {**filled, name: value}

    def _namings(self, parts: Parts, refs: Refs) -> Iterator[list[str]]:
        """Which properties to have: the required ones, and if that will not do more of them."""
        schemas = [part.schema for part in parts]
        optional = dict.fromkeys(name for schema in schemas for name in schema.get("properties", ()))
        least = most(schemas, "minProperties")
        names = required(schemas)
        pool = chain((name for name in optional if name not in names), self._invented(parts, refs))
        while len(names) < least and (name := next(pool, None)) is not None:
            names += [name] if name not in names else []
        yield names
        for name in optional:
            if name not in names:
                yield required([*schemas, {"required": [*names, name]}])
        yield required([*schemas, {"required": [*names, *optional]}])

    def _invented(self, parts: Parts, refs: Refs) -> Iterator[str]:
        naming = tuple(part.at("propertyNames") for part in parts if "propertyNames" in part.schema)
        patterns = [{"pattern": pattern} for part in parts for pattern in part.schema.get("patternProperties", ())]
        for pattern in patterns:
            yield from strings([pattern])
        yield from self.instances((*naming, Part("", {"type": "string", "minLength": 1})), refs)

    def _property(self, parts: Parts, name: str) -> Parts:
        found: list[Part] = []
        for part in parts:
            declared = [part.at("properties", name)] if name in part.schema.get("properties", ()) else []
            for pattern in part.schema.get("patternProperties", ()):
                if _matches(pattern, name):
                    declared.append(part.at("patternProperties", pattern))
            if not declared and "additionalProperties" in part.schema:
                declared.append(part.at("additionalProperties"))
            found += declared
        return tuple(found)

    def _arrays(self, parts: Parts, refs: Refs) -> Iterator[list[Any]]:
        least = most([part.schema for part in parts], "minItems")
        wanted = [
            part.at("contains")
            for part in parts
            if "contains" in part.schema
            for _ in range(min(int(part.schema.get("minContains", 1)), _ITEMS))
        ]
        for length in range(least, least + len(wanted) + 2):
            if length <= _ITEMS and (items := self._items(parts, refs, length, wanted)) is not None:
                yield items

    def _items(self, parts: Parts, refs: Refs, length: int, wanted: list[Part]) -> list[Any] | None:
        """The wanted ones come last, where no prefixItems stand in their way."""
        unique = any(part.schema.get("uniqueItems") for part in parts)
        kept: list[Any] = []
        seen: set[str] = set()
        known: dict[Parts, Any] = {}
        for index in range(length):
            special = wanted[index - length : index - length + 1 or None]
            of_item = (*item(parts, index), *special)
            key = tuple(Part(part.pointer, None) for part in of_item)
            if key not in known or unique:
                values = self.instances(of_item, refs)
                known[key] = next((value for value in values if not unique or _same(value) not in seen), _NONE)
            if known[key] is _NONE or (not index and length * len(_same(known[key])) > _CHARACTERS):
                return None
            kept.append(known[key])
            seen.add(_same(kept[-1]) if unique else "")
        return kept


def _same(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@lru_cache(maxsize=1024)
def _matches(pattern: str, name: str) -> bool:
    return jsonschema_rs.validator_for({"pattern": pattern}, **_OPTIONS).is_valid(name)
