"""Where one of a few words belongs there must not stand megabytes: to say that they are not among the words,
msgspec would copy them several times. Only large bodies are looked through, before their types are checked.
"""

from typing import Any

import msgspec.inspect as types
from msgspec import Struct

from antiphon.errors import InvalidValue

_LARGE = 1024 * 1024
_LONG = 64 * 1024


class LongWords:
    """Knows the fields of one type that hold one of a few words wherever they occur."""

    def __init__(self, root: type[Struct]) -> None:
        self._words: set[str] = set()
        self._texts: set[str] = set()
        self._free: set[str] = set()  # any JSON wherever they occur; not entered
        self._objects: set[str] = set()
        self._seen: set[type] = set()
        self._learn(types.type_info(root), "")
        self._words -= self._texts
        self._free -= self._objects

    def check(self, raw: dict[str, Any], size: int) -> None:
        """Raise if `raw`, decoded from a body of this size, has one."""
        waiting: list[tuple[str, Any]] = [*raw.items()] if size > _LARGE else []
        while waiting:
            name, value = waiting.pop()
            if name in self._free:
                continue
            if type(value) is dict:
                waiting.extend(value.items())
            elif type(value) is list:
                waiting.extend((name, held) for held in value)
            elif type(value) is str and len(value) > _LONG and name in self._words:
                raise InvalidValue(f"Invalid value for '{name}': it is {len(value)} characters long.", param=name)

    def _learn(self, kind: types.Type, name: str) -> None:
        match kind:
            case types.Metadata():
                self._learn(kind.type, name)
            case types.UnionType():
                for held in kind.types:
                    self._learn(held, name)
            case types.ListType():
                self._learn(kind.item_type, name)
            case types.DictType():
                self._learn(kind.value_type, name)
            case types.AnyType():
                self._free.add(name)
            case types.LiteralType():
                self._words.add(name)
            case types.StrType():
                self._texts.add(name)
            case types.StructType():
                self._objects.add(name)
                if kind.cls not in self._seen:
                    self._seen.add(kind.cls)
                    self._learn_fields(kind)

    def _learn_fields(self, kind: types.StructType) -> None:
        if kind.tag_field is not None:
            self._words.add(kind.tag_field)
        for field in kind.fields:
            self._learn(field.type, field.encode_name)
