"""Constraints in the form of llama.cpp: a JSON schema or a grammar, enforced by llguidance or by llama.cpp itself."""

import re
from typing import Any, assert_never

from msgspec import Struct

from antiphon.core.prompt import Constraint, Grammar, Json, JsonObject, JsonSchema, StructuralTag
from antiphon.errors import UnsupportedParameter

FORMATS = frozenset({"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
INSTANCE_KEYWORDS = frozenset(
    {"const", "enum", "default", "examples"}
)  # keywords whose values are instances, not schemas
LARK_HEADER = "%llguidance {}\n"

_UNESCAPED_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


class LlamaCppConstraint(Struct, frozen=True, kw_only=True):
    """The `json_schema` or `grammar` field of a completion request."""

    schema: Json | None = None
    grammar: str = ""

    @property
    def fails_silently(self) -> bool:
        """Whether a constraint that cannot be compiled is ignored: llguidance does so silently, llama.cpp's own
        grammars raise.
        """
        return self.schema is not None or self.grammar.startswith("%llguidance")


UNCONSTRAINED = LlamaCppConstraint()


def to_llamacpp_constraint(constraint: Constraint | None) -> LlamaCppConstraint:
    match constraint:
        case None:
            return UNCONSTRAINED
        case JsonObject():
            return LlamaCppConstraint(schema=_set_guidance_options({"type": "object"}, strict=True))
        case JsonSchema(schema=schema, strict=strict):
            return LlamaCppConstraint(schema=_set_guidance_options(_drop_unknown_formats(schema), strict))
        case Grammar(syntax=syntax, definition=definition):
            return LlamaCppConstraint(grammar=_to_grammar(syntax, definition))
        case StructuralTag():
            raise UnsupportedParameter("Structural tags are not supported by the llamacpp engine.", param="text.format")
        case _:
            assert_never(constraint)


def _set_guidance_options(schema: Json, strict: bool) -> Json:
    """Set the options of llguidance: no optional white space, in which small models get lost.

    An unknown format is an annotation (JSON Schema 2020-12, Validation §7.2.1). Any other unknown keyword is an error,
    unless the client did not request a strict schema.
    """
    return {**schema, "x-guidance": {"whitespace_flexible": False, "lenient": not strict}}


def _to_grammar(syntax: str, definition: str) -> str:
    match syntax:
        case "regex":
            return f"{LARK_HEADER}start: /{_escape_regex(definition)}/"
        case "lark":
            return definition if definition.startswith("%llguidance") else LARK_HEADER + definition
        case _:
            return definition


def _escape_regex(regex: str) -> str:
    """Escape a regular expression for Lark, which ends it at a slash or at the end of a line."""
    return _UNESCAPED_SLASH.sub(lambda match: match[1] or "\\/", regex).replace("\n", "\\n").replace("\r", "\\r")


def _drop_unknown_formats(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_drop_unknown_formats(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part if key in INSTANCE_KEYWORDS else _drop_unknown_formats(part)
        for key, part in schema.items()
        if not (key == "format" and isinstance(part, str) and part not in FORMATS)
    }
