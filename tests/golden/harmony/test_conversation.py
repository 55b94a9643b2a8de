"""A conversation with two turns of tool calls: the model's output is rendered into the next prompts token for token."""

from collections.abc import Sequence
from datetime import date

import pytest

from antiphon.core.history.history import make_history
from antiphon.core.prompt import Json
from antiphon.protocol.types.items import FunctionCall, InputItem
from antiphon.protocol.types.response import Response
from antiphon.render.content import AttachmentLookup
from antiphon.render.harmony.renderer import render_harmony
from antiphon.render.harmony.system import HarmonyConstraint, build_harmony_settings
from antiphon.render.messages import render_chat
from tests.golden.harmony.cases import Case, decode_tokens, encode_tokens, run_case
from tests.render.requests import ALL_FEATURES, function_output, make_request, user_message

CITY_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": CITY_PARAMETERS},
    {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}},
]
ANALYSIS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL_HEADER = "<|channel|>commentary to=functions."
OUTPUTS = [
    f'{ANALYSIS}Paris, then.{NEXT}{CALL_HEADER}get_weather <|constrain|>json<|message|>{{"city": "Paris"}}<|call|>',
    f"{ANALYSIS}And the time.{NEXT}<|channel|>commentary<|message|>One more thing.{NEXT}"
    f"{CALL_HEADER}get_time <|constrain|>json<|message|>{{}}<|call|>",
    f"{ANALYSIS}All there.{NEXT}<|channel|>final<|message|>Warm, at noon.<|return|>",
]
TOOL_OUTPUT = "<|start|>functions.{}<|channel|>commentary to=assistant<|message|>{}<|end|><|start|>assistant"


@pytest.mark.shows("D.1", "D.7", "D1.4")
def test_reasoning_is_rendered_during_tool_calls_and_dropped_after_the_answer() -> None:
    history = _make_items(user_message("How is it in Paris?"))
    first = _render_prompt(history)
    assert first.endswith("<|start|>user<|message|>How is it in Paris?<|end|><|start|>assistant")

    history += _run_turn(OUTPUTS[0], "22 °C")
    second = first + OUTPUTS[0] + TOOL_OUTPUT.format("get_weather", "22 °C")
    assert _render_prompt(history) == second  # so that the prefix cache of the engine applies to all of it

    history += _run_turn(OUTPUTS[1], "12:00")
    assert _render_prompt(history) == second + OUTPUTS[1] + TOOL_OUTPUT.format("get_time", "12:00")

    history += [*_parse_output(OUTPUTS[2]).output, *_make_items(user_message("Thanks."))]
    last = _render_prompt(history)
    assert not any(text in last for text in ("Paris, then.", "And the time.", "All there.", "analysis<"))
    assert "<|channel|>commentary<|message|>One more thing.<|end|>" in last
    assert last.count("<|call|>") == 2
    assert last.endswith(
        "<|start|>assistant<|channel|>final<|message|>Warm, at noon.<|end|>"
        "<|start|>user<|message|>Thanks.<|end|><|start|>assistant"
    )


def _run_turn(generated: str, output: str) -> list[InputItem]:
    """Return the items of the model's output, and the client's output of the called tool."""
    items = _parse_output(generated).output
    call = items[-1]
    assert isinstance(call, FunctionCall)
    return [*items, *_make_items(function_output(call.call_id, output))]


def _parse_output(generated: str) -> Response:
    case = Case(name="", source="", output="", tools=["get_weather", "get_time"])
    return run_case(case, [[token] for token in encode_tokens(generated)])[0]


def _make_items(*items: Json) -> list[InputItem]:
    return list(make_request(input=list(items)).input)


def _render_prompt(history: Sequence[InputItem]) -> str:
    create = make_request(tools=TOOLS)
    chat = render_chat(make_history(history, ()), create, ALL_FEATURES | {"phase"}, AttachmentLookup()).prompt
    return decode_tokens(
        render_harmony(chat, build_harmony_settings(create, date(2026, 1, 2), HarmonyConstraint())).tokens
    )
