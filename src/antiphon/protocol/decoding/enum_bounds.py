"""Rejects oversized enum values early: msgspec copies them several times into its error message.

Only large bodies are searched, before their types are checked.
"""

from typing import Any

import msgspec.inspect as types
from msgspec import Struct

from antiphon.errors import InvalidValue

_LARGE_BODY_BYTES = 1024 * 1024
_MAX_ENUM_CHARS = 64 * 1024


class EnumBounds:
    """The fields of one type that are enums wherever their name occurs."""

    def __init__(self, body_type: type[Struct]) -> None:
        self._enum_fields: set[str] = set()
        self._text_fields: set[str] = set()
        self._free_fields: set[str] = set()  # free-form JSON wherever the name occurs; not searched
        self._object_fields: set[str] = set()
        self._seen: set[type] = set()
        self._collect(types.type_info(body_type), "")
        self._enum_fields -= self._text_fields
        self._free_fields -= self._object_fields

    def check(self, raw: dict[str, Any], size: int) -> None:
        """Raise if `raw`, decoded from a body of `size` bytes, has an oversized enum value."""
        pending: list[tuple[str, Any]] = [*raw.items()] if size > _LARGE_BODY_BYTES else []
        while pending:
            name, value = pending.pop()
            if name in self._free_fields:
                continue
            if type(value) is dict:
                pending.extend(value.items())
            elif type(value) is list:
                pending.extend((name, entry) for entry in value)
            elif type(value) is str and len(value) > _MAX_ENUM_CHARS and name in self._enum_fields:
                raise InvalidValue(f"Invalid value for '{name}': it is {len(value)} characters long.", param=name)

    def _collect(self, kind: types.Type, name: str) -> None:
        match kind:
            case types.Metadata():
                self._collect(kind.type, name)
            case types.UnionType():
                for member in kind.types:
                    self._collect(member, name)
            case types.ListType():
                self._collect(kind.item_type, name)
            case types.DictType():
                self._collect(kind.value_type, name)
            case types.AnyType():
                self._free_fields.add(name)
            case types.LiteralType():
                self._enum_fields.add(name)
            case types.StrType():
                self._text_fields.add(name)
            case types.StructType():
                self._object_fields.add(name)
                if kind.cls not in self._seen:
                    self._seen.add(kind.cls)
                    self._collect_fields(kind)

    def _collect_fields(self, kind: types.StructType) -> None:
        if kind.tag_field is not None:
            self._enum_fields.add(kind.tag_field)
        for field in kind.fields:
            self._collect(field.type, field.encode_name)
