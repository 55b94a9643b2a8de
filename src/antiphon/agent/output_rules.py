"""Rules for model output: required tool calls, valid arguments, and a required JSON format."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Json, Prompt
from antiphon.parsers.base import Parser
from antiphon.protocol.schemas.grammars import find_mismatch
from antiphon.protocol.schemas.schema_check import SchemaCheckResult, check_text, find_violation

Reason = Literal["no_call", "arguments", "format"]
Key = tuple[str | None, str]  # namespace and name of a tool

MAX_QUOTED_CHARS = 4000  # characters of a wrong answer that are shown to the model again
_EMPTY_OBJECT = "{}"
_FENCE = "```"


class ToolRule(Struct, frozen=True, kw_only=True):
    """Rule for one tool: its arguments match a schema, or its input is a text of some grammar."""

    offered_name: str  # the name that the model sees
    schema: Json | None = None
    lark: str | None = None
    takes_text: bool = False  # the input is a text, not JSON
    is_held: bool = True  # emit a call only after validation; False if the engine enforces the rule

    def fit(self, output: str) -> SchemaCheckResult:
        """Validate the arguments or the input of a call and repair them if possible."""
        if self.lark is not None:
            return SchemaCheckResult(output, find_mismatch(self.lark, output))
        if self.schema is None:
            return SchemaCheckResult(output)
        return (
            SchemaCheckResult(output, find_violation(self.schema, output))
            if self.takes_text
            else check_text(self.schema, output.strip() or _EMPTY_OBJECT)
        )


class OutputFormat(Struct, frozen=True, kw_only=True):
    """Required format of the answer: JSON that matches a schema."""

    schema: Json
    is_held: bool = True

    def fit(self, output: str) -> SchemaCheckResult:
        """Validate the answer and repair it if possible. A code fence around the JSON is removed."""
        fit = check_text(self.schema, output)
        if not fit.fault or (unfenced := _strip_fence(output)) is None:
            return fit
        inner = check_text(self.schema, unfenced)
        return fit if inner.fault else SchemaCheckResult(inner.text, repaired=True)

    def make_feedback(self, fault: str) -> str:
        schema = msgspec.json.encode(self.schema).decode()
        schema_note = (
            f" It must be an instance of this JSON schema: {schema}" if len(schema) <= MAX_QUOTED_CHARS else ""
        )
        return f"That is not the JSON that was asked for: {fault}. Answer with nothing but the JSON.{schema_note}"


class OutputRules(Struct, frozen=True, kw_only=True):
    """All rules for the output of one model call."""

    required_tools: frozenset[Key] | None = None  # one of these must be called; None: no call is required
    tools: Mapping[Key, ToolRule] = {}  # tools whose calls are validated
    output_format: OutputFormat | None = None


class Violation(Struct, frozen=True, kw_only=True):
    """Why the output of an attempt is not valid."""

    reason: Reason
    output: str  # what the model wrote
    feedback: str  # sentence for the model
    is_final: bool = False  # no retry: the client has already received the output


RenderRetry = Callable[[Violation], Awaitable[tuple[Prompt, Parser]]]  # the same request with feedback


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """The rules, and how to retry a call that violates them."""

    rules: OutputRules
    render_retry: RenderRetry
    max_retries: int = 2  # attempts after the first


def _strip_fence(output: str) -> str | None:
    """Return the content of a single code fence that encloses the whole output, or None."""
    text = output.strip()
    first, newline, body = text.partition("\n")
    if not (newline and first.startswith(_FENCE) and body.endswith(_FENCE)):
        return None
    inner = body.removesuffix(_FENCE)
    return None if _FENCE in inner else inner.strip()
