"""What was asked of an answer beyond its words: that it calls, that arguments fit, that it is JSON of some form."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Json, Prompt
from antiphon.parsers.base import Parser
from antiphon.protocol.schemas.grammars import ungrammatical
from antiphon.protocol.schemas.schema_check import Fitted, fitted, misfit

Reason = Literal["no_call", "arguments", "format"]
Key = tuple[str | None, str]  # a tool's namespace and name

LONGEST_SAID = 4000  # characters of a wrong answer that the model is shown again
_NOTHING = "{}"
_FENCE = "```"


class ToolRule(Struct, frozen=True, kw_only=True):
    """Of one tool: its arguments are an instance of a schema, or its input is a text of some kind."""

    offered: str  # the name that the model knows it by
    schema: Json | None = None
    lark: str | None = None
    text: bool = False  # it takes a text, not JSON
    held: bool = True  # a call is told once it is known to be right; not if the engine sees to that

    def fit(self, said: str) -> Fitted:
        if self.lark is not None:
            return Fitted(said, ungrammatical(self.lark, said))
        if self.schema is None:
            return Fitted(said)
        return Fitted(said, misfit(self.schema, said)) if self.text else fitted(self.schema, said.strip() or _NOTHING)


class Form(Struct, frozen=True, kw_only=True):
    """Of the answer."""

    schema: Json
    held: bool = True

    def fit(self, said: str) -> Fitted:
        """What stands in a fence was meant without it."""
        fit = fitted(self.schema, said)
        if not fit.fault or (bare := _unfenced(said)) is None:
            return fit
        inner = fitted(self.schema, bare)
        return fit if inner.fault else Fitted(inner.text, mended=True)

    def complaint(self, fault: str) -> str:
        schema = msgspec.json.encode(self.schema).decode()
        wanted = f" It must be an instance of this JSON schema: {schema}" if len(schema) <= LONGEST_SAID else ""
        return f"That is not the JSON that was asked for: {fault}. Answer with nothing but the JSON.{wanted}"


class Rules(Struct, frozen=True, kw_only=True):
    must: frozenset[Key] | None = None  # the tools of which it has to call one; None: it need not
    tools: Mapping[Key, ToolRule] = {}  # those whose calls are looked at
    form: Form | None = None


class Misfit(Struct, frozen=True, kw_only=True):
    """What was wrong with an answer."""

    reason: Reason
    said: str  # by the model
    complaint: str  # for the model
    final: bool = False  # the client was told already


Again = Callable[[Misfit], Awaitable[tuple[Prompt, Parser]]]  # the same question, with what was wrong the last time


class Insistence(Struct, frozen=True, kw_only=True):
    rules: Rules
    again: Again
    tries: int = 2  # beyond the first


def _unfenced(said: str) -> str | None:
    """What stands in the one fence that all of it is in."""
    text = said.strip()
    first, newline, rest = text.partition("\n")
    if not (newline and first.startswith(_FENCE) and rest.endswith(_FENCE)):
        return None
    inner = rest.removesuffix(_FENCE)
    return None if _FENCE in inner else inner.strip()
