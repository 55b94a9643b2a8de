"""Fields that chat completions and completions have in common and a CreateResponse does not have.

They are checked here and applied by `service/planning/apply_extensions.py`. Fields that no engine supports are rejected
by name. The output format has many field names, of which at most one may be sent.

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
from antiphon.errors import UnsupportedParameter, invalid_value, missing_parameter, mutually_exclusive
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_choices
from antiphon.protocol.schemas.vetting import SchemaVetter
from antiphon.protocol.types.completions import CompletionFields, ResponseFormat
from antiphon.protocol.types.response import Format, JsonObjectFormat, JsonSchemaFormat, StructuralTagFormat
from antiphon.protocol.types.tools import Json

# Per field: the values that have no effect, and the hint in the error for any other value.
UNSUPPORTED_FIELDS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "use_beam_search": ((False,), "Send `best_of` instead: it is the width of a beam search where the engine has one."),
    "truncate_prompt_tokens": ((), "Prompts that are too long are rejected, not truncated."),
    "allowed_token_ids": (([],), "Use `logit_bias` instead."),
    "bad_words": (([],), "Use `logit_bias` instead."),
    "logits_processors": (([],), "Requests cannot contain code."),
    "thinking_token_budget": ((), "Use `reasoning_effort` instead."),
    "repetition_detection": ((), "No engine behind this server supports it."),
    "request_id": ((), "Send the header x-request-id instead."),
}
_MAX_ID_DIGITS = 10  # of a token id
_GUIDED_FIELDS: Final = ("json", "regex", "choice", "grammar")
# text without grouping brackets: literals, character classes, comments; an unclosed one ends with its line
_GBNF_TEXT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"?|\[(?:[^\]\\\n]|\\.)*\]?|#[^\n]*|[^()]')


def reject_unsupported(
    request: CompletionFields, sent: frozenset[str], unsupported: dict[str, tuple[tuple[Any, ...], str]]
) -> None:
    """Raise UnsupportedParameter for a field that was sent with a value other than its neutral ones."""
    for name in sorted(unsupported.keys() & sent):  # sorted: the same request always gets the same error
        neutral, reason = unsupported[name]
        if getattr(request, name) not in neutral:
            raise UnsupportedParameter(f"'{name}' is not supported. {reason}", param=name)


def check_fields(request: CompletionFields, limits: Limits) -> None:
    """Check the values that their types do not. Raises InvalidValue."""
    check_choices(request, limits)
    max_tokens = limits.output_tokens if request.max_tokens is None else min(request.max_tokens, limits.output_tokens)
    if (request.min_tokens or 0) > max_tokens:
        raise invalid_value("min_tokens", f"at most {max_tokens} are allowed here")
    biases = request.logit_bias or {}
    if len(biases) > limits.parts:
        raise invalid_value("logit_bias", f"at most {limits.parts} tokens are allowed")
    if not all(name.isdecimal() and name.isascii() and len(name) <= _MAX_ID_DIGITS for name in biases):
        raise invalid_value("logit_bias", "keys must be token ids")


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
        raise mutually_exclusive(found[1].param, found[0].param)
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
        case _:
            if (json_schema := response_format.json_schema) is None:
                raise missing_parameter("response_format.json_schema")
            description = UNSET if json_schema.description is None else json_schema.description
            return JsonSchemaFormat(
                name=json_schema.name, schema=json_schema.schema, description=description, strict=json_schema.strict
            )


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
    """Bound the length and nesting of a GBNF grammar: 100,000 brackets overflow the stack of llama.cpp's parser."""
    if not 0 < len(grammar) <= limits.schema_bytes:
        raise invalid_value(param, f"expected 1 to {limits.schema_bytes} characters")
    depths = accumulate([1 if bracket == "(" else -1 for bracket in _GBNF_TEXT.sub("", grammar)])
    if max(depths, default=0) > limits.schema_depth:
        raise invalid_value(param, f"its brackets are nested deeper than {limits.schema_depth} levels")


def _parse_object(value: str | Json, param: str) -> Json:
    """Return the object, which may be sent as JSON text."""
    if isinstance(value, dict):
        return value
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise invalid_value(param, "it is not valid JSON") from None
    if not isinstance(found, dict):
        raise invalid_value(param, "expected an object")
    return found


def _structural_tag(tag: Json, param: str) -> StructuralTagFormat:
    try:
        return msgspec.convert({**tag, "type": "structural_tag"}, StructuralTagFormat)
    except msgspec.ValidationError as error:
        raise invalid_value(param, str(error)) from None


def _choices_pattern(choices: list[str], param: str, limits: Limits) -> str:
    if not 0 < len(choices) <= limits.schema_enum:
        raise invalid_value(param, f"expected 1 to {limits.schema_enum} choices")
    pattern = "|".join([re.escape(choice) for choice in choices])
    if len(pattern) > limits.schema_bytes:
        raise invalid_value(param, f"it exceeds {limits.schema_bytes} characters")
    return f"({pattern})"
