"""What decides nothing is gathered, and looked at with what does; but only so much of it, and nothing is lost."""

from collections.abc import Iterator

import pytest

from antiphon.core.deltas import CallDelta, CallStarted
from antiphon.parsers.calls.base import Said
from antiphon.parsers.calls.delimited_calls import GATHERED, MarkedCalls
from antiphon.parsers.calls.gemma import FunctionGemmaCalls
from antiphon.parsers.calls.json_families import HermesCalls, KimiK2Calls, MistralCalls
from antiphon.parsers.calls.pythonic import Lfm2Calls
from antiphon.parsers.calls.tagged import GlmCalls, QwenCoderCalls
from tests.parsers.calls.parsed_calls import STRING, tool

TOOLS = tool("f", a=STRING)
LONG = "x" * 3 * GATHERED
CALLS: dict[type[MarkedCalls], str] = {
    HermesCalls: '<tool_call>{"name": "f", "arguments": {"a": "',
    MistralCalls: '[TOOL_CALLS]f[ARGS]{"a": "',
    KimiK2Calls: '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "',
    QwenCoderCalls: "<tool_call><function=f><parameter=a>",
    GlmCalls: "<tool_call>f<arg_key>a</arg_key><arg_value>",
    Lfm2Calls: "<|tool_call_start|>[f(a='",
    FunctionGemmaCalls: "<start_function_call>call:f{a:<escape>",
}


def _lags(reader: MarkedCalls, text: str) -> Iterator[int]:
    """How many characters of it are waiting, each time one comes."""
    waiting = 0
    for char in text:
        waiting = 0 if reader.feed(char) else waiting + 1
        yield waiting


@pytest.mark.parametrize("family", CALLS)
def test_a_call_has_started_soon_after_its_name_and_a_long_string_waits_for_nothing(family: type[MarkedCalls]) -> None:
    reader = family(TOOLS)
    begun = [piece for char in CALLS[family] + LONG[: GATHERED + 1] for piece in reader.feed(char)]
    assert any(isinstance(piece, CallStarted) for piece in begun)
    assert set(_lags(reader, LONG)) == {0}


@pytest.mark.parametrize("family", CALLS)
def test_an_end_loses_nothing_that_was_gathered(family: type[MarkedCalls]) -> None:
    reader = family(TOOLS)
    told = [piece for char in CALLS[family] + "short" for piece in reader.feed(char)] + list(reader.finish())
    assert "".join([piece.text.replace(" ", "") for piece in told if isinstance(piece, CallDelta)]) == '{"a":"short"}'


@pytest.mark.parametrize("family", [HermesCalls, QwenCoderCalls, GlmCalls, Lfm2Calls, FunctionGemmaCalls])
def test_text_after_a_mark_that_begins_no_call_comes_at_most_so_much_later(family: type[MarkedCalls]) -> None:
    mark = family.frame.openings[0] if family.frame.openings else "<tool_call>"
    text = f"{mark} is how a call begins, and it is only said here; {LONG}"
    reader = family(TOOLS)
    assert max(_lags(reader, text)) <= GATHERED + len(mark) + 1
    reader = family(TOOLS)
    told = [piece for char in text for piece in reader.feed(char)] + list(reader.finish())
    assert "".join([piece.text for piece in told if isinstance(piece, Said)]) == text
