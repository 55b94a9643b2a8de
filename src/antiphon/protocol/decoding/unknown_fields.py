"""One walk over a request along its types: finds unknown fields, overlong names and overlong lists.

msgspec drops unknown fields silently; here they are collected, so that a typo stays visible. The walk follows a map of
the types that is built once. It does not enter free-form JSON such as schemas and arguments.
"""

from collections import defaultdict
from typing import Any, Final

import msgspec.inspect as types
from msgspec import Struct
from msgspec.structs import force_setattr

from antiphon.errors import InvalidValue, invalid_value
from antiphon.limits import Limits

Path = tuple[Any, ...]  # () or (path of the parent, key or index)

MAX_REPORTED_FIELDS = 20
_ID_FIELDS: Final = frozenset({
    "model", "id", "name", "call_id", "namespace", "server_label", "connector_id", "tunnel_id", "previous_response_id",
    "version", "user", "safety_identifier", "prompt_cache_key", "request_id", "cache_salt", "container_id", "file_id",
    "approval_request_id", "caller_id", "filename", "fingerprint", "mode", "tool_use_id", "user_id", "media_type",
    "tool_call_id",
})  # fmt: skip
_INEFFECTIVE_FIELDS: Final = frozenset({"prompt_cache_breakpoint"})  # understood, but reported as ignored
# The same unless the value is "auto", by type: files become text, which has one quality.
_INEFFECTIVE_LEVELS: Final = frozenset({("input_file", "detail")})
# The limit of each list; that of any other list is `parts`.
_LIST_LIMITS: Final = {"input": "items", "messages": "items", "tools": "tools", "functions": "tools"}
# As long as the text that they belong to, or the text itself.
_UNBOUNDED_LISTS: Final = frozenset({"logprobs", "top_logprobs", "bytes", "prompt"})


class TypeMap(Struct, frozen=True):
    """The checked properties of a value, whether it is an object, a list or a string."""

    fields: "dict[str, TypeMap | None] | None" = None
    tagged: "dict[str, TypeMap] | None" = None
    values: "TypeMap | None" = None  # of a mapping with arbitrary keys
    items: "TypeMap | None" = None
    limit: str = ""  # name of the limit for the length of a list
    is_id: bool = False  # a string that is an id or a name
    plain: frozenset[str] = frozenset()  # fields whose values need no check


_UNKNOWN = TypeMap()
_INEFFECTIVE_LEVEL = TypeMap()
_LARGE_BODY_BYTES: Final = 1024 * 1024  # bodies that are searched for oversized enum values
_MAX_ENUM_CHARS: Final = 64 * 1024
_SEARCHED_TYPES: Final = frozenset({dict, list, str})


class UnknownFieldFinder:
    """Finds unknown fields in requests of one type, which must have passed the type check."""

    def __init__(self, body_type: type[Struct]) -> None:
        builder = TypeMapBuilder()
        self._root = builder.build(types.type_info(body_type), "") or TypeMap()
        kinds = builder.kinds.items()
        self._enums = {name for name, found in kinds if types.LiteralType in found and types.StrType not in found}
        self._free = {name for name, found in kinds if types.AnyType in found and types.StructType not in found}

    def check_enums(self, body: dict[str, Any], size: int) -> None:
        """Raise if a body of `size` bytes has an oversized value in a field that is an enum wherever its name occurs.

        Call it before the check of types: msgspec copies the value several times into its error message, which takes
        6 ms for each MiB.
        """
        pending: list[tuple[str, Any]] = [*body.items()] if size > _LARGE_BODY_BYTES else []
        while pending:
            name, value = pending.pop()
            if type(value) is dict and name not in self._free:
                pending.extend(value.items())
            elif type(value) is list and name not in self._free:
                pending.extend([(name, entry) for entry in value if type(entry) in _SEARCHED_TYPES])
            elif type(value) is str and len(value) > _MAX_ENUM_CHARS and name in self._enums:
                raise invalid_value(name, f"it is {len(value)} characters long")

    def find(self, body: dict[str, Any], limits: Limits, skip: str = "") -> list[str]:
        """Return undeclared names in `body`, without the field `skip`; raise if a name or a list is too long."""
        walk = _FieldWalk(limits)
        if skip:
            body = {**body}
            del body[skip]
        walk.visit_object(self._root, body, ())
        return walk.ignored


