"""Prompt templates: variables are substituted in one pass, and their values are never expanded again."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidValue, MissingParameter
from antiphon.protocol.types.items import Message
from antiphon.protocol.types.parts import InputText, OutputText
from antiphon.service.planning.prompt_library import FilledTemplate, PromptTemplate, TemplateMessage, split_template

ROLES: tuple[Literal["system", "developer", "user", "assistant"], ...] = ("system", "developer", "user", "assistant")
TEXTS = st.text(alphabet="ab{} \n") | st.text()


@given(TEXTS)
def test_text_without_variables_is_unchanged(text: str) -> None:
    template = PromptTemplate(instructions=text)
    if not template.variable_names:
        assert FilledTemplate(template, {}).render_instructions() == (text or None)


@pytest.mark.shows("A.32")
@given(TEXTS, TEXTS, TEXTS)
def test_variable_values_are_inserted_verbatim(before: str, one: str, other: str) -> None:
    before = before.replace("{", "").replace("}", "")
    template = PromptTemplate(instructions=before + "{{one}}-{{ other }}-{{one}}")
    filling = FilledTemplate(template, {"one": one, "other": other})
    assert filling.render_instructions() == f"{before}{one}-{other}-{one}"


@pytest.mark.parametrize("text", ["{{}}", "{{ a b }}", "{ {a}}", "{{1a}}", "{{a}", "{{" + "a" * 65 + "}}"])
def test_invalid_variable_names_are_plain_text(text: str) -> None:
    assert split_template(text) == ((False, text),)


def test_each_role_gets_its_part_type() -> None:
    template = PromptTemplate(messages=tuple(TemplateMessage("{{x}}!", role) for role in ROLES))
    kinds = []
    for item in FilledTemplate(template, {"x": InputText(text="so")}).render_items():
        assert isinstance(item, Message)
        (part,) = item.content
        assert isinstance(part, InputText | OutputText)
        assert part.text == "so!"
        kinds.append((item.role, type(part)))
    assert kinds == [*[(role, InputText) for role in ROLES[:3]], ("assistant", OutputText)]


def test_missing_and_unknown_variables_are_rejected() -> None:
    template = PromptTemplate(instructions="{{a}}")
    with pytest.raises(MissingParameter) as missing:
        FilledTemplate(template, {})
    assert missing.value.param == "prompt.variables.a"
    with pytest.raises(InvalidValue) as unknown:
        FilledTemplate(template, {"a": "x", "b": "y"})
    assert unknown.value.param == "prompt.variables.b"
