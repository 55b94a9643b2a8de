"""Undecided output is buffered up to `MAX_BUFFERED` characters until it can be decided, and nothing is lost."""

from collections.abc import Iterator

import pytest

from antiphon.core.deltas import CallDelta, CallStarted
from antiphon.parsers.calls.base import TextPiece
from antiphon.parsers.calls.delimited_calls import MAX_BUFFERED, DelimitedCalls
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.parsers.calls.parsed_calls import STRING, make_tool

TOOLS = make_tool("f", a=STRING)
LONG = "x" * 3 * MAX_BUFFERED
CALLS: dict[str, str] = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": "',
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": "',
    "kimi_k2": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "',
    "qwen3_coder": "<tool_call><function=f><parameter=a>",
    "glm45": "<tool_call>f<arg_key>a</arg_key><arg_value>",
    "lfm2": "<|tool_call_start|>[f(a='",
    "functiongemma": "<start_function_call>call:f{a:<escape>",
}


def _iter_lags(reader: DelimitedCalls, text: str) -> Iterator[int]:
    """Yield the number of characters that are buffered after each character of `text`."""
    waiting = 0
    for char in text:
        waiting = 0 if reader.feed(char) else waiting + 1
        yield waiting


@pytest.mark.parametrize("family", CALLS)
def test_a_call_starts_soon_after_its_name_and_long_strings_are_not_buffered(
    family: str,
) -> None:
    reader = load_format(family)(TOOLS)
    begun = [piece for char in CALLS[family] + LONG[: MAX_BUFFERED + 1] for piece in reader.feed(char)]
    assert any(isinstance(piece, CallStarted) for piece in begun)
    assert set(_iter_lags(reader, LONG)) == {0}


@pytest.mark.parametrize("family", CALLS)
def test_finishing_loses_no_buffered_output(family: str) -> None:
    reader = load_format(family)(TOOLS)
    pieces = [piece for char in CALLS[family] + "short" for piece in reader.feed(char)] + list(reader.finish())
    assert "".join([piece.text.replace(" ", "") for piece in pieces if isinstance(piece, CallDelta)]) == '{"a":"short"}'


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder", "glm45", "lfm2", "functiongemma"])
def test_text_after_a_marker_without_a_call_is_delayed_by_at_most_the_buffer(family: str) -> None:
    marker = FORMATS[family].openings[0] if FORMATS[family].openings else "<tool_call>"
    text = f"{marker} is how a call begins, and it is only said here; {LONG}"
    reader = load_format(family)(TOOLS)
    assert max(_iter_lags(reader, text)) <= MAX_BUFFERED + len(marker) + 1
    reader = load_format(family)(TOOLS)
    pieces = [piece for char in text for piece in reader.feed(char)] + list(reader.finish())
    assert "".join([piece.text for piece in pieces if isinstance(piece, TextPiece)]) == text
