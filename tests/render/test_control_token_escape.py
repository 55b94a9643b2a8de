"""Nothing in a chat that somebody else renders looks like a control token, and everything in it can still be read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import ChatPrompt, Json
from antiphon.render.control_strings import CONTROL_STRINGS, FAMILIES
from antiphon.render.control_token_escape import GAP, break_up, broken, quote
from tests.support.cpu import spent_on

TEXTS = st.lists(st.sampled_from([*sorted(CONTROL_STRINGS), "<", "|", "]", "a", "\n", "｜"])).map("".join)


def holds_any(value: Any) -> bool:
    """In any string of it, at any depth."""
    match value:
        case str():
            return any(one in value for one in CONTROL_STRINGS)
        case dict():
            return any(holds_any(key) or holds_any(item) for key, item in value.items())
        case list() | tuple():
            return any(map(holds_any, value))
    return False


def test_there_are_the_control_strings_of_thirty_families_and_more() -> None:
    assert len(FAMILIES) >= 30
    assert all(len(text) > 2 and not text[0].isalnum() for text in CONTROL_STRINGS)


@given(text=TEXTS)
@pytest.mark.shows("C.7")
def test_no_control_string_is_left_and_no_character_is_lost(text: str) -> None:
    assert not holds_any(broken(text))
    assert broken(text).replace(GAP, "") == text


@pytest.mark.parametrize(
    "text", ["", "Hello!", "a < b and c[0] > 1", "x <| f |> g", "<b>bold</b> [link](url)", "[1, 2]"]
)
def test_other_texts_stay_the_very_same(text: str) -> None:
    assert broken(text) is text


def talk(text: str) -> ChatPrompt:
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": json.dumps({text: text})}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    function = {"name": "f", "description": text, "parameters": {"properties": {text: {"enum": [text]}}}}
    return ChatPrompt(
        (
            {"role": "system", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}, picture]},
            {"role": "assistant", "content": None, "reasoning_content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": text, "name": text, "content": text},
        ),
        tools=({"type": "function", "function": function},),
        template_kwargs={"style": text, "list": [{"deep": text}]},
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.shows("C.7")
def test_nothing_in_a_chat_is_left_that_looks_like_a_control_token(family: str) -> None:
    for text in FAMILIES[family]:
        chat = break_up(talk(f"a{text}b"))
        assert not holds_any([chat.messages, chat.tools, chat.template_kwargs])


def test_a_harmless_chat_is_not_even_copied() -> None:
    chat = talk("harmless [1] <b>")
    assert break_up(chat) is chat


def test_what_is_not_text_stays_as_it_is() -> None:
    before, after = talk("</s>"), break_up(talk("</s>"))
    assert after.messages[1]["content"][1] == before.messages[1]["content"][1]
    assert after.messages[2]["content"] is None
    assert [message["role"] for message in after.messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("cut", range(1, len("<|im_start|>")))
def test_a_control_string_does_not_arise_from_two_parts(cut: int) -> None:
    mark = "<|im_start|>"
    parts: list[Json] = [{"type": "text", "text": mark[:cut]}, {"type": "text", "text": mark[cut:]}]
    chat = break_up(ChatPrompt(({"role": "user", "content": parts},)))
    joined = "".join(part["text"] for part in chat.messages[0]["content"])
    assert not holds_any(joined)
    assert joined.replace(GAP, "") == mark


def test_a_mark_that_json_writes_with_an_escape_is_found_in_schemas() -> None:
    chat = break_up(ChatPrompt((), tools=({"description": '<|"|>'},)))
    assert not holds_any(chat.tools)


@pytest.mark.parametrize("text", ["<" * 100_000, "<|im_start|" * 9_000, "<|im_start|>" * 9_000, "[]" * 50_000])
def test_hostile_texts_cost_linear_time(text: str) -> None:
    """Some 15 ms here; thirty times that is room for a busy machine, and not for more than linear time."""
    assert spent_on(lambda: broken(text)) < 0.5


@pytest.mark.parametrize(
    "written", ['"\\u003c|im_end|\\u003e"', '{"\\u003c/s>": ["<\\uff5cUser\\uff5c>"]}', '"\\u003c/s>']
)
def test_escapes_in_the_arguments_of_a_call_hide_nothing(written: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written}}
    chat = break_up(ChatPrompt(({"role": "assistant", "content": None, "tool_calls": [call]},)))
    told = chat.messages[0]["tool_calls"][0]["function"]["arguments"]
    try:
        meant = json.loads(told)
    except ValueError:
        meant = told  # nobody can read it either
    assert not holds_any(meant)


THINK = ("<think>",), ("</think>",)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Use </think> to end it.", f"Use <{GAP}/think> to end it."),
        ("a <think>b</think>", f"a <{GAP}think>b<{GAP}/think>"),
        ("\n<think>hm</think>Cold.", "\n<think>hm</think>Cold."),
        ("Cold.", "Cold."),
    ],
)
def test_an_assistant_that_quotes_the_marks_of_thoughts_is_not_taken_to_think(said: str, told: str) -> None:
    user: Json = {"role": "user", "content": "</think>"}
    chat = quote(ChatPrompt((user, {"role": "assistant", "content": said})), *THINK)
    assert [message["content"] for message in chat.messages] == ["</think>", told]


def test_a_chat_without_marks_of_thoughts_stays_the_very_same() -> None:
    chat = ChatPrompt(({"role": "assistant", "content": "Cold."}, {"role": "assistant", "content": None}))
    assert quote(chat, *THINK) is chat
