"""JSON schemas that clients send are vetted before anything compiles them, and answered with a 400 if unfit.

A fit schema is valid, of bounded size also when its references are followed, refers only to itself, and
has only patterns that compile to something small. Recursion is fine as long as it goes deeper into the value.
"""

from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.types.tools import Json

# Keywords that hold schemas. Those "in place" are about the value itself, the others about what is inside of it.
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
_HELD = _IN_PLACE | _MAPS | {
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
    "unevaluatedProperties", "propertyNames", "contentSchema",
}  # fmt: skip
_UNUSED = frozenset({"$defs", "definitions"})  # nothing by themselves: they count where they are referred to
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_NOTEWORTHY = _HELD | _REFERENCES | {"enum", "pattern"}
_TOGETHER = 3  # all schemas of a request together may have as many nodes as this many of the largest
_PATTERN_WEIGHT = 40  # of all patterns of a request together; a light one weighs 1
_REMEMBERED = 4096
_ENDLESS = 2**62  # where counting stops

Children = dict[int, list[Any]]  # by the id of the node; the schema keeps them alive

# What a pattern may compile to, and what it weighs then; compiling the heaviest takes 10 ms.
_SIZES = ((1, 128 * 1024), (8, 1024 * 1024))


class Cost(Struct, frozen=True):
    nodes: int
    patterns: int


