"""Constraints in llama.cpp's words: a JSON schema or a grammar, which llguidance or llama.cpp itself enforces."""

import re
from typing import Any, assert_never

from msgspec import Struct

from antiphon.core.prompt import Constraint, Grammar, Json, JsonObject, JsonSchema, StructuralTag
from antiphon.errors import UnsupportedParameter

FORMATS = frozenset({"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
VALUES = frozenset({"const", "enum", "default", "examples"})  # keywords that hold instances, not schemas
LARK = "%llguidance {}\n"

_SLASHES = re.compile(r"(\\.)|/", re.DOTALL)


class Guide(Struct, frozen=True, kw_only=True):
    schema: Json | None = None
    grammar: str = ""

    @property
    def silent(self) -> bool:
        """llguidance gives up in silence what it does not understand; llama.cpp refuses it by itself."""
        return self.schema is not None or self.grammar.startswith("%llguidance")


UNGUIDED = Guide()


def guided(constraint: Constraint | None) -> Guide:
    match constraint:
        case None:
            return UNGUIDED
        case JsonObject():
            return Guide(schema=_compact({"type": "object"}, strict=True))
        case JsonSchema(schema=schema, strict=strict):
            return Guide(schema=_compact(_without_unknown_formats(schema), strict))
        case Grammar(syntax=syntax, definition=definition):
            return Guide(grammar=_grammar(syntax, definition))
        case StructuralTag():
            raise UnsupportedParameter("Structural tags are not supported by the llamacpp engine.", param="text.format")
        case _:
            assert_never(constraint)


def _compact(schema: Json, strict: bool) -> Json:
    """A schema that small models can fill in: without white space, in which they lose themselves.

    A format that the grammar does not know is an annotation, as JSON Schema has it. What else it does not know
    is an error, unless the client did not insist on a strict schema.
    """
    return {**schema, "x-guidance": {"whitespace_flexible": False, "lenient": not strict}}


def _grammar(syntax: str, definition: str) -> str:
    match syntax:
        case "regex":
            return f"{LARK}start: /{_within_slashes(definition)}/"
        case "lark":
            return definition if definition.startswith("%llguidance") else LARK + definition
        case _:
            return definition


def _within_slashes(regex: str) -> str:
    """Lark ends a regular expression at a slash or at the end of a line."""
    return _SLASHES.sub(lambda found: found[1] or "\\/", regex).replace("\n", "\\n").replace("\r", "\\r")


def _without_unknown_formats(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_unknown_formats(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part if key in VALUES else _without_unknown_formats(part)
        for key, part in schema.items()
        if not (key == "format" and isinstance(part, str) and part not in FORMATS)
    }
