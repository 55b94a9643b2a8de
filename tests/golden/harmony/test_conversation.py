"""A conversation with two turns of tools: what the model said comes back to it as it should, turn for turn."""

from collections.abc import Sequence
from datetime import date

import pytest

from antiphon.core.history.history import make_history
from antiphon.core.prompt import Json
from antiphon.protocol.types.items import FunctionCall, InputItem
from antiphon.protocol.types.response import Response
from antiphon.render.attachments import Attached
from antiphon.render.harmony.renderer import render_harmony
from antiphon.render.harmony.system import Demand, set_scene
from antiphon.render.messages import render_chat
from tests.golden.harmony.cases import Case, play, spelled, tokens
from tests.render.requests import ALL, function_output, request, user

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": PLACE},
    {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}},
]
THINKS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
CALLS = "<|channel|>commentary to=functions."
SAID = [
    f'{THINKS}Paris, then.{NEXT}{CALLS}get_weather <|constrain|>json<|message|>{{"city": "Paris"}}<|call|>',
    f"{THINKS}And the time.{NEXT}<|channel|>commentary<|message|>One more thing.{NEXT}"
    f"{CALLS}get_time <|constrain|>json<|message|>{{}}<|call|>",
    f"{THINKS}All there.{NEXT}<|channel|>final<|message|>Warm, at noon.<|return|>",
]
TOLD = "<|start|>functions.{}<|channel|>commentary to=assistant<|message|>{}<|end|><|start|>assistant"


@pytest.mark.shows("D.1", "D.7", "D1.4")
def test_thoughts_stay_while_tools_are_called_and_go_when_the_answer_is_there() -> None:
    history = _items(user("How is it in Paris?"))
    asked = _prompt(history)
    assert asked.endswith("<|start|>user<|message|>How is it in Paris?<|end|><|start|>assistant")

    history += _turn(SAID[0], "22 °C")
    again = asked + SAID[0] + TOLD.format("get_weather", "22 °C")
    assert _prompt(history) == again  # so that the engine finds all of it in its cache

    history += _turn(SAID[1], "12:00")
    assert _prompt(history) == again + SAID[1] + TOLD.format("get_time", "12:00")

    history += [*_answer(SAID[2]).output, *_items(user("Thanks."))]
    after = _prompt(history)
    assert not any(thought in after for thought in ("Paris, then.", "And the time.", "All there.", "analysis<"))
    assert "<|channel|>commentary<|message|>One more thing.<|end|>" in after
    assert after.count("<|call|>") == 2
    assert after.endswith(
        "<|start|>assistant<|channel|>final<|message|>Warm, at noon.<|end|>"
        "<|start|>user<|message|>Thanks.<|end|><|start|>assistant"
    )


def _turn(said: str, output: str) -> list[InputItem]:
    """What the model said, and what the client answered."""
    items = _answer(said).output
    call = items[-1]
    assert isinstance(call, FunctionCall)
    return [*items, *_items(function_output(call.call_id, output))]


def _answer(said: str) -> Response:
    case = Case(name="", source="", output="", tools=["get_weather", "get_time"])
    return play(case, [[token] for token in tokens(said)])[0]


def _items(*given: Json) -> list[InputItem]:
    return list(request(input=list(given)).input)


def _prompt(history: Sequence[InputItem]) -> str:
    asked = request(tools=TOOLS)
    chat = render_chat(make_history(history, ()), asked, ALL | {"phase"}, Attached()).prompt
    return spelled(render_harmony(chat, set_scene(asked, date(2026, 1, 2), Demand())).tokens)
