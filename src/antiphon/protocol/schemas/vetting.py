"""Vets JSON schemas of clients before anything compiles them; unacceptable ones are rejected with status 400.

A schema is accepted if it is valid, has a bounded size even with its references followed, refers only to itself, and
has only patterns that compile to a small program. Recursion is allowed if it descends into the value.
"""

from hashlib import blake2b
from importlib import import_module
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.types.tools import Json

# Keywords that hold schemas (JSON Schema 2020-12 and older drafts). "In place" ones apply to the value itself, the
# others to its elements.
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
_SCHEMA_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_SCHEMA_KEYWORDS = _IN_PLACE | _SCHEMA_MAPS | {
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
    "unevaluatedProperties", "propertyNames", "contentSchema",
}  # fmt: skip
_DEFINITIONS = frozenset({"$defs", "definitions"})  # no effect by themselves: counted where they are referred to
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_INSPECTED_KEYWORDS = _SCHEMA_KEYWORDS | _REFERENCES | {"enum", "pattern"}
_REQUEST_FACTOR = 3  # limit of the nodes in all schemas of a request, as a multiple of `schema_nodes`
_MAX_PATTERN_WEIGHT = 40  # of all patterns in a request; a small pattern weighs 1
_MAX_CACHED_COSTS = 4096
_MAX_COUNT = 2**62  # counts saturate here

Children = dict[int, list[Any]]  # by the id() of the node, which the schema keeps alive


class SchemaCost(Struct, frozen=True):
    nodes: int
    patterns: int


