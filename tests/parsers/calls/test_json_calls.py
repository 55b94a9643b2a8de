"""Calls as JSON: keys in any order, arguments in any wrapping, and the handling of broken calls."""

import json

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece, TextPiece
from antiphon.parsers.calls.delimited_calls import MAX_CALLS, MAX_FAILURES
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.parsers.calls.parsed_calls import parse_calls

F: dict[str, Json] = {"f": {}}


def parse_hermes(inside: str, after: str = "</tool_call>") -> list[tuple[str, str]]:
    """Parse a Hermes call at once and character by character."""
    text = f"<tool_call>{inside}{after}"
    pairs = parse_calls("hermes", [text], F)
    assert parse_calls("hermes", text, F) == pairs
    return pairs


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
def test_every_spelling_of_a_call_is_parsed(call: str) -> None:
    pairs = parse_hermes(call)
    assert [(name, text) for name, text in pairs if name or text.strip()] == [("f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("written", "expected"),
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
def test_wrapped_missing_and_faulty_arguments_are_repaired(written: str, expected: str) -> None:
    assert parse_hermes(f'{{"name": "f", "arguments": {written}}}') == [("f", expected)]


def test_a_call_without_arguments_has_empty_arguments() -> None:
    assert parse_hermes('{"name": "f"}') == [("f", "{}")]


@pytest.mark.parametrize(
    "inside", ['{"name": 5, "arguments": {}}', '{"a": 1}', "words", '{"name": "f" {', "[]", '{"name": ""}']
)
def test_other_text_between_the_markers_is_unchanged_text(inside: str) -> None:
    assert parse_hermes(inside) == [("", f"<tool_call>{inside}</tool_call>")]


def test_irreparable_arguments_are_passed_on_unchanged_up_to_the_marker() -> None:
    pairs = parse_hermes('{"name": "f", "arguments": {"a": one two}}', after="</tool_call> That was it.")
    assert pairs == [("f", '{"a": "one" two}}'), ("", " That was it.")]
    with pytest.raises(json.JSONDecodeError):
        json.loads(pairs[0][1])


def test_a_marker_ends_unclosed_arguments() -> None:
    assert parse_hermes('{"name": "f", "arguments": {"a": [1, {"b": 2') == [("f", '{"a": [1, {"b": 2}]}')]


def test_a_marker_within_a_string_is_part_of_the_string() -> None:
    arguments = '{"a": "<tool_call></tool_call>"}'
    assert parse_hermes(f'{{"name": "f", "arguments": {arguments}}}') == [("f", arguments)]


def test_arguments_are_emitted_as_they_arrive() -> None:
    reader = load_format("hermes")(F)
    assert not reader.feed('<tool_call>{"name": "f"')
    assert list(reader.feed(', "arguments": {"a": "on')) == [CallStarted(0, "f"), CallDelta(0, '{"a": "on')]
    assert list(reader.feed("e, t")) == [CallDelta(0, "e, t")]
    assert list(reader.feed('wo"}}')) == [CallDelta(0, 'wo"}'), CallDone(0)]


@pytest.mark.parametrize("form", ["llama3_json", "json", "xlam"])
def test_unmarked_json_is_a_call_only_if_it_names_an_offered_tool(form: str) -> None:
    call = '{"name": "f", "parameters": {"a": 1}}'
    assert parse_calls(form, [call], F) == [("f", '{"a": 1}')]
    assert parse_calls(form, [call], {"g": {}}) == [("", call)]
    assert parse_calls(form, [f"Like this: {call}"], F) == [("", f"Like this: {call}")]


def test_an_answer_in_json_is_not_buffered_to_its_end() -> None:
    reader = load_format("llama3_json")(F)
    pieces: list[Piece] = [piece for part in ('{"city": ', '"Paris"') for piece in reader.feed(part)]
    assert "".join([piece.text for piece in pieces if isinstance(piece, TextPiece)]) == '{"city": "Paris"'


def test_names_may_precede_the_arguments() -> None:
    assert parse_calls("mistral", ['[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}'], F) == [("f", '{"a": 1}')]
    assert parse_calls(
        "kimi_k2", ["<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"], F
    ) == [("f", "{}")]
    assert parse_calls("deepseek_v3", ["<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"], F) == [("f", "{}")]


@pytest.mark.parametrize("head", ["not a name at all", "f g", "", "x" * 600])
def test_a_head_without_a_name_is_text(head: str) -> None:
    text = f'[TOOL_CALLS]{head}[ARGS]{{"a": 1}}'
    assert parse_calls("mistral", [text], F) == parse_calls("mistral", text, F) == [("", text)]


def test_output_after_too_many_calls_or_failures_is_text() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    pairs = parse_calls("hermes", [call * (MAX_CALLS + 2)], F)
    assert [name for name, _ in pairs].count("f") == MAX_CALLS
    assert pairs[-1][1].endswith(call * 2)
    assert parse_calls("hermes", ["<tool_call>no " * MAX_FAILURES + call], F) == [
        ("", "<tool_call>no " * MAX_FAILURES + call)
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_control_tokens_are_unique_and_markers_are_not_blank(form: str) -> None:
    made = load_format(form)({})
    assert len(set(made.controls)) == len(made.controls)
    assert all(marker.strip() for marker in (*made.openings, *made.controls))
