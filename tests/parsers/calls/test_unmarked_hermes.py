"""Hermes calls without markers, as Qwen 2.5 Coder and small models write them: plain, or in a Markdown code fence."""

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.parsers.calls.base import TextPiece
from antiphon.parsers.calls.registry import load_format

TOOLS = {"get_weather": {"type": "function", "function": {"name": "get_weather", "parameters": {}}}}
CALL = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo"\n  }\n}'
FENCED = f"```json\n{CALL}\n```"


def parse_output(text: str, size: int) -> tuple[str, list[str], str]:
    """Return the text, the names of the calls, and the joined arguments."""
    form = load_format("hermes")(TOOLS)
    pieces = [piece for at in range(0, len(text), size) for piece in form.feed(text[at : at + size])]
    pieces += form.finish()
    assert sum(isinstance(piece, CallStarted) for piece in pieces) == sum(isinstance(one, CallDone) for one in pieces)
    return (
        "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)).strip(),
        [piece.name for piece in pieces if isinstance(piece, CallStarted)],
        "".join(piece.text for piece in pieces if isinstance(piece, CallDelta)),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("text", [CALL, FENCED, f"\n {FENCED}\n", f"[{CALL}]", FENCED[:-3]])
def test_an_answer_that_starts_with_a_call_is_parsed_as_a_call(text: str, size: int) -> None:
    answer, names, arguments = parse_output(text, size)
    assert (answer, names) == ("", ["get_weather"])
    assert arguments == '{\n    "city": "Oslo"\n  }'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "text",
    [
        f"Here is one:\n{FENCED}",
        CALL.replace("get_weather", "erase"),
        FENCED.replace("get_weather", "erase"),
        '```json\n{"name": "Ada", "age": 3}\n```\nis Ada.',
        "```python\nprint(1)\n```",
        '{"answer": 42}',
        "[1, 2]",
        "``",
        "```json",
        "``` json",
    ],
)
def test_an_answer_with_any_other_start_is_text(text: str, size: int) -> None:
    assert parse_output(text, size) == (text, [], "")


def test_text_after_the_fence_and_a_second_fence_are_text() -> None:
    answer, names, _ = parse_output(f"{FENCED}\nThat is how:\n{FENCED}", 4)
    assert names == ["get_weather"]
    assert answer == f"That is how:\n{FENCED}"


def test_a_call_between_markers_may_have_any_name() -> None:
    assert parse_output('<tool_call>{"name": "erase", "arguments": {}}</tool_call>', 5)[1] == ["erase"]