class SchemaVetter:
    """Vets the schemas of one request and adds up their costs."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._nodes = 0
        self._patterns = 0

    def vet(self, schema: Json, param: str) -> None:
        """Raise InvalidValue, naming `param`, unless `schema` is acceptable."""
        cost = _load_cost(schema, param, self._limits)
        self._nodes += cost.nodes
        self._patterns += cost.patterns
        max_nodes = _REQUEST_FACTOR * self._limits.schema_nodes
        if self._nodes > max_nodes:
            raise _invalid(param, f"the schemas of a request together have more than {max_nodes} sub-schemas")
        self._check_weight(param)

    def vet_pattern(self, pattern: str, param: str) -> None:
        """Raise InvalidValue, naming `param`, unless `pattern` compiles to a small program."""
        if len(pattern) > self._limits.pattern_length:
            raise _invalid(param, f"it has more than {self._limits.pattern_length} characters")
        self._patterns += _require_weight(pattern, param)
        self._check_weight(param)

    def _check_weight(self, param: str) -> None:
        if self._patterns > _MAX_PATTERN_WEIGHT:
            raise _invalid(param, "the patterns of a request are too many or too big together")


_costs: dict[tuple[bytes, Limits], SchemaCost] = {}


def _load_cost(schema: Json, param: str, limits: Limits) -> SchemaCost:
    """Return the cost of a schema. Costs are cached by digest, since clients send the same tools with every request."""
    encoded = msgspec.json.encode(schema)
    if len(encoded) > limits.schema_bytes:
        raise _invalid(param, f"it has more than {limits.schema_bytes} bytes")
    key = (blake2b(encoded, digest_size=16).digest(), limits)
    if (cost := _costs.get(key)) is None:
        cost = _SchemaInspection(schema, param, limits).compute_cost()
        if len(_costs) >= _MAX_CACHED_COSTS:
            del _costs[next(iter(_costs))]
        _costs[key] = cost
    return cost


class _SchemaInspection:
    def __init__(self, root: Json, param: str, limits: Limits) -> None:
        self._root = root
        self._param = param
        self._limits = limits
        self._in_place: Children = {}
        self._all: Children = {}
        self._patterns: set[str] = set()
        self._has_references = False

    def compute_cost(self) -> SchemaCost:
        self._walk()
        if reason := _load_drafts().complaint(self._root):
            raise self._invalid(reason)
        nodes = len(self._all)
        if self._has_references:
            self._check_recursion()
            nodes = self._count_expanded()
        return SchemaCost(
            nodes=nodes, patterns=sum(_require_weight(pattern, self._param) for pattern in self._patterns)
        )

    def _walk(self) -> None:
        """Visit every sub-schema, including those that are only referred to."""
        max_nodes, max_depth = self._limits.schema_nodes, self._limits.schema_depth
        pending: list[tuple[Any, int]] = [(self._root, 1)]
        while pending:
            node, depth = pending.pop()
            if not isinstance(node, dict) or id(node) in self._all:
                continue
            if len(self._all) >= max_nodes:
                raise self._invalid(f"it has more than {max_nodes} sub-schemas")
            if depth > max_depth:
                raise self._invalid(f"it nests deeper than {max_depth} levels")
            pending.extend(self._inspect(node, depth))

    def _inspect(self, node: Json, depth: int) -> list[tuple[Any, int]]:
        """Record the children of `node`; return the nodes to visit next with their depths."""
        in_place = self._in_place[id(node)] = []
        all_children = self._all[id(node)] = []
        found: list[tuple[Any, int]] = []
        for keyword in node.keys() & _INSPECTED_KEYWORDS:
            value = node[keyword]
            if keyword in _SCHEMA_KEYWORDS:
                children = _children(keyword, value)
                found.extend((child, depth + 1) for child in children)
                if keyword in _IN_PLACE:
                    in_place.extend(children)
                if keyword not in _DEFINITIONS:
                    all_children.extend(children)
            elif keyword in _REFERENCES:
                target = self._resolve(value)
                in_place.append(target)
                all_children.append(target)
                found.append((target, 1))
            self._record_keyword(keyword, value)
        return found

    def _record_keyword(self, keyword: str, value: Any) -> None:
        if keyword == "enum" and isinstance(value, list) and len(value) > self._limits.schema_enum:
            raise self._invalid(f"an enum has more than {self._limits.schema_enum} values")
        if keyword == "pattern" and isinstance(value, str):
            self._record_pattern(value)
        elif keyword == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                self._record_pattern(pattern)

    def _record_pattern(self, pattern: str) -> None:
        if len(pattern) > self._limits.pattern_length:
            raise self._invalid(f"a pattern has more than {self._limits.pattern_length} characters")
        self._patterns.add(pattern)

    def _resolve(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self._invalid("a $ref may only be '#' or a pointer like '#/$defs/name' into the schema itself")
        self._has_references = True
        target: Any = self._root
        for step in unquote(reference).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise self._invalid(f"the $ref '{reference[:64]}' leads nowhere")
        return target

    def _check_recursion(self) -> None:
        """Reject reference cycles that apply a schema to the same value again without descending into it."""
        sizes: dict[int, int] = {}
        for key in self._in_place:
            if key not in sizes and _measure(key, self._in_place, sizes):
                raise self._invalid("a $ref leads back to itself without going deeper into the value")

    def _count_expanded(self) -> int:
        """Count the nodes with references followed; a recursive one counts once."""
        sizes: dict[int, int] = {}
        _measure(id(self._root), self._all, sizes)
        if sizes[id(self._root)] > self._limits.schema_nodes:
            raise self._invalid(
                f"it has more than {self._limits.schema_nodes} sub-schemas when references are followed"
            )
        return sizes[id(self._root)]

    def _invalid(self, reason: str) -> InvalidValue:
        return _invalid(self._param, reason)


def _children(keyword: str, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return list(value.values()) if keyword in _SCHEMA_MAPS else [value]
    return []


def _measure(root: int, children: Children, sizes: dict[int, int]) -> bool:
    """Fill `sizes` with the size of every tree below `root`; return True if a node is below itself."""
    cyclic = False
    on_path = {root}
    stack = [(root, iter(children[root]))]
    while stack:
        key, remaining = stack[-1]
        for child in remaining:
            child_id = id(child)
            if child_id in on_path:
                cyclic = True
            elif child_id not in sizes and child_id in children:
                on_path.add(child_id)
                stack.append((child_id, iter(children[child_id])))
                break
        else:
            stack.pop()
            on_path.discard(key)
            sizes[key] = min(1 + sum(sizes.get(id(child), 1) for child in children[key]), _MAX_COUNT)
    return cyclic


def _require_weight(pattern: str, param: str) -> int:
    weight: int = _load_drafts().weigh_pattern(pattern)
    if not weight:
        raise _invalid(param, f"the pattern '{pattern[:64]}' is not a regular expression, or too big when compiled")
    return weight


def _invalid(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid schema for '{param}': {reason}.", param=param)


def _load_drafts() -> Any:
    return import_module("antiphon.protocol.schemas.json_schema_drafts")
