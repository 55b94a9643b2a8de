"""What the output gate passes, holds and releases, delta by delta."""

from typing import Any

import pytest

from antiphon.agent.output_gate import MAX_BLANK_CHARS, Emitted, OutputGate
from antiphon.agent.output_rules import OutputFormat, OutputRules, ToolRule
from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Summary, Text
from antiphon.parsers.base import AnswerEnded

F = (None, "f")
OBJECT = {"type": "object"}
TEXT, THOUGHT, SUMMARY = Text("Yes."), ReasoningDelta("Hm."), Summary("In short")
HELD_FORMAT, ENFORCED_FORMAT = OutputFormat(schema=OBJECT), OutputFormat(schema=OBJECT, is_held=False)
STRICT, ENFORCED = ToolRule(offered_name="f", schema=OBJECT), ToolRule(offered_name="f", schema=OBJECT, is_held=False)


def make_gate(emitted: Emitted | None = None, *, is_retry: bool = False, **rules: Any) -> OutputGate:
    return OutputGate(OutputRules(**rules), emitted or Emitted(), is_retry)


def call_tool(name: str = "f", arguments: str = "{}", key: int = 0) -> list[Delta]:
    return [CallStarted(key, name), CallDelta(key, arguments), CallDone(key)]


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([TEXT], Emitted(text=True)),
        ([THOUGHT], Emitted(reasoning=True)),
        ([SUMMARY], Emitted(reasoning=True)),
        ([TEXT, THOUGHT, TEXT], Emitted(text=True, reasoning=True)),
        (call_tool(), Emitted(calls={(F, "{}")})),
        (call_tool()[:2], Emitted()),
    ],
)
def test_output_that_no_rule_covers_passes_and_is_noted(deltas: list[Delta], expected: Emitted) -> None:
    emitted = Emitted()
    assert make_gate(emitted).feed(deltas) == deltas
    assert emitted == expected


@pytest.mark.parametrize(
    ("emitted", "deltas", "expected"),
    [
        (Emitted(), [TEXT, THOUGHT, *call_tool()], [TEXT, THOUGHT, *call_tool()]),
        (Emitted(text=True), [TEXT, THOUGHT], [THOUGHT]),
        (Emitted(reasoning=True), [TEXT, THOUGHT, SUMMARY], [TEXT]),
        (Emitted(text=True, reasoning=True), [TEXT, THOUGHT, Break()], [Break()]),
        (Emitted(calls={(F, "{}")}), [*call_tool(), *call_tool("g", "{}", 1)], call_tool("g", "{}", 1)),
        (Emitted(calls={(F, "{}")}), call_tool(arguments='{"a": 1}'), call_tool(arguments='{"a": 1}')),
    ],
)
def test_a_retry_emits_only_what_was_not_emitted_before(
    emitted: Emitted, deltas: list[Delta], expected: list[Delta]
) -> None:
    gate = make_gate(emitted, is_retry=True)
    assert gate.feed(deltas) == []
    assert not gate.try_pass([TEXT])
    assert gate.release() == expected


def test_texts_pass_without_being_fed_if_nothing_is_held() -> None:
    emitted = Emitted()
    gate = make_gate(emitted)
    assert gate.try_pass([])
    assert not emitted.text
    assert gate.try_pass([TEXT])
    assert emitted.text
    assert gate.output.texts == [[TEXT]]
    assert not make_gate(output_format=HELD_FORMAT).try_pass([TEXT])
    assert not make_gate(required_tools=frozenset({F})).try_pass([TEXT])


@pytest.mark.parametrize(("blanks", "is_ended"), [(MAX_BLANK_CHARS, False), (MAX_BLANK_CHARS + 1, True)])
def test_an_answer_with_a_format_may_have_as_much_white_space_as_the_limit(blanks: int, is_ended: bool) -> None:
    gate = make_gate(output_format=ENFORCED_FORMAT)
    assert gate.try_pass([Text("{" * 5000 + " " * 10), Text(" " * (blanks - 10))])
    assert gate.try_pass([Text("}")]) is not is_ended
    other = make_gate(output_format=ENFORCED_FORMAT)
    other.feed([Text("{" + " " * blanks)])
    if is_ended:
        with pytest.raises(AnswerEnded):
            other.feed([TEXT])
    else:
        assert other.feed([TEXT]) == [TEXT]
    assert other.feed([THOUGHT]) == [THOUGHT]


