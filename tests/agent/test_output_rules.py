"""The rules for the output of a model call: what fits, what is repaired, and what the model is told."""

from typing import Any

import pytest

from antiphon.agent.output_rules import (
    MAX_QUOTED_CHARS,
    AttemptCall,
    AttemptOutput,
    Key,
    OutputFormat,
    OutputRules,
    ToolRule,
)
from antiphon.core.deltas import CallStarted, Text

NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
LETTERS = {"type": "string", "pattern": "^a+$"}
F: Key = (None, "f")
G: Key = (None, "g")


@pytest.mark.parametrize(
    ("rule", "output", "is_valid"),
    [
        ({}, "anything", True),
        ({"schema": NUMBER}, '{"a": 1}', True),
        ({"schema": NUMBER}, " ", False),
        ({"schema": {"type": "object"}}, " \n", True),
        ({"schema": LETTERS, "takes_text": True}, "aa", True),
        ({"schema": LETTERS, "takes_text": True}, "b", False),
        ({"lark": 'start: "x"+'}, "xx", True),
        ({"lark": 'start: "x"+'}, "y", False),
    ],
)
def test_the_input_of_a_call_fits_the_rule_of_its_tool(rule: Any, output: str, is_valid: bool) -> None:
    assert (not ToolRule(offered_name="f", **rule).fit(output).fault) is is_valid


def test_the_feedback_for_a_call_says_what_is_wrong() -> None:
    assert ToolRule(offered_name="f").make_feedback("no a").startswith("The arguments do not fit what f takes: no a.")
    assert ToolRule(offered_name="f", takes_text=True).make_feedback("x").startswith("The input does not fit")


@pytest.mark.parametrize(
    ("output", "text", "repaired"),
    [
        ('{"a": 1}', '{"a": 1}', False),
        ('```json\n{"a": 1}\n```', '{"a": 1}', True),
        (' ```\n{"a": 1}```\n', '{"a": 1}', True),
        ('```json {"a": 1}```', None, False),
        ('json\n{"a": 1}\n```', None, False),
        ('```json\n{"a": 1}\n', None, False),
        ('```\n{"a": 1}\n```\n```\n{"a": 1}\n```', None, False),
        ("```\n{}\n```", None, False),
    ],
)
def test_a_fence_around_an_answer_is_removed(output: str, text: str | None, repaired: bool) -> None:
    fit = OutputFormat(schema=NUMBER).fit(output)
    assert (None if fit.fault else fit.text, fit.repaired) == (text, repaired)


@pytest.mark.parametrize(("length", "is_quoted"), [(MAX_QUOTED_CHARS, True), (MAX_QUOTED_CHARS + 1, False)])
def test_the_feedback_for_an_answer_quotes_a_schema_up_to_its_limit(length: int, is_quoted: bool) -> None:
    schema = {"title": "x" * (length - len('{"title":""}'))}
    assert ("xxx" in OutputFormat(schema=schema).make_feedback("fault")) is is_quoted


def test_the_feedback_for_a_missing_call_names_the_tools_that_may_be_called() -> None:
    tools = {F: ToolRule(offered_name="f"), G: ToolRule(offered_name="g")}
    assert OutputRules(tools=tools).make_missing_call_feedback().endswith(": f, g.")
    assert OutputRules(tools=tools, required_tools=frozenset({G})).make_missing_call_feedback().endswith(": g.")


def make_output(rules: OutputRules, *messages: str, call: str | None = None, done: bool = True) -> AttemptOutput:
    output = AttemptOutput(rules, rules.required_tools is not None)
    output.texts = [[Text(message)] for message in messages]
    output.messages = [[message] if message else [] for message in messages] or [[]]
    if call is not None:
        output.calls.append(AttemptCall(CallStarted(0, "f"), rules.tools.get(F), [call], done))
    return output


REQUIRED = OutputRules(required_tools=frozenset({F}))
FORMAT, ENFORCED = (
    OutputRules(output_format=OutputFormat(schema=NUMBER, is_held=is_held)) for is_held in (True, False)
)
STRICT = OutputRules(tools={F: ToolRule(offered_name="f", schema=NUMBER)})
BOTH = OutputRules(tools=STRICT.tools, output_format=FORMAT.output_format)
VALID, FENCED = '{"a": 1}', '```\n{"a": 1}\n```'


@pytest.mark.parametrize(
    ("output", "reason", "is_final"),
    [
        (make_output(REQUIRED, "x"), "no_call", False),
        (make_output(REQUIRED, "x", call="{}"), None, False),
        (make_output(FORMAT, VALID), None, False),
        (make_output(FORMAT, "x"), "format", False),
        (make_output(FORMAT), "format", False),
        (make_output(FORMAT, VALID, ""), None, False),
        (make_output(FORMAT, VALID, VALID), None, False),
        (make_output(FORMAT, VALID, "x"), "format", False),
        (make_output(FORMAT, VALID, FENCED), "format", False),
        (make_output(FORMAT, "x", call="{}"), None, False),
        (make_output(ENFORCED, FENCED), "format", True),
        (make_output(ENFORCED, "x"), "format", True),
        (make_output(STRICT, call="{}"), "arguments", False),
        (make_output(STRICT, call="{}", done=False), None, False),
        (make_output(STRICT, call=VALID), None, False),
        (make_output(BOTH, "x", call="{}"), "arguments", False),
    ],
)
def test_output_that_breaks_a_rule_is_a_violation(output: AttemptOutput, reason: str | None, is_final: bool) -> None:
    output.validate(is_cut=False)
    if reason is None:
        assert output.violation is None
    else:
        assert output.violation is not None
        assert (output.violation.reason, output.violation.is_final) == (reason, is_final)


def test_of_an_answer_that_was_cut_or_refused_only_complete_calls_are_validated() -> None:
    for output in (make_output(FORMAT, "x"), make_output(REQUIRED)):
        output.validate(is_cut=True)
        assert output.violation is None
    refused = make_output(FORMAT, "x")
    refused.refused = True
    refused.validate(is_cut=False)
    assert refused.violation is None
    called = make_output(STRICT, call="{}")
    called.validate(is_cut=True)
    assert called.violation is not None


def test_repaired_arguments_are_those_of_the_call() -> None:
    output = make_output(STRICT, call='{"a": "1"}')
    output.validate(is_cut=False)
    assert (output.violation, output.repairs, output.calls[0].text) == (None, ["arguments"], '{"a":1}')


def test_a_violation_quotes_the_text_and_the_calls() -> None:
    output = make_output(STRICT, "So", call="{}")
    output.validate(is_cut=False)
    assert output.violation is not None
    assert output.violation.output == "So\nf({})"


@pytest.mark.parametrize(
    ("output", "replacement"),
    [
        (make_output(FORMAT, FENCED), VALID),
        (make_output(FORMAT, FENCED, call="{}"), VALID),
        (make_output(FORMAT, VALID), None),
        (make_output(FORMAT, "x"), None),
        (make_output(FORMAT, "x", call="{}"), ""),
        (make_output(FORMAT, "x", "x", call="{}"), None),
        (make_output(FORMAT, call="{}"), None),
        (make_output(ENFORCED, "x", call="{}"), None),
        (make_output(STRICT, "x", call="{}"), None),
    ],
)
def test_text_is_replaced_if_it_was_repaired_or_stands_beside_a_call(
    output: AttemptOutput, replacement: str | None
) -> None:
    assert output.find_replacement() == replacement
