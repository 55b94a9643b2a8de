"""Calls as JSON: keys in any order, arguments in any wrapping, and what is said of those that are broken."""

import json

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece, Said
from antiphon.parsers.calls.delimited_calls import MOST_CALLS, MOST_FAILURES
from antiphon.parsers.calls.json_families import (
    BareCalls,
    DeepseekV3Calls,
    HermesCalls,
    KimiK2Calls,
    Llama3Calls,
    MistralCalls,
    XlamCalls,
)
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.parsers.calls.parsed_calls import read

F: dict[str, Json] = {"f": {}}


def hermes(inside: str, after: str = "</tool_call>") -> list[tuple[str, str]]:
    """Whole and character by character."""
    text = f"<tool_call>{inside}{after}"
    told = read(HermesCalls, [text], F)
    assert read(HermesCalls, text, F) == told
    return told


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "f", "arguments": {"a": 1}}',
        '{"arguments": {"a": 1}, "name": "f"}',
        '{"name": "f", "parameters": {"a": 1}}',
        '{"id": "call_1", "type": "function", "name": "f", "arguments": {"a": 1}}',
        '{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}',
        '{"function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"}',
        '[{"name": "f", "arguments": {"a": 1}}]',
        '\n\n{"name" : "f" , "arguments" : {"a": 1} }\n',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        "{'name': 'f', 'arguments': {\"a\": 1}}",
        '{"name": "\\u0066", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": {"a": 1}}}',
        '{"name": "f", "arguments": {"a": 1}',
    ],
)
def test_a_call_may_be_written_in_many_ways(call: str) -> None:
    told = hermes(call)
    assert [(name, said) for name, said in told if name or said.strip()] == [("f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("null", "{}"),
        ("None", "{}"),
        ('""', "{}"),
        ('" "', "{}"),
        ("{}", "{}"),
        ('"{}"', "{}"),
        ('"some text"', '"some text"'),
        ('"{\\"a\\": \\"\\\\u00e9\\\\n\\"}"', '{"a": "\\u00e9\\n"}'),
        ('"{\\"a\\": \\"\\ud83d\\ude00\\"}"', '{"a": "😀"}'),
        ("\"{'a': 1\"", '{"a": 1}'),
        ("[1]", "[1]"),
        ("{'a': True}", '{"a": true}'),
    ],
)
def test_arguments_may_be_wrapped_missing_or_in_need_of_mending(written: str, meant: str) -> None:
    assert hermes(f'{{"name": "f", "arguments": {written}}}') == [("f", meant)]


def test_a_call_without_arguments_has_empty_ones() -> None:
    assert hermes('{"name": "f"}') == [("f", "{}")]


@pytest.mark.parametrize(
    "inside", ['{"name": 5, "arguments": {}}', '{"a": 1}', "words", '{"name": "f" {', "[]", '{"name": ""}']
)
def test_what_is_no_call_between_the_marks_is_text_to_the_character(inside: str) -> None:
    assert hermes(inside) == [("", f"<tool_call>{inside}</tool_call>")]


def test_arguments_that_cannot_be_mended_are_passed_on_as_they_were_said_up_to_the_mark() -> None:
    told = hermes('{"name": "f", "arguments": {"a": one two}}', after="</tool_call> That was it.")
    assert told == [("f", '{"a": "one" two}}'), ("", " That was it.")]
    with pytest.raises(json.JSONDecodeError):
        json.loads(told[0][1])


def test_a_mark_ends_arguments_that_were_left_open() -> None:
    assert hermes('{"name": "f", "arguments": {"a": [1, {"b": 2') == [("f", '{"a": [1, {"b": 2}]}')]


def test_a_mark_within_a_string_is_a_part_of_it() -> None:
    arguments = '{"a": "<tool_call></tool_call>"}'
    assert hermes(f'{{"name": "f", "arguments": {arguments}}}') == [("f", arguments)]


def test_arguments_are_passed_on_while_they_arrive() -> None:
    reader = HermesCalls(F)
    assert not reader.feed('<tool_call>{"name": "f"')
    assert list(reader.feed(', "arguments": {"a": "on')) == [CallStarted(0, "f"), CallDelta(0, '{"a": "on')]
    assert list(reader.feed("e, t")) == [CallDelta(0, "e, t")]
    assert list(reader.feed('wo"}}')) == [CallDelta(0, 'wo"}'), CallDone(0)]


@pytest.mark.parametrize("form", [Llama3Calls, BareCalls, XlamCalls])
def test_a_bare_answer_is_a_call_only_if_it_names_what_is_offered(form: type[Llama3Calls]) -> None:
    call = '{"name": "f", "parameters": {"a": 1}}'
    assert read(form, [call], F) == [("f", '{"a": 1}')]
    assert read(form, [call], {"g": {}}) == [("", call)]
    assert read(form, [f"Like this: {call}"], F) == [("", f"Like this: {call}")]


def test_an_answer_in_json_is_not_held_back_to_its_end() -> None:
    reader = Llama3Calls(F)
    said: list[Piece] = [piece for part in ('{"city": ', '"Paris"') for piece in reader.feed(part)]
    assert "".join([piece.text for piece in said if isinstance(piece, Said)]) == '{"city": "Paris"'


def test_names_may_stand_before_the_arguments() -> None:
    assert read(MistralCalls, ['[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}'], F) == [("f", '{"a": 1}')]
    assert read(
        KimiK2Calls, ["<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"], F
    ) == [("f", "{}")]
    assert read(DeepseekV3Calls, ["<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"], F) == [("f", "{}")]


@pytest.mark.parametrize("head", ["not a name at all", "f g", "", "x" * 600])
def test_a_head_without_a_name_is_text(head: str) -> None:
    text = f'[TOOL_CALLS]{head}[ARGS]{{"a": 1}}'
    assert read(MistralCalls, [text], F) == read(MistralCalls, text, F) == [("", text)]


def test_an_answer_of_very_many_calls_or_failures_is_text_from_some_point_on() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    told = read(HermesCalls, [call * (MOST_CALLS + 2)], F)
    assert [name for name, _ in told].count("f") == MOST_CALLS
    assert told[-1][1].endswith(call * 2)
    assert read(HermesCalls, ["<tool_call>no " * MOST_FAILURES + call], F) == [
        ("", "<tool_call>no " * MOST_FAILURES + call)
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_control_tokens_are_marks_that_stand_in_recordings(form: str) -> None:
    made = load_format(form)({})
    assert len(set(made.controls)) == len(made.controls)
    assert all(mark.strip() for mark in (*made.openings, *made.controls))
