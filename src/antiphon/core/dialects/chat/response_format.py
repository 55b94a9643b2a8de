"""The requested output format, under all the field names for it: at most one format or grammar.

Schemas become a format of the shared code, which validates them; patterns are validated here. Engines compile GBNF
grammars themselves and report errors (llama.cpp, vLLM and SGLang with status 400), so only their size is checked here.
"""

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from antiphon.core.prompt import Grammar
from antiphon.errors import InvalidValue, MissingParameter, MutuallyExclusive
from antiphon.limits import Limits
from antiphon.protocol.schemas.vetting import SchemaVetter
from antiphon.protocol.types.chat.sampling import CompletionFields, ResponseFormat
from antiphon.protocol.types.response import (
    Format,
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuralTagFormat,
    TextFormat,
)
from antiphon.protocol.types.tools import Json

_GUIDED_FIELDS: Final = ("json", "regex", "choice", "grammar")
# text without grouping brackets: literals, character classes, comments; an unclosed one ends with its line
_GBNF_TEXT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"?|\[(?:[^\]\\\n]|\\.)*\]?|#[^\n]*|[^()]')


class RequestedFormat(Struct, frozen=True, kw_only=True):
    """A format or a grammar. `param` is its field in the request, `schema_param` the field of its schema."""

    format: Format | None = None
    grammar: Grammar | None = None
    param: str = "response_format"
    schema_param: str = "response_format.json_schema.schema"


def read_format(request: CompletionFields, limits: Limits) -> RequestedFormat:
    """Return the requested format. Raises MutuallyExclusive if there are several."""
    found = [*_find_formats(request, limits)]
    if len(found) > 1:
        raise MutuallyExclusive(
            f"Mutually exclusive parameters. Ensure you are only providing one of: '{found[0].param}' or "
            f"'{found[1].param}'.",
            param=found[1].param,
        )
    return found[0] if found else RequestedFormat()


def _find_formats(request: CompletionFields, limits: Limits) -> Iterator[RequestedFormat]:
    if (response_format := request.response_format) is not None and response_format.type != "text":
        yield RequestedFormat(format=_to_format(response_format))
    if (outputs := request.structured_outputs) is not None:
        for name in outputs.__struct_fields__:
            value = getattr(outputs, name)
            if value is not None and value is not False:
                yield _to_constraint(name, value, f"structured_outputs.{name}", limits)
    for name in _GUIDED_FIELDS:
        if (value := getattr(request, f"guided_{name}")) is not None:
            yield _to_constraint(name, value, f"guided_{name}", limits)


def _to_format(response_format: ResponseFormat) -> Format:
    match response_format.type:
        case "json_object":
            return JsonObjectFormat()
        case "structural_tag":
            return StructuralTagFormat(
                structures=response_format.structures, triggers=response_format.triggers, format=response_format.format
            )
        case "json_schema":
            json_schema = response_format.json_schema
            if json_schema is None:
                name = "response_format.json_schema"
                raise MissingParameter(f"Missing required parameter: '{name}'.", param=name)
            description = UNSET if json_schema.description is None else json_schema.description
            return JsonSchemaFormat(
                name=json_schema.name, schema=json_schema.schema, description=description, strict=json_schema.strict
            )
        case "text":
            return TextFormat()


def _to_constraint(name: str, value: Any, param: str, limits: Limits) -> RequestedFormat:
    match name:
        case "json":
            json_format = JsonSchemaFormat(name="answer", schema=_parse_object(value, param), strict=True)
            return RequestedFormat(format=json_format, param=param, schema_param=param)
        case "json_object":
            return RequestedFormat(format=JsonObjectFormat(), param=param)
        case "structural_tag":
            return RequestedFormat(format=_structural_tag(_parse_object(value, param), param), param=param)
        case "regex":
            SchemaVetter(limits).vet_pattern(value, param)
            return RequestedFormat(grammar=Grammar("regex", value), param=param)
        case "choice":
            return RequestedFormat(grammar=Grammar("regex", _choices_pattern(value, param, limits)), param=param)
        case _:
            _check_grammar_size(value, param, limits)
            return RequestedFormat(grammar=Grammar("gbnf", value), param=param)


def _check_grammar_size(grammar: str, param: str, limits: Limits) -> None:
    """Bound the length and the nesting of a GBNF grammar. Engines parse it recursively: 100,000 brackets overflow the
    stack of llama.cpp.
    """
    if not 0 < len(grammar) <= limits.schema_bytes:
        raise InvalidValue(f"Invalid value for '{param}': expected 1 to {limits.schema_bytes} characters.", param=param)
    depths = accumulate([1 if bracket == "(" else -1 for bracket in _GBNF_TEXT.sub("", grammar)])
    if max(depths, default=0) > limits.schema_depth:
        raise InvalidValue(
            f"Invalid value for '{param}': its brackets are nested deeper than {limits.schema_depth} levels.",
            param=param,
        )


def _parse_object(value: str | Json, param: str) -> Json:
    """Return the object, which may be sent as JSON text."""
    if isinstance(value, dict):
        return value
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise InvalidValue(f"Invalid value for '{param}': it is not valid JSON.", param=param) from None
    if not isinstance(found, dict):
        raise InvalidValue(f"Invalid value for '{param}': expected an object.", param=param)
    return found


def _structural_tag(tag: Json, param: str) -> StructuralTagFormat:
    try:
        return msgspec.convert({**tag, "type": "structural_tag"}, StructuralTagFormat)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"Invalid value for '{param}': {error}.", param=param) from None


def _choices_pattern(choices: list[str], param: str, limits: Limits) -> str:
    if not 0 < len(choices) <= limits.schema_enum:
        raise InvalidValue(f"Invalid value for '{param}': expected 1 to {limits.schema_enum} choices.", param=param)
    pattern = "|".join([re.escape(choice) for choice in choices])
    if len(pattern) > limits.schema_bytes:
        raise InvalidValue(f"Invalid value for '{param}': it exceeds {limits.schema_bytes} characters.", param=param)
    return f"({pattern})"
