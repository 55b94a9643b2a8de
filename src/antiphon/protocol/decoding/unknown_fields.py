"""One walk over a request along its types: names nobody knows, strings too long for a name, lists too long.

msgspec drops unknown fields in silence; here they are collected, so that a typo stays visible. The walk
follows a map of the types that is drawn once; free-form JSON (schemas, arguments) is not entered.
"""

from typing import Any, Final

import msgspec.inspect as types
from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.limits import Limits

Path = tuple[Any, ...]  # () or (path of the parent, key or index)

MOST_NAMED = 20
_SHORT_NAMES: Final = frozenset({
    "model", "id", "name", "call_id", "namespace", "server_label", "connector_id", "tunnel_id", "previous_response_id",
    "version", "user", "safety_identifier", "prompt_cache_key", "request_id", "cache_salt", "container_id", "file_id",
    "approval_request_id", "caller_id", "filename", "fingerprint", "mode", "tool_use_id", "user_id", "media_type",
    "tool_call_id",
})  # fmt: skip
_WITHOUT_EFFECT: Final = frozenset({"prompt_cache_breakpoint"})  # understood, and named all the same
# The bound of any other list is `parts`.
_LISTS: Final = {"input": "items", "messages": "items", "tools": "tools", "functions": "tools"}
# As long as the text that they belong to, or that they are.
_UNBOUNDED: Final = frozenset({"logprobs", "top_logprobs", "bytes", "prompt"})


class Shape(Struct, frozen=True):
    """What of a value there is to look at: of an object, of a list, of a string."""

    fields: "dict[str, Shape | None] | None" = None
    tagged: "dict[str, Shape] | None" = None
    values: "Shape | None" = None  # of a mapping from any name
    items: "Shape | None" = None
    bound: str = ""  # of a list
    short: bool = False  # a string that is an id or a name
    plain: frozenset[str] = frozenset()  # fields of which nothing is looked at but the name


_UNKNOWN = Shape()


class Survey:
    """Walks requests of one type. They must have passed the type check before."""

    def __init__(self, root: type[Struct]) -> None:
        self._root = Atlas().draw(types.type_info(root), "") or Shape()

    def of(self, body: dict[str, Any], limits: Limits, but: str = "") -> list[str]:
        """The names in `body` that its type does not know; raises if a name or a list is too long. `but`: a field that
        need not be looked into."""
        walk = _Walk(limits)
        if but:
            body = {**body}
            del body[but]
        walk.visit_object(self._root, body, ())
        return walk.ignored


class _Walk:
    """Written for speed: every request is walked, and calls are what costs."""

    def __init__(self, limits: Limits) -> None:
        self.ignored: list[str] = []
        self._limits = limits

    def visit_object(self, shape: Shape, value: dict[str, Any], path: Path) -> None:
        if shape.tagged is not None:
            shape = shape.tagged[value["type"]]
        if shape.plain.issuperset(value):
            return
        fields, otherwise = shape.fields, shape.values
        for name, held in value.items():
            child = otherwise if fields is None else fields.get(name, _UNKNOWN)
            if child is None:
                continue
            if child is _UNKNOWN:
                self._ignore(name, path)
            elif type(held) is list:
                self._visit_list(child, held, (path, name))
            elif type(held) is dict:
                self.visit_object(child, held, (path, name))
            elif child.short and type(held) is str and (len(held) > self._limits.id_length or "\0" in held):
                raise _unfit_name(held, (path, name), self._limits.id_length)

    def _ignore(self, name: str, path: Path) -> None:
        if len(self.ignored) < MOST_NAMED:
            self.ignored.append(spell((path, name)))

    def _visit_list(self, shape: Shape, value: list[Any], path: Path) -> None:
        if shape.bound and len(value) > (allowed := getattr(self._limits, shape.bound)):
            param = spell(path)
            raise InvalidValue(f"'{param}' has {len(value)} entries; at most {allowed} are allowed.", param=param)
        entry = shape.items
        if entry is None:
            return
        for index, held in enumerate(value):
            if type(held) is dict:
                if entry.tagged is None or not entry.tagged[held["type"]].plain.issuperset(held):
                    self.visit_object(entry, held, (path, index))
            elif entry.short and (len(held) > self._limits.id_length or "\0" in held):
                raise _unfit_name(held, (path, index), self._limits.id_length)


def _unfit_name(value: str, path: Path, longest: int) -> InvalidValue:
    param = spell(path)
    if len(value) > longest:
        return InvalidValue(f"'{param}' has {len(value)} characters; at most {longest} are allowed.", param=param)
    return InvalidValue(f"'{param}' must not hold a NUL character.", param=param)


def spell(path: Path) -> str:
    """`(((), "input"), 0)` as `input[0]`."""
    keys: list[str | int] = []
    while path:
        path, key = path
        keys.append(key)
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key[:64]}" for key in reversed(keys)).lstrip(".")


class Atlas:
    """Draws the maps of types, each struct's once."""

    def __init__(self) -> None:
        self._drawn: dict[type, Shape] = {}

    def draw(self, kind: types.Type, name: str) -> Shape | None:
        """The map of a type that stands in a field of this name; None where there is nothing to look at."""
        match kind:
            case types.Metadata():
                return self.draw(kind.type, name)
            case types.StructType():
                return self._draw_struct(kind)
            case types.UnionType():
                return self._draw_union(kind, name)
            case types.ListType():
                bound = "" if name in _UNBOUNDED else _LISTS.get(name, "parts")
                return Shape(items=self.draw(kind.item_type, name), bound=bound)
            case types.DictType():
                values = self.draw(kind.value_type, name)
                return None if values is None else Shape(values=values)
            case types.StrType() if name in _SHORT_NAMES:
                return Shape(short=True)
        return None

    def _draw_struct(self, kind: types.StructType) -> Shape:
        if kind.cls not in self._drawn:
            known = [held for held in kind.fields if held.encode_name not in _WITHOUT_EFFECT]
            fields = {held.encode_name: self.draw(held.type, held.encode_name) for held in known}
            if kind.tag_field is not None:
                fields[kind.tag_field] = None
            plain = frozenset(name for name, shape in fields.items() if shape is None)
            self._drawn[kind.cls] = Shape(fields=fields, plain=plain)
        return self._drawn[kind.cls]

    def _draw_union(self, kind: types.UnionType, name: str) -> Shape | None:
        tagged: dict[str, Shape] = {}
        untagged: list[Shape] = []
        for held in kind.types:
            if isinstance(held, types.StructType) and held.tag is not None:
                tagged[str(held.tag)] = self._draw_struct(held)
            elif (shape := self.draw(held, name)) is not None:
                untagged.append(shape)
        if len(tagged) == 1:  # msgspec takes a lone struct without its tag
            untagged.extend(tagged.values())
            tagged = {}
        return _merge(tagged, untagged) if tagged or untagged else None


def _merge(tagged: dict[str, Shape], untagged: list[Shape]) -> Shape:
    """A union has at most one kind of object, of list and of string, or tags tell its objects apart."""
    merged = Shape(tagged=tagged or None)
    for shape in untagged:
        merged = Shape(
            fields=merged.fields or shape.fields,
            tagged=merged.tagged,
            values=merged.values or shape.values,
            items=merged.items or shape.items,
            bound=merged.bound or shape.bound,
            short=merged.short or shape.short,
            plain=merged.plain or shape.plain,
        )
    return merged