class Vetting:
    """The schemas of one request; what they cost is added up."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nodes = 0
        self._patterns = 0

    def vet(self, schema: Json, param: str) -> None:
        """Raise InvalidValue, naming `param`, unless `schema` is fit."""
        cost = _remembered(schema, param, self._limits)
        self._nodes += cost.nodes
        self._patterns += cost.patterns
        most = _TOGETHER * self._limits.schema_nodes
        if self._nodes > most:
            raise _unfit(param, f"the schemas of a request together have more than {most} sub-schemas")
        self._check_weight(param)

    def vet_pattern(self, pattern: str, param: str) -> None:
        """Raise InvalidValue, naming `param`, unless `pattern` compiles to something small."""
        if len(pattern) > self._limits.pattern_length:
            raise _unfit(param, f"it has more than {self._limits.pattern_length} characters")
        self._patterns += _weigh(pattern, param)
        self._check_weight(param)

    def _check_weight(self, param: str) -> None:
        if self._patterns > _PATTERN_WEIGHT:
            raise _unfit(param, "the patterns of a request are too many or too big together")


_costs: dict[tuple[bytes, Limits], Cost] = {}


def _remembered(schema: Json, param: str, limits: Limits) -> Cost:
    """Clients send the same tools with every request: what was found fit is remembered by its digest."""
    encoded = msgspec.json.encode(schema)
    if len(encoded) > limits.schema_bytes:
        raise _unfit(param, f"it has more than {limits.schema_bytes} bytes")
    key = (blake2b(encoded, digest_size=16).digest(), limits)
    cost = _costs.get(key)
    if cost is None:
        cost = _Schema(schema, param, limits).cost()
        if len(_costs) >= _REMEMBERED:
            del _costs[next(iter(_costs))]
        _costs[key] = cost
    return cost


class _Schema:
    """One schema under inspection."""

    def __init__(self, root: Json, param: str, limits: Limits) -> None:
        self._root = root
        self._param = param
        self._limits = limits
        self._in_place: Children = {}
        self._all: Children = {}
        self._patterns: set[str] = set()
        self._refers = False

    def cost(self) -> Cost:
        self._walk()
        self._check_validity()
        nodes = len(self._all)
        if self._refers:
            self._check_recursion()
            nodes = self._expanded()
        return Cost(nodes=nodes, patterns=sum(_weigh(pattern, self._param) for pattern in self._patterns))

    def _walk(self) -> None:
        """See every sub-schema, also those that are only referred to."""
        most, deepest = self._limits.schema_nodes, self._limits.schema_depth
        waiting: list[tuple[Any, int]] = [(self._root, 1)]
        while waiting:
            node, depth = waiting.pop()
            if not isinstance(node, dict) or id(node) in self._all:
                continue
            if len(self._all) >= most:
                raise self._unfit(f"it has more than {most} sub-schemas")
            if depth > deepest:
                raise self._unfit(f"it nests deeper than {deepest} levels")
            waiting.extend(self._look_at(node, depth))

    def _look_at(self, node: Json, depth: int) -> list[tuple[Any, int]]:
        """Note what `node` holds; what is to be seen next, and how deep that is."""
        in_place = self._in_place[id(node)] = []
        everything = self._all[id(node)] = []
        found: list[tuple[Any, int]] = []
        for word in node.keys() & _NOTEWORTHY:
            held = node[word]
            if word in _HELD:
                children = _children(word, held)
                found.extend((child, depth + 1) for child in children)
                if word in _IN_PLACE:
                    in_place.extend(children)
                if word not in _UNUSED:
                    everything.extend(children)
            elif word in _REFERENCES:
                target = self._resolve(held)
                in_place.append(target)
                everything.append(target)
                found.append((target, 1))
            self._note(word, held)
        return found

    def _note(self, word: str, held: Any) -> None:
        if word == "enum" and isinstance(held, list) and len(held) > self._limits.schema_enum:
            raise self._unfit(f"an enum has more than {self._limits.schema_enum} values")
        if word == "pattern" and isinstance(held, str):
            self._note_pattern(held)
        elif word == "patternProperties" and isinstance(held, dict):
            for pattern in held:
                self._note_pattern(pattern)

    def _note_pattern(self, pattern: str) -> None:
        if len(pattern) > self._limits.pattern_length:
            raise self._unfit(f"a pattern has more than {self._limits.pattern_length} characters")
        self._patterns.add(pattern)

    def _resolve(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self._unfit("a $ref may only be '#' or a pointer like '#/$defs/name' into the schema itself")
        self._refers = True
        target: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise self._unfit(f"the $ref '{reference[:64]}' leads nowhere")
        return target

    def _check_validity(self) -> None:
        if reason := _dialects().complaint(self._root):
            raise self._unfit(reason)

    def _check_recursion(self) -> None:
        """No value may have to be matched against a schema again and again without getting smaller."""
        sizes: dict[int, int] = {}
        for key in self._in_place:
            if key not in sizes and _measure(key, self._in_place, sizes):
                raise self._unfit("a $ref leads back to itself without going deeper into the value")

    def _expanded(self) -> int:
        """Nodes with references followed; one that recurses counts once."""
        sizes: dict[int, int] = {}
        _measure(id(self._root), self._all, sizes)
        if sizes[id(self._root)] > self._limits.schema_nodes:
            raise self._unfit(f"it has more than {self._limits.schema_nodes} sub-schemas when references are followed")
        return sizes[id(self._root)]

    def _unfit(self, reason: str) -> InvalidValue:
        return _unfit(self._param, reason)


def _children(word: str, held: Any) -> list[Any]:
    if isinstance(held, list):
        return held
    if isinstance(held, dict):
        return list(held.values()) if word in _MAPS else [held]
    return []


def _measure(root: int, children: Children, sizes: dict[int, int]) -> bool:
    """Fill `sizes` with the size of every tree below `root`; true if a node is below itself."""
    cyclic = False
    opened = {root}
    stack = [(root, iter(children[root]))]
    while stack:
        key, waiting = stack[-1]
        for child in waiting:
            below = id(child)
            if below in opened:
                cyclic = True
            elif below not in sizes and below in children:
                opened.add(below)
                stack.append((below, iter(children[below])))
                break
        else:
            stack.pop()
            opened.discard(key)
            sizes[key] = min(1 + sum(sizes.get(id(child), 1) for child in children[key]), _ENDLESS)
    return cyclic


def _weigh(pattern: str, param: str) -> int:
    weight = _weigh_pattern(pattern)
    if not weight:
        raise _unfit(param, f"the pattern '{pattern[:64]}' is not a regular expression, or too big a one")
    return weight


def _unfit(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid schema for '{param}': {reason}.", param=param)


@lru_cache(maxsize=1024)
def _weigh_pattern(pattern: str) -> int:
    return next((weight for weight, size in _SIZES if _dialects().compiles(pattern, size)), 0)


def _dialects() -> Any:
    return import_module("antiphon.protocol.schemas.json_schema_drafts")
