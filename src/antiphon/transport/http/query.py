"""Decodes the query of a URL into a Struct. Values are validated like those of a body; unknown names are reported.

SDKs write a list as `include[]=a&include[]=b`, people as `include=a&include=b`. Others must not be repeated.
"""

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, ValidationError, inspect

from antiphon.errors import BadRequest, InvalidType, InvalidValue
from antiphon.protocol.decoding.error_messages import explain
from antiphon.transport.http.request import Request

T = TypeVar("T", bound=Struct)

_MAX_SHOWN = 64  # characters of a value that an error message shows


def read_query(request: Request, kind: type[T]) -> T:
    """Decode the query and set `request.ignored` to unknown names. Raises InvalidValue with the name as `param`."""
    request.reads_query = True
    values, request.ignored = _collect_values(request.parse_query(), kind) if request.channel.query else ({}, ())
    try:
        return msgspec.convert(values, kind, strict=False)
    except ValidationError as error:
        raise _to_value_error(explain(error, values, kind), values) from None


def _collect_values(query: list[tuple[str, str]], kind: type[Struct]) -> tuple[dict[str, Any], list[str]]:
    """Return the raw values by name, and the unknown names."""
    lists = _list_fields(kind)
    values: dict[str, Any] = {}
    unknown: dict[str, None] = {}
    for raw_name, value in query:
        base_name = raw_name.removesuffix("[]")
        name = base_name if lists.get(base_name) else raw_name
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
def _list_fields(kind: type[Struct]) -> dict[str, bool]:
    """Return the known names, and which of them are lists."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.name: isinstance(field.type, inspect.ListType) for field in info.fields}


def _to_value_error(error: BadRequest, values: dict[str, Any]) -> BadRequest:
    """Turn a type error into a value error: in a query every value is a string, so only its content can be wrong."""
    if not isinstance(error, InvalidType) or error.param is None:
        return error
    expected = error.message.partition("expected ")[2].partition(", got")[0]
    shown = str(values[error.param])[:_MAX_SHOWN]
    return InvalidValue(f"Invalid value for '{error.param}': {shown!r} is not {expected}.", param=error.param)
