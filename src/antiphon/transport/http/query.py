"""The query of a URL → a Struct. Values are checked like those of a body; a name that nobody knows is told back.

A list is written `include[]=a&include[]=b` by the SDKs and `include=a&include=b` by people; the rest stands there once.
"""

from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct, ValidationError, inspect

from antiphon.errors import BadRequest, InvalidType, InvalidValue
from antiphon.protocol.decoding.error_messages import explain
from antiphon.transport.http.request import Request

T = TypeVar("T", bound=Struct)

_MOST = 64  # pairs
_SHOWN = 64  # characters of a value


def read_query(request: Request, kind: type[T]) -> T:
    """Raises InvalidValue, with the name as `param`, for what does not fit."""
    given = request.line.query
    values, request.ignored = _values(given, kind) if given else ({}, ())
    try:
        return msgspec.convert(values, kind, strict=False)
    except ValidationError as error:
        raise _unfit(explain(error, values, kind), values) from None


def _values(given: bytes, kind: type[Struct]) -> tuple[dict[str, Any], list[str]]:
    """By name, as they came; and the names that mean nothing here."""
    lists = _lists(kind)
    values: dict[str, Any] = {}
    unknown: dict[str, None] = {}
    for written, value in _pairs(given):
        bare = written.removesuffix("[]")
        name = bare if lists.get(bare) else written
        if name not in lists:
            unknown[name] = None
        elif lists[name]:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidValue(f"'{name}' is given twice.", param=name)
        else:
            values[name] = value
    return values, [*unknown]


@cache
def _lists(kind: type[Struct]) -> dict[str, bool]:
    """The names that are known, and which of them may be repeated."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return {field.name: isinstance(field.type, inspect.ListType) for field in described.fields}


def _pairs(given: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(given.decode("latin-1"), keep_blank_values=True, errors="replace", max_num_fields=_MOST)
    except ValueError:
        raise BadRequest(f"The query has more than {_MOST} parameters.") from None


def _unfit(error: BadRequest, values: dict[str, Any]) -> BadRequest:
    """In a query everything is a string: what is wrong with it is what it says."""
    if not isinstance(error, InvalidType) or error.param is None:
        return error
    wanted = error.message.partition("expected ")[2].partition(", got")[0]
    shown = str(values[error.param])[:_SHOWN]
    return InvalidValue(f"Invalid value for '{error.param}': {shown!r} is not {wanted}.", param=error.param)
