"""Rules for model output: an answer, required tool calls, valid arguments, and a required JSON format.

The output of an attempt is collected and validated as a whole; what is emitted meanwhile is decided by output_gate.py.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct, field

from antiphon.agent.tool_resolver import UnservedCall
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Text
from antiphon.core.prompt import Json, Prompt
from antiphon.parsers.base import Parser
from antiphon.protocol.schemas.grammars import find_mismatch
from antiphon.protocol.schemas.schema_check import SchemaCheckResult, check_text, find_violation

Reason = Literal["no_answer", "no_call", "arguments", "format"]
Key = tuple[str | None, str]  # namespace and name of a tool

MAX_QUOTED_CHARS = 4000  # characters of a wrong answer that are shown to the model again
UNSERVED_CALL = "Error: this tool is not available. Call only tools that were declared to you, or answer without tools."
NO_ANSWER = "You stopped without an answer. Write the answer now."
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

    def make_feedback(self, fault: str) -> str:
        """Return the sentence for the model after an invalid call."""
        subject = "arguments do" if not self.takes_text else "input does"
        return f"The {subject} not fit what {self.offered_name} takes: {fault}. Call it again, rightly."


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

    def make_missing_call_feedback(self) -> str:
        """Return the sentence for the model after an answer without the required call."""
        names = [rule.offered_name for key, rule in self.tools.items() if key in (self.required_tools or {key})]
        return f"Now call one of these tools, as you were told how to, and say nothing else: {', '.join(names)}."


class Violation(Struct, frozen=True, kw_only=True):
    """The reason why the output of an attempt is not valid."""

    reason: Reason
    output: str  # what the model wrote
    feedback: str  # sentence for the model
    is_final: bool = False  # no retry: the client has already received the output
    calls: Sequence[UnservedCall] = ()  # calls of all attempts that nobody serves; the feedback is their output


RenderRetry = Callable[[Violation], Awaitable[tuple[Prompt, Parser]]]  # the same request with feedback


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """The rules, and how to retry a call that violates them or gives no answer."""

    rules: OutputRules | None = None  # None: any answer is accepted
    render_retry: RenderRetry
    max_retries: int = 2  # attempts after the first


class AttemptCall(Struct):
    """A tool call of an attempt, and the rule for it."""

    started: CallStarted
    rule: ToolRule | None
    pieces: list[str] = field(default_factory=list)
    done: bool = False
    repaired: str | None = None  # arguments after a repair; None: as the model wrote them

    @property
    def key(self) -> Key:
        return self.started.namespace, self.started.name

    @property
    def text(self) -> str:
        return "".join(self.pieces) if self.repaired is None else self.repaired

    @property
    def is_held(self) -> bool:
        return self.rule is not None and self.rule.is_held

    def iter_deltas(self) -> Iterator[Delta]:
        """Yield the call after its start, with its arguments in one piece."""
        if self.text:
            yield CallDelta(self.started.key, self.text)
        if self.done:
            yield CallDone(self.started.key)


class AttemptOutput:
    """The output of one attempt of a model call: texts and tool calls.

    The output gate adds to it while the attempt runs; `validate` compares it with the rules at the end.
    """

    def __init__(self, rules: OutputRules, requires_call: bool) -> None:
        self._rules = rules
        self._requires_call = requires_call
        self.texts: list[Sequence[Text]] = []
        self.messages: list[list[str]] = [[]]  # texts of each message that must have the format
        self.calls: list[AttemptCall] = []
        self.refused = False
        self.repairs: list[Reason] = []
        self.violation: Violation | None = None

    @property
    def has_formatted_text(self) -> bool:
        return self._rules.output_format is not None and bool(self.texts)

    def validate(self, is_cut: bool) -> None:
        """Set `violation` if the output breaks a rule. If `is_cut`, only complete parts are checked."""
        for call in self.calls:
            if call.done and call.rule is not None and self.violation is None:
                self._validate_call(call, call.rule)
        if self.violation is not None or is_cut or self.refused:
            return
        if self._requires_call and not self.calls:
            self.violation = self._make_violation("no_call", self._rules.make_missing_call_feedback())
        elif self._rules.output_format is not None and not self.calls:
            self._validate_format()

    def find_replacement(self) -> str | None:
        """Return the text that replaces the answer, or None.

        The replacement is the repaired answer, or "" for text beside a call that does not have the required format.
        """
        output_format = self._rules.output_format
        if output_format is None or not output_format.is_held or len(self.messages) > 1 or not self.messages[0]:
            return None
        fit = output_format.fit("".join(self.messages[0]))
        if fit.repaired:
            return fit.text
        return "" if fit.fault and self.calls else None

    def _validate_call(self, call: AttemptCall, rule: ToolRule) -> None:
        fit = rule.fit(call.text)
        if fit.repaired and rule.is_held:
            call.repaired = fit.text
            self.repairs.append("arguments")
        elif fit.fault or fit.repaired:
            feedback = rule.make_feedback(fit.fault)
            self.violation = self._make_violation("arguments", feedback, is_final=not rule.is_held)

    def _validate_format(self) -> None:
        output_format = self._rules.output_format
        assert output_format is not None
        for message in self.messages:
            if len(self.messages) > 1 and not message:
                continue
            fit = output_format.fit("".join(message))
            if fit.repaired and output_format.is_held and len(self.messages) == 1:
                self.repairs.append("format")
            elif fit.fault or fit.repaired:
                self.violation = self._make_violation(
                    "format", output_format.make_feedback(fit.fault), is_final=not output_format.is_held
                )
                return

    def _make_violation(self, reason: Reason, feedback: str, is_final: bool = False) -> Violation:
        calls = [f"{call.started.name}({call.text})" for call in self.calls]
        text = "".join([delta.text for texts in self.texts for delta in texts])
        output = "\n".join([text, *calls]).strip()
        return Violation(reason=reason, output=output[:MAX_QUOTED_CHARS], feedback=feedback, is_final=is_final)


def _strip_fence(output: str) -> str | None:
    """Return the content of a single code fence that encloses the whole output, or None."""
    text = output.strip()
    first, newline, body = text.partition("\n")
    if not (newline and first.startswith(_FENCE) and body.endswith(_FENCE)):
        return None
    inner = body.removesuffix(_FENCE)
    return None if _FENCE in inner else inner.strip()
