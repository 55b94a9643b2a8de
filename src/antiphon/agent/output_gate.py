"""Holds back model output that may violate the output rules; one gate per attempt.

Output that no rule covers passes at once: reasoning, text without a required format, calls of tools that are not
strict, and output whose rules the engine itself enforces. Held back are
- text before a call, where a call is required;
- a call of a strict tool and everything after it;
- an answer with a required format that the engine does not enforce;
- all output of a retry, of which only new parts are emitted: emitted output is never taken back.

An answer with a required format that continues with nothing but white space is ended as if it had been cut.

    feed* ─▶ output.validate (may be slow: run it in a thread) ─▶ release; nothing is released after a violation

A call whose output violates the rules is retried with feedback; after the last retry the response fails. The same
applies, without any rules, to output without an answer: only reasoning, or a call of a tool that nobody serves. The
retry then continues the response: its reasoning is emitted as another item.

    retry = OutputRetry(policy)
    … an attempt, fed through `retry.gate`, or None if there are no rules …
    await retry.validate(is_cut, resolver)
    … emit what `retry.gate.release()` returns …
    call = await retry.prepare_retry(call)    the next attempt; None: the output is valid
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.output_rules import (
    MAX_QUOTED_CHARS,
    NO_ANSWER,
    UNSERVED_CALL,
    AttemptCall,
    AttemptOutput,
    Key,
    OutputRules,
    Reason,
    RetryPolicy,
    Violation,
)
from antiphon.agent.tool_resolver import ToolCallResolver, UnservedCall
from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Summary, Text
from antiphon.core.prompt import Chunk, GenerationRequest, Prompt
from antiphon.errors import AntiphonError, InvalidCall, InvalidOutput
from antiphon.parsers.base import AnswerEnded

SEED_COUNT = 2**32 - 1  # seeds that every engine accepts
MIN_OUTPUT_TOKENS = 256  # lower bound for the answer of a retry, unless the client's own limit is lower
MAX_BLANK_CHARS = 1000  # consecutive white space characters allowed in an answer with a required format

RetryOutcome = Literal["mended", "asked_again", "failed"]


class Emitted(Struct):
    """Output that the client has received, over all attempts."""

    text: bool = False
    reasoning: bool = False
    calls: set[tuple[Key, str]] = field(default_factory=set)


class OutputGate:
    """Passes or holds the deltas of one attempt, and collects them as `output`, which is validated at the end."""

    def __init__(self, rules: OutputRules, emitted: Emitted, is_retry: bool = False) -> None:
        self._rules = rules
        self._emitted = emitted
        self._is_retry = is_retry
        self.output = AttemptOutput(rules, rules.required_tools is not None or (is_retry and emitted.text))
        # the lists of the output itself, without another attribute on the token path
        self._texts, self._messages, self._calls = self.output.texts, self.output.messages, self.output.calls
        self._awaits_call = rules.required_tools is not None  # hold text until the required call starts
        self._held: list[Delta] | None = [] if is_retry else None  # None: nothing is held back
        self._open_calls: dict[int, AttemptCall | None] = {}  # None: a call that is not allowed
        self._is_answer = True  # whether the open message must have the format
        self._blank_chars = 0

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

    def release(self) -> list[Delta]:
        """Return the held deltas that may be emitted now."""
        held, self._held = self._held or [], None
        out: list[Delta] = []
        if self.output.violation is None:
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
            self.output.refused = True
        elif isinstance(delta, Break):
            self._is_answer = delta.phase != "commentary"
            if self._messages[-1]:
                self._messages.append([])

    def _start(self, delta: CallStarted, out: list[Delta]) -> None:
        key, call_key = (delta.namespace, delta.name), delta.key
        if self._rules.required_tools is not None and key not in self._rules.required_tools:
            self._open_calls[call_key] = None
            return
        self._open_calls[call_key] = call = AttemptCall(delta, self._rules.tools.get(key))
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
        emitted, is_text, is_reasoning = self._emitted, type(delta) is Text, isinstance(delta, ReasoningDelta | Summary)
        if self._held is not None:
            self._held.append(delta)
        elif not self._is_retry:
            out.append(delta)
            emitted.text, emitted.reasoning = emitted.text or is_text, emitted.reasoning or is_reasoning
        elif not ((is_text and emitted.text) or (is_reasoning and emitted.reasoning)):
            out.append(delta)

    def _filter_held(self, held: Sequence[Delta]) -> Iterable[Delta]:
        """Yield the held deltas with calls in one piece and without those that an earlier attempt emitted."""
        calls = {call.started.key: call for call in self._calls}
        duplicates = {
            key for key, call in calls.items() if self._is_retry and (call.key, call.text) in self._emitted.calls
        }
        replacement = self.output.find_replacement()
        for delta in held:
            if isinstance(delta, Text) and replacement is not None:
                if replacement:
                    yield Text(replacement)
                replacement = ""
            elif isinstance(delta, CallStarted):
                if delta.key not in duplicates:
                    yield delta
                    if calls[delta.key].is_held:
                        yield from calls[delta.key].iter_deltas()
            elif not (isinstance(delta, CallDelta | CallDone) and delta.key in duplicates):
                yield delta


class OutputRetry:
    """All attempts of one model call."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._retries_remaining = policy.max_retries
        self._rules = policy.rules
        self._emitted = Emitted()
        self._unserved: list[UnservedCall] = []  # of all attempts
        self._is_repeat = False  # an attempt was discarded; otherwise each continues the one before
        self.gate = None if policy.rules is None else OutputGate(policy.rules, self._emitted)
        self.violation: Violation | None = None  # of the last attempt
        self.outcomes: list[tuple[Reason, RetryOutcome]] = []

    async def validate(self, is_cut: bool, resolver: ToolCallResolver) -> None:
        self.violation = None if self.gate is None else await _validate_output(self.gate.output, is_cut)
        if not is_cut and resolver.lacks_answer and (self.violation is None or self.violation.is_final):
            self._demand_answer(resolver)
        if self.violation is None and self.gate is not None:
            self.outcomes += [(reason, "mended") for reason in self.gate.output.repairs]

    def _demand_answer(self, resolver: ToolCallResolver) -> None:
        """Report that the answer is missing, unless there is text in a required format: no more may follow it."""
        if self.gate is not None and self.gate.output.has_formatted_text:
            return
        self._unserved += [
            UnservedCall(call.name, call.arguments[:MAX_QUOTED_CHARS]) for call in resolver.unserved.values()
        ]
        calls = (*self._unserved,)
        self.violation = Violation(
            reason="no_answer", output="", feedback=UNSERVED_CALL if calls else NO_ANSWER, calls=calls
        )

    async def prepare_retry(self, call: ModelCall) -> ModelCall | None:
        """Return the model call of the next attempt, or None if the output is valid.

        Raises the error of the last attempt when no retries remain.
        """
        if (violation := self.violation) is None:
            return None
        if violation.is_final or not self._retries_remaining:
            self.outcomes.append((violation.reason, "failed"))
            raise _to_error(violation)
        self._retries_remaining -= 1
        self.outcomes.append((violation.reason, "asked_again"))
        prompt, parser = await self._policy.render_retry(violation)
        self._is_repeat = self._is_repeat or violation.reason != "no_answer"
        self.gate = None if self._rules is None else OutputGate(self._rules, self._emitted, is_retry=self._is_repeat)
        return replace(
            call,
            generation=_retry_generation(call.generation, prompt, violation),
            parser=parser,
            resolver=call.resolver.copy_for_retry(),
        )


