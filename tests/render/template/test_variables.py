"""Template variables that a client may set, and the translation of the reasoning effort to `enable_thinking`."""

import pytest

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from tests.render.requests import render_request


@pytest.mark.parametrize(
    ("effort", "variables", "expected"),
    [
        (None, None, {}),
        (None, {"enable_thinking": True, "style": "x"}, {"enable_thinking": True, "style": "x"}),
        ("none", None, {"enable_thinking": False}),
        ("low", {"style": "x"}, {"enable_thinking": True, "style": "x"}),
        ("max", {"enable_thinking": True}, {"enable_thinking": True}),
    ],
)
@pytest.mark.shows("A3.22", "C1.2")
def test_an_effort_sets_enable_thinking(effort: str | None, variables: Json | None, expected: Json) -> None:
    reasoning = {"effort": effort} if effort else {}
    assert render_request(chat_template_kwargs=variables, reasoning=reasoning).prompt.template_kwargs == expected


@pytest.mark.parametrize(
    ("effort", "variables"),
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
def test_contradictions_and_reserved_names_are_rejected(effort: str, variables: Json) -> None:
    with pytest.raises(InvalidValue) as refused:
        render_request(chat_template_kwargs=variables, reasoning={"effort": effort})
    assert refused.value.param == "chat_template_kwargs"
