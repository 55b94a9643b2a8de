"""What an answer must look like, under all the names it is asked for by: one format, or one grammar, never two.

Schemas become a format of the shared path, which vets them; grammars are vetted here.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from antiphon.core.prompt import Grammar
from antiphon.errors import InvalidValue, MissingParameter, MutuallyExclusive
from antiphon.limits import Limits
from antiphon.protocol.schemas.gbnf import vet_gbnf
from antiphon.protocol.schemas.vetting import Vetting
from antiphon.protocol.types.chat.sampling import Generation, ResponseFormat
from antiphon.protocol.types.response import (
    Format,
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuralTagFormat,
    TextFormat,
)
from antiphon.protocol.types.tools import Json

_OLDER: Final = ("json", "regex", "choice", "grammar")


class Asked(Struct, frozen=True, kw_only=True):
    """`param` is where it stands; `schema` where its schema does."""

    format: Format | None = None
    grammar: Grammar | None = None
    param: str = "response_format"
    schema: str = "response_format.json_schema.schema"


def asked_format(asked: Generation, limits: Limits) -> Asked:
    found = [*_formats(asked, limits)]
    if len(found) > 1:
        raise MutuallyExclusive(
            f"Mutually exclusive parameters. Ensure you are only providing one of: '{found[0].param}' or "
            f"'{found[1].param}'.",
            param=found[1].param,
        )
    return found[0] if found else Asked()


def _formats(asked: Generation, limits: Limits) -> Iterator[Asked]:
    if (wanted := asked.response_format) is not None and wanted.type != "text":
        yield Asked(format=_format(wanted))
    if (outputs := asked.structured_outputs) is not None:
        for name in outputs.__struct_fields__:
            value = getattr(outputs, name)
            if value is not None and value is not False:
                yield _constrained(name, value, f"structured_outputs.{name}", limits)
    for name in _OLDER:
        if (value := getattr(asked, f"guided_{name}")) is not None:
            yield _constrained(name, value, f"guided_{name}", limits)


def _format(wanted: ResponseFormat) -> Format:
    match wanted.type:
        case "json_object":
            return JsonObjectFormat()
        case "structural_tag":
            return StructuralTagFormat(structures=wanted.structures, triggers=wanted.triggers, format=wanted.format)
        case "json_schema":
            form = wanted.json_schema
            if form is None:
                name = "response_format.json_schema"
                raise MissingParameter(f"Missing required parameter: '{name}'.", param=name)
            about = UNSET if form.description is None else form.description
            return JsonSchemaFormat(name=form.name, schema=form.schema, description=about, strict=form.strict)
        case "text":
            return TextFormat()


def _constrained(name: str, value: Any, param: str, limits: Limits) -> Asked:
    match name:
        case "json":
            form = JsonSchemaFormat(name="answer", schema=_object(value, param), strict=True)
            return Asked(format=form, param=param, schema=param)
        case "json_object":
            return Asked(format=JsonObjectFormat(), param=param)
        case "structural_tag":
            return Asked(format=_structural_tag(_object(value, param), param), param=param)
        case "regex":
            Vetting(limits).vet_pattern(value, param)
            return Asked(grammar=Grammar("regex", value), param=param)
        case "choice":
            return Asked(grammar=Grammar("regex", _one_of(value, param, limits)), param=param)
        case _:
            vet_gbnf(value, param, limits)
            return Asked(grammar=Grammar("gbnf", value), param=param)


def _object(value: str | Json, param: str) -> Json:
    """It may be written as text."""
    if isinstance(value, dict):
        return value
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise InvalidValue(f"Invalid value for '{param}': it is no JSON.", param=param) from None
    if not isinstance(found, dict):
        raise InvalidValue(f"Invalid value for '{param}': expected an object.", param=param)
    return found


def _structural_tag(tag: Json, param: str) -> StructuralTagFormat:
    try:
        return msgspec.convert({**tag, "type": "structural_tag"}, StructuralTagFormat)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"Invalid value for '{param}': {error}.", param=param) from None


def _one_of(choices: list[str], param: str, limits: Limits) -> str:
    if not 0 < len(choices) <= limits.schema_enum:
        raise InvalidValue(f"Invalid value for '{param}': it has 1 to {limits.schema_enum} choices.", param=param)
    pattern = "|".join([re.escape(choice) for choice in choices])
    if len(pattern) > limits.schema_bytes:
        raise InvalidValue(f"Invalid value for '{param}': it is longer than {limits.schema_bytes}.", param=param)
    return f"({pattern})"
