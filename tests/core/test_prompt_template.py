"""Templates and what fills them: one pass, and nothing that a variable says is looked at again."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt_template import Filling, Template, TemplateMessage, pieces
from antiphon.errors import InvalidValue, MissingParameter
from antiphon.protocol.types.items import Message
from antiphon.protocol.types.parts import InputText, OutputText

ROLES: tuple[Literal["system", "developer", "user", "assistant"], ...] = ("system", "developer", "user", "assistant")
TEXTS = st.text(alphabet="ab{} \n") | st.text()


@given(TEXTS)
def test_what_names_nothing_stays_as_it_is(text: str) -> None:
    template = Template(instructions=pieces(text))
    if not template.names:
        assert Filling(template, {}).instructions() == (text or None)


@pytest.mark.shows("A.32")
@given(TEXTS, TEXTS, TEXTS)
def test_a_variable_says_what_it_says_whatever_that_looks_like(before: str, one: str, other: str) -> None:
    before = before.replace("{", "").replace("}", "")
    template = Template(instructions=pieces(before + "{{one}}-{{ other }}-{{one}}"))
    filling = Filling(template, {"one": one, "other": other})
    assert filling.instructions() == f"{before}{one}-{other}-{one}"


@pytest.mark.parametrize("text", ["{{}}", "{{ a b }}", "{ {a}}", "{{1a}}", "{{a}", "{{" + "a" * 65 + "}}"])
def test_what_is_no_name_is_text(text: str) -> None:
    assert pieces(text) == ((False, text),)


def test_each_role_has_parts_of_its_kind() -> None:
    content = pieces("{{x}}!")
    template = Template(messages=tuple(TemplateMessage(role=role, content=content) for role in ROLES))
    kinds = []
    for item in Filling(template, {"x": InputText(text="so")}).items():
        assert isinstance(item, Message)
        (part,) = item.content
        assert isinstance(part, InputText | OutputText)
        assert part.text == "so!"
        kinds.append((item.role, type(part)))
    assert kinds == [*[(role, InputText) for role in ROLES[:3]], ("assistant", OutputText)]


def test_all_variables_have_to_be_there_and_no_others() -> None:
    template = Template(instructions=pieces("{{a}}"))
    with pytest.raises(MissingParameter) as missing:
        Filling(template, {})
    assert missing.value.param == "prompt.variables.a"
    with pytest.raises(InvalidValue) as unknown:
        Filling(template, {"a": "x", "b": "y"})
    assert unknown.value.param == "prompt.variables.b"
