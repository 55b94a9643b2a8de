"""Hermes' calls without their marks, as Qwen 2.5 Coder and small models write them: bare, or in a fence of Markdown."""

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.parsers.calls.base import Said
from antiphon.parsers.calls.registry import load_format

TOOLS = {"get_weather": {"type": "function", "function": {"name": "get_weather", "parameters": {}}}}
CALL = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo"\n  }\n}'
FENCED = f"```json\n{CALL}\n```"


def read(text: str, size: int) -> tuple[str, list[str], str]:
    """What is said, what is called, and with which arguments."""
    form = load_format("hermes")(TOOLS)
    pieces = [piece for at in range(0, len(text), size) for piece in form.feed(text[at : at + size])]
    pieces += form.finish()
    assert sum(isinstance(piece, CallStarted) for piece in pieces) == sum(isinstance(one, CallDone) for one in pieces)
    return (
        "".join(piece.text for piece in pieces if isinstance(piece, Said)).strip(),
        [piece.name for piece in pieces if isinstance(piece, CallStarted)],
        "".join(piece.text for piece in pieces if isinstance(piece, CallDelta)),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("text", [CALL, FENCED, f"\n {FENCED}\n", f"[{CALL}]", FENCED[:-3]])
def test_an_answer_that_begins_with_a_call_calls(text: str, size: int) -> None:
    said, names, arguments = read(text, size)
    assert (said, names) == ("", ["get_weather"])
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
def test_whatever_else_an_answer_begins_with_is_text(text: str, size: int) -> None:
    assert read(text, size) == (text, [], "")


def test_text_after_the_fence_is_text_and_a_second_one_is_a_quotation() -> None:
    said, names, _ = read(f"{FENCED}\nThat is how:\n{FENCED}", 4)
    assert names == ["get_weather"]
    assert said == f"That is how:\n{FENCED}"


def test_between_marks_any_name_is_a_call_for_somebody_else_to_judge() -> None:
    assert read('<tool_call>{"name": "erase", "arguments": {}}</tool_call>', 5)[1] == ["erase"]