async def _validate_output(output: AttemptOutput, is_cut: bool) -> Violation | None:
    """Validate the output; a Lark grammar is slow and matched in a thread."""
    if any(call.rule is not None and call.rule.lark is not None for call in output.calls):
        await asyncio.to_thread(output.validate, is_cut)
    else:
        output.validate(is_cut)
    return output.violation


def _retry_generation(generation: GenerationRequest, prompt: Prompt, violation: Violation) -> GenerationRequest:
    """Return the generation request of a retry.

    The seed changes, or a deterministic model could repeat its output. The output limit shrinks by the added feedback:
    no token is shorter than a byte.
    """
    sampling = generation.sampling
    seed = None if sampling.seed is None else (sampling.seed + 1) % SEED_COUNT
    texts = (violation.output, violation.feedback, *[call.arguments + violation.feedback for call in violation.calls])
    limit, added = sampling.max_tokens, len("".join(texts).encode(errors="surrogatepass"))
    max_tokens = None if limit is None else max(limit - added, min(limit, MIN_OUTPUT_TOKENS))
    return replace(generation, prompt=prompt, sampling=replace(sampling, seed=seed, max_tokens=max_tokens))


def _to_error(violation: Violation) -> AntiphonError:
    match violation.reason:
        case "no_answer" if violation.calls:
            names = ", ".join(dict.fromkeys([repr(call.name[:64]) for call in violation.calls]))
            return InvalidCall(f"The model called tools that are not available ({names}) and did not answer.")
        case "no_answer":
            return InvalidOutput("The model stopped after its reasoning and did not answer.")
        case "format":
            return InvalidOutput("The model did not answer in the requested format.")
        case "no_call":
            return InvalidCall("The model returned no tool call although tool_choice requires one.")
        case "arguments":
            return InvalidCall(f"The model called a tool with invalid arguments. {violation.feedback}")