def test_an_answer_with_a_format_is_held_with_all_that_follows_it() -> None:
    gate = make_gate(output_format=HELD_FORMAT)
    deltas: list[Delta] = [Text('{"a"'), THOUGHT, Text(": 1}")]
    assert gate.feed([THOUGHT, *deltas]) == [THOUGHT]
    gate.output.validate(is_cut=False)
    assert gate.release() == deltas
    assert gate.feed([THOUGHT]) == [THOUGHT]


def test_nothing_is_released_after_a_violation() -> None:
    gate = make_gate(output_format=HELD_FORMAT)
    gate.feed([TEXT])
    gate.output.validate(is_cut=False)
    assert gate.output.violation is not None
    assert gate.release() == []


def test_a_repaired_answer_replaces_all_of_its_pieces() -> None:
    gate = make_gate(output_format=HELD_FORMAT)
    gate.feed([Text("```json\n"), Text('{"a": 1}'), Text("\n```"), THOUGHT])
    gate.output.validate(is_cut=False)
    assert gate.release() == [Text('{"a": 1}'), THOUGHT]


def test_a_strict_call_is_held_and_released_in_one_piece() -> None:
    gate = make_gate(tools={F: STRICT})
    pieces: list[Delta] = [CallStarted(0, "f"), CallDelta(0, '{"a"'), CallDelta(0, ": 1}"), CallDone(0), TEXT]
    assert gate.feed([THOUGHT, *pieces]) == [THOUGHT]
    gate.output.validate(is_cut=False)
    assert gate.release() == [*call_tool(arguments='{"a": 1}'), TEXT]


def test_a_call_behind_a_held_one_is_not_noted_as_emitted() -> None:
    emitted = Emitted()
    gate = make_gate(emitted, tools={F: STRICT})
    gate.feed([*call_tool(), *call_tool("g", key=1)])
    assert emitted.calls == set()
    assert gate.release() == [*call_tool(), *call_tool("g", key=1)]


def test_a_call_of_a_tool_that_may_not_be_called_is_dropped() -> None:
    gate = make_gate(required_tools=frozenset({F}))
    assert gate.feed(call_tool("g")) == []
    assert gate.feed(call_tool("f", key=1)) == call_tool("f", key=1)
    assert [call.key for call in gate.output.calls] == [F]


@pytest.mark.parametrize(
    ("is_retry", "rule", "output_format", "passes"),
    [
        (False, None, None, True),
        (False, ENFORCED, ENFORCED_FORMAT, True),
        (True, None, None, False),
        (False, STRICT, None, False),
        (False, None, HELD_FORMAT, False),
    ],
)
def test_text_before_the_required_call_passes_with_it_if_both_may(
    is_retry: bool, rule: ToolRule | None, output_format: OutputFormat | None, passes: bool
) -> None:
    tools = {} if rule is None else {F: rule}
    gate = make_gate(is_retry=is_retry, required_tools=frozenset({F}), tools=tools, output_format=output_format)
    assert gate.feed([THOUGHT]) == ([] if is_retry else [THOUGHT])
    assert gate.feed([TEXT]) == []
    assert gate.feed(call_tool()) == ([TEXT, *call_tool()] if passes else [])


def test_the_required_call_passes_if_nothing_was_said_before_it() -> None:
    assert make_gate(required_tools=frozenset({F})).feed(call_tool()) == call_tool()


def test_only_messages_that_are_answers_must_have_the_format() -> None:
    gate = make_gate(output_format=HELD_FORMAT)
    gate.feed([Break("commentary"), TEXT, Break(), Text("{"), Text("}"), Break(), Break(), Text("[]")])
    assert gate.output.messages == [["{", "}"], ["[]"]]


def test_a_refusal_needs_no_format() -> None:
    gate = make_gate(output_format=HELD_FORMAT)
    gate.feed([Refusal("No.")])
    gate.output.validate(is_cut=False)
    assert gate.output.violation is None
