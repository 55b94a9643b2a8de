"""What a client may say to a template, and how the reasoning effort becomes enable_thinking."""

import pytest

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from tests.render.requests import rendered


@pytest.mark.parametrize(
    ("effort", "given", "expected"),
    [
        (None, None, {}),
        (None, {"enable_thinking": True, "style": "x"}, {"enable_thinking": True, "style": "x"}),
        ("none", None, {"enable_thinking": False}),
        ("low", {"style": "x"}, {"enable_thinking": True, "style": "x"}),
        ("max", {"enable_thinking": True}, {"enable_thinking": True}),
    ],
)
@pytest.mark.shows("A3.22", "C1.2")
def test_an_effort_says_whether_to_think(effort: str | None, given: Json | None, expected: Json) -> None:
    reasoning = {"effort": effort} if effort else {}
    assert rendered(chat_template_kwargs=given, reasoning=reasoning).prompt.template_kwargs == expected


@pytest.mark.parametrize(
    ("effort", "given"),
    [
        ("none", {"enable_thinking": True}),
        ("high", {"enable_thinking": False}),
        ("high", {"enable_thinking": "yes"}),
        ("low", {"messages": []}),
        ("low", {"tokenize": True}),
        ("low", {"chat_template": "{{ 1 }}"}),
        ("low", {"add_generation_prompt": False}),
        ("low", {"raise_exception": 1}),
        ("low", {"__class__": 1}),
    ],
)
@pytest.mark.shows("C1.3")
def test_contradictions_and_names_that_are_not_a_clients_are_refused(effort: str, given: Json) -> None:
    with pytest.raises(InvalidValue) as refused:
        rendered(chat_template_kwargs=given, reasoning={"effort": effort})
    assert refused.value.param == "chat_template_kwargs"
