"""Holds back model output that may violate the output rules; one gate per attempt.

Output that no rule covers passes at once: reasoning, text without a required format, calls of tools that are not
strict, and output whose rules the engine itself enforces. Held back are
- text before a call, where a call is required;
- a call of a strict tool and everything after it;
- an answer with a required format that the engine does not enforce;
- all output of a retry, of which only new parts are emitted: emitted output is never taken back.

An answer with a required format that continues with nothing but white space is ended as if it had been cut.

    feed* ─▶ validate (may be slow: run it in a thread) ─▶ release, unless there is a `violation`
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from antiphon.agent.output_rules import MAX_QUOTED_CHARS, Key, OutputRules, Reason, ToolRule, Violation
from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    ReasoningDelta,
    Refusal,
    Summary,
    Text,
)
from antiphon.core.prompt import Chunk
from antiphon.parsers.base import AnswerEnded

MAX_BLANK_CHARS = 1000  # consecutive white space characters allowed in an answer with a required format


class Emitted(Struct):
    """Output that the client has received, over all attempts."""

    text: bool = False
    reasoning: bool = False
    calls: set[tuple[Key, str]] = field(default_factory=set)


class _GatedCall(Struct):
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


class OutputGate:
    """Passes, holds and validates the deltas of one attempt."""

    def __init__(self, rules: OutputRules, emitted: Emitted, is_retry: bool = False) -> None:
        self._rules = rules
        self._emitted = emitted
        self._is_retry = is_retry
        self._requires_call = rules.required_tools is not None or (is_retry and emitted.text)
        self._awaits_call = rules.required_tools is not None  # hold text until the required call starts
        self._held: list[Delta] | None = [] if is_retry else None  # None: nothing is held back
        self._calls: list[_GatedCall] = []
        self._open_calls: dict[int, _GatedCall | None] = {}  # None: a call that is not allowed
        self._texts: list[Sequence[Text]] = []
        self._messages: list[list[str]] = [[]]  # texts of each message that must have the format
        self._is_answer = True  # whether the open message must have the format
        self._blank_chars = 0
        self._refused = False
        self.repairs: list[Reason] = []
        self.violation: Violation | None = None

    def try_pass(self, texts: Sequence[Text]) -> bool:
        """Token path: return True if the texts may be emitted as they are and need not be fed."""
        if self._held is not None or self._awaits_call:
            return False
        if (output_format := self._rules.output_format) is not None:
            if output_format.is_held or self._blank_chars > MAX_BLANK_CHARS:
                return False
            for delta in texts:
                self._track_text(delta.text)
        if texts:
            self._texts.append(texts)
            self._emitted.text = True
        return True

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        is_overrun = self._blank_chars > MAX_BLANK_CHARS  # an answer in one piece has ended by itself
        for delta in deltas:
            match delta:
                case Text():
                    if is_overrun:
                        raise AnswerEnded(Chunk(finish="length"))
                    self._add_text(delta)
                    self._pass(delta, out)
                case CallStarted():
                    self._start(delta, out)
                case CallDelta() | CallDone():
                    self._continue_call(delta, out)
                case _:
                    self._track_delta(delta)
                    self._pass(delta, out)
        return out

    def validate(self, is_cut: bool) -> None:
        """Set `violation` if the output breaks a rule. If `is_cut`, only complete parts are checked."""
        for call in self._calls:
            if call.done and call.rule is not None and self.violation is None:
                self._validate_call(call, call.rule)
        if self.violation is not None or is_cut or self._refused:
            return
        if self._requires_call and not self._calls:
            self.violation = self._make_violation("no_call", self._missing_call_feedback())
        elif self._rules.output_format is not None and not self._calls:
            self._validate_format()

    def release(self) -> list[Delta]:
        """Return the held deltas that may be emitted now."""
        held, self._held = self._held or [], None
        out: list[Delta] = []
        if self.violation is None:
            for delta in self._filter_held(held):
                self._pass(delta, out)
        return out

    def _add_text(self, delta: Text) -> None:
        self._texts.append((delta,))
        if self._rules.output_format is not None:
            self._track_text(delta.text)
            if self._rules.output_format.is_held:
                self._hold()
        if self._awaits_call:
            self._hold()

    def _track_text(self, text: str) -> None:
        if self._is_answer:
            self._messages[-1].append(text)
        if body := text.rstrip():
            self._blank_chars = len(text) - len(body)
        else:
            self._blank_chars += len(text)

    def _track_delta(self, delta: Delta) -> None:
        if isinstance(delta, Refusal):
            self._refused = True
        elif isinstance(delta, Break):
            self._is_answer = delta.phase != "commentary"
            if self._messages[-1]:
                self._messages.append([])

    def _start(self, delta: CallStarted, out: list[Delta]) -> None:
        key, call_key = (delta.namespace, delta.name), delta.key
        if self._rules.required_tools is not None and key not in self._rules.required_tools:
            self._open_calls[call_key] = None
            return
        self._open_calls[call_key] = call = _GatedCall(delta, self._rules.tools.get(key))
        self._calls.append(call)
        if call.is_held:
            self._hold()
        if self._awaits_call:
            self._awaits_call = False
            self._release_early(out)
        self._pass(delta, out)

    def _release_early(self, out: list[Delta]) -> None:
        """Release the held deltas once the required call has started, if that call itself may be emitted."""
        output_format = self._rules.output_format
        if self._held and not (
            self._is_retry or self._calls[0].is_held or (output_format is not None and output_format.is_held)
        ):
            held, self._held = self._held, None
            for delta in held:
                self._pass(delta, out)

    def _continue_call(self, delta: CallDelta | CallDone, out: list[Delta]) -> None:
        if (call := self._open_calls.get(delta.key)) is None:
            return
        if isinstance(delta, CallDelta):
            call.pieces.append(delta.text)
        else:
            call.done = True
        if not call.is_held:
            self._pass(delta, out)
            if call.done and self._held is None:
                self._emitted.calls.add((call.key, call.text))

    def _hold(self) -> None:
        if self._held is None:
            self._held = []

    def _pass(self, delta: Delta, out: list[Delta]) -> None:
        """Emit the delta unless it is held back or was emitted in an earlier attempt."""
        if self._held is not None:
            self._held.append(delta)
        elif isinstance(delta, Text):
            if not (self._is_retry and self._emitted.text):
                out.append(delta)
        elif isinstance(delta, ReasoningDelta | Summary):
            if not (self._is_retry and self._emitted.reasoning):
                out.append(delta)
        else:
            out.append(delta)
        if self._held is None and not self._is_retry:
            self._emitted.text = self._emitted.text or isinstance(delta, Text)
            self._emitted.reasoning = self._emitted.reasoning or isinstance(delta, ReasoningDelta | Summary)

    def _filter_held(self, held: Sequence[Delta]) -> Iterable[Delta]:
        """Yield the held deltas with calls in one piece and without those that an earlier attempt emitted."""
        calls = {call.started.key: call for call in self._calls}
        duplicates = {
            key for key, call in calls.items() if self._is_retry and (call.key, call.text) in self._emitted.calls
        }
        replacement = self._replacement_text()
        for delta in held:
            if isinstance(delta, Text) and replacement is not None:
                if replacement:
                    yield Text(replacement)
                replacement = ""
            elif isinstance(delta, CallStarted):
                if delta.key not in duplicates:
                    yield delta
                    if calls[delta.key].is_held:
                        yield from _call_deltas(calls[delta.key])
            elif not (isinstance(delta, CallDelta | CallDone) and delta.key in duplicates):
                yield delta

    def _replacement_text(self) -> str | None:
        """Return the text that replaces the answer, or None.

        The replacement is the repaired answer, or "" for text beside a call that does not have the required format.
        """
        output_format = self._rules.output_format
        if output_format is None or not output_format.is_held or len(self._messages) > 1 or not self._messages[0]:
            return None
        fit = output_format.fit("".join(self._messages[0]))
        if fit.repaired:
            return fit.text
        return "" if fit.fault and self._calls else None

    def _validate_call(self, call: _GatedCall, rule: ToolRule) -> None:
        fit = rule.fit(call.text)
        if fit.repaired and rule.is_held:
            call.repaired = fit.text
            self.repairs.append("arguments")
        elif fit.fault or fit.repaired:
            subject = "arguments do" if not rule.takes_text else "input does"
            feedback = f"The {subject} not fit what {rule.offered_name} takes: {fit.fault}. Call it again, rightly."
            self.violation = self._make_violation("arguments", feedback, is_final=not rule.is_held)

    def _validate_format(self) -> None:
        output_format = self._rules.output_format
        assert output_format is not None
        for message in self._messages:
            if len(self._messages) > 1 and not message:
                continue
            fit = output_format.fit("".join(message))
            if fit.repaired and output_format.is_held and len(self._messages) == 1:
                self.repairs.append("format")
            elif fit.fault or fit.repaired:
                self.violation = self._make_violation(
                    "format", output_format.make_feedback(fit.fault), is_final=not output_format.is_held
                )
                return

    def _missing_call_feedback(self) -> str:
        names = [
            rule.offered_name for key, rule in self._rules.tools.items() if key in (self._rules.required_tools or {key})
        ]
        return f"Now call one of these tools, as you were told how to, and say nothing else: {', '.join(names)}."

    def _make_violation(self, reason: Reason, feedback: str, is_final: bool = False) -> Violation:
        calls = [f"{call.started.name}({call.text})" for call in self._calls]
        text = "".join([delta.text for texts in self._texts for delta in texts])
        output = "\n".join([text, *calls]).strip()
        return Violation(reason=reason, output=output[:MAX_QUOTED_CHARS], feedback=feedback, is_final=is_final)


def _call_deltas(call: _GatedCall) -> Iterable[Delta]:
    if call.text:
        yield CallDelta(call.started.key, call.text)
    if call.done:
        yield CallDone(call.started.key)