class _FieldWalk:
    """The state of one walk. Optimised for speed: every request is walked, and function calls dominate the cost."""

    def __init__(self, limits: Limits) -> None:
        self.ignored: list[str] = []
        self._limits = limits

    def visit_object(self, type_map: TypeMap, value: dict[str, Any], path: Path) -> None:
        if type_map.tagged is not None:
            type_map = type_map.tagged[value["type"]]
        if type_map.plain.issuperset(value):
            return
        fields, default = type_map.fields, type_map.values
        for name, entry in value.items():
            child = default if fields is None else fields.get(name, _UNKNOWN)
            if child is None:
                continue
            if child is _UNKNOWN:
                self._add_ignored(name, path)
            elif type(entry) is list:
                self._visit_list(child, entry, (path, name))
            elif type(entry) is dict:
                self.visit_object(child, entry, (path, name))
            elif child is _INEFFECTIVE_LEVEL:
                if entry != "auto":
                    self._add_ignored(name, path)
            elif child.is_id and type(entry) is str and (len(entry) > self._limits.id_length or "\0" in entry):
                raise _make_name_error(entry, (path, name), self._limits.id_length)

    def _add_ignored(self, name: str, path: Path) -> None:
        if len(self.ignored) < MAX_REPORTED_FIELDS:
            self.ignored.append(format_path((path, name)))

    def _visit_list(self, type_map: TypeMap, value: list[Any], path: Path) -> None:
        if type_map.limit and len(value) > (allowed := getattr(self._limits, type_map.limit)):
            param = format_path(path)
            raise InvalidValue(f"'{param}' has {len(value)} entries; at most {allowed} are allowed.", param=param)
        if (item_map := type_map.items) is None:
            return
        for index, item in enumerate(value):
            if type(item) is dict:
                if item_map.tagged is None or not item_map.tagged[item["type"]].plain.issuperset(item):
                    self.visit_object(item_map, item, (path, index))
            elif item_map.is_id and (len(item) > self._limits.id_length or "\0" in item):
                raise _make_name_error(item, (path, index), self._limits.id_length)


def _make_name_error(value: str, path: Path, max_chars: int) -> InvalidValue:
    param = format_path(path)
    if len(value) > max_chars:
        return InvalidValue(f"'{param}' has {len(value)} characters; at most {max_chars} are allowed.", param=param)
    return InvalidValue(f"'{param}' must not hold a NUL character.", param=param)


def format_path(path: Path) -> str:
    """Format `(((), "input"), 0)` as `input[0]`."""
    keys: list[str | int] = []
    while path:
        path, key = path
        keys.append(key)
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key[:64]}" for key in reversed(keys)).lstrip(".")


class TypeMapBuilder:
    """Builds the maps of types, once per struct."""

    def __init__(self) -> None:
        self.kinds: defaultdict[str, set[type]] = defaultdict(set)  # the types that occur in fields of each name
        self._built: dict[type, TypeMap] = {}

    def build(self, kind: types.Type, name: str) -> TypeMap | None:
        """Return the map of a type in a field of this name; None if it needs no checks."""
        self.kinds[name].add(type(kind))
        match kind:
            case types.Metadata():
                return self.build(kind.type, name)
            case types.StructType():
                return self._build_struct(kind)
            case types.UnionType():
                return self._build_union(kind, name)
            case types.ListType():
                bound = "" if name in _UNBOUNDED_LISTS else _LIST_LIMITS.get(name, "parts")
                return TypeMap(items=self.build(kind.item_type, name), limit=bound)
            case types.DictType():
                values = self.build(kind.value_type, name)
                return None if values is None else TypeMap(values=values)
            case types.StrType() if name in _ID_FIELDS:
                return TypeMap(is_id=True)
        return None

    def _build_struct(self, kind: types.StructType) -> TypeMap:
        if kind.cls not in self._built:
            fields: dict[str, TypeMap | None] = {}
            self._built[kind.cls] = type_map = TypeMap(fields=fields)  # before its fields, since types may be recursive
            effective = [field for field in kind.fields if field.encode_name not in _INEFFECTIVE_FIELDS]
            fields |= {field.encode_name: self.build(field.type, field.encode_name) for field in effective}
            fields |= {name: _INEFFECTIVE_LEVEL for tag, name in _INEFFECTIVE_LEVELS if tag == kind.tag}
            if kind.tag_field is not None:
                fields[kind.tag_field] = None
                self.kinds[kind.tag_field].add(types.LiteralType)
            force_setattr(type_map, "plain", frozenset(name for name, child in fields.items() if child is None))
        return self._built[kind.cls]

    def _build_union(self, kind: types.UnionType, name: str) -> TypeMap | None:
        tagged: dict[str, TypeMap] = {}
        untagged: list[TypeMap] = []
        for member in kind.types:
            type_map = self.build(member, name)
            if type_map is not None and isinstance(member, types.StructType) and member.tag is not None:
                tagged[str(member.tag)] = type_map
            elif type_map is not None:
                untagged.append(type_map)
        if len(tagged) == 1:  # msgspec accepts a lone struct without its tag
            untagged.extend(tagged.values())
            tagged = {}
        return _merge(tagged, untagged) if tagged or untagged else None


def _merge(tagged: dict[str, TypeMap], untagged: list[TypeMap]) -> TypeMap:
    """Merge the maps of a union. Unless tags tell objects apart, it has at most one object, list and string type."""
    merged = TypeMap(tagged=tagged or None)
    for type_map in untagged:
        merged = TypeMap(*[getattr(merged, name) or getattr(type_map, name) for name in TypeMap.__struct_fields__])
    return merged
