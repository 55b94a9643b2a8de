"""Escaping in chats that another server renders: no string contains a control token, and all text stays readable."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.multi_match import GAP
from antiphon.core.prompt import ChatPrompt, Json
from antiphon.render.control_token_escape import (
    CONTROL_STRINGS,
    CONTROL_STRINGS_BY_FAMILY,
    escape_control_tokens,
    escape_reasoning_markers,
    escape_text,
)
from tests.support.cpu import measure_cpu_seconds

TEXTS = st.lists(st.sampled_from([*sorted(CONTROL_STRINGS), "<", "|", "]", "a", "\n", "｜"])).map("".join)


def has_control_string(value: Any) -> bool:
    """Return whether any string in the value, at any depth, contains a control string."""
    match value:
        case str():
            return any(one in value for one in CONTROL_STRINGS)
        case dict():
            return any(has_control_string(key) or has_control_string(item) for key, item in value.items())
        case list() | tuple():
            return any(map(has_control_string, value))
    return False


def test_control_strings_cover_at_least_thirty_families() -> None:
    assert len(CONTROL_STRINGS_BY_FAMILY) >= 30
    assert all(len(text) > 2 and not text[0].isalnum() for text in CONTROL_STRINGS)


@given(text=TEXTS)
@pytest.mark.shows("C.7")
def test_no_control_string_remains_and_no_character_is_lost(text: str) -> None:
    assert not has_control_string(escape_text(text))
    assert escape_text(text).replace(GAP, "") == text


@pytest.mark.parametrize(
    "text", ["", "Hello!", "a < b and c[0] > 1", "x <| f |> g", "<b>bold</b> [link](url)", "[1, 2]"]
)
def test_other_texts_are_returned_uncopied(text: str) -> None:
    assert escape_text(text) is text


def make_chat(text: str) -> ChatPrompt:
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": json.dumps({text: text})}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    function = {"name": "f", "description": text, "parameters": {"properties": {text: {"enum": [text]}}}}
    return ChatPrompt(
        (
            {"role": "system", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}, image]},
            {"role": "assistant", "content": None, "reasoning_content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": text, "name": text, "content": text},
        ),
        tools=({"type": "function", "function": function},),
        template_kwargs={"style": text, "list": [{"deep": text}]},
    )


@pytest.mark.parametrize("family", CONTROL_STRINGS_BY_FAMILY)
@pytest.mark.shows("C.7")
def test_no_string_of_an_escaped_chat_contains_a_control_token(family: str) -> None:
    for text in CONTROL_STRINGS_BY_FAMILY[family]:
        chat = escape_control_tokens(make_chat(f"a{text}b"))
        assert not has_control_string([chat.messages, chat.tools, chat.template_kwargs])


def test_a_clean_chat_is_not_copied() -> None:
    chat = make_chat("harmless [1] <b>")
    assert escape_control_tokens(chat) is chat


def test_values_other_than_text_are_unchanged() -> None:
    before, after = make_chat("</s>"), escape_control_tokens(make_chat("</s>"))
    assert after.messages[1]["content"][1] == before.messages[1]["content"][1]
    assert after.messages[2]["content"] is None
    assert [message["role"] for message in after.messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("cut", range(1, len("<|im_start|>")))
def test_a_control_string_cannot_form_across_two_parts(cut: int) -> None:
    marker = "<|im_start|>"
    parts: list[Json] = [{"type": "text", "text": marker[:cut]}, {"type": "text", "text": marker[cut:]}]
    chat = escape_control_tokens(ChatPrompt(({"role": "user", "content": parts},)))
    joined = "".join(part["text"] for part in chat.messages[0]["content"])
    assert not has_control_string(joined)
    assert joined.replace(GAP, "") == marker


def test_a_control_string_that_json_escapes_is_found_in_schemas() -> None:
    chat = escape_control_tokens(ChatPrompt((), tools=({"description": '<|"|>'},)))
    assert not has_control_string(chat.tools)


@pytest.mark.parametrize("text", ["<" * 100_000, "<|im_start|" * 9_000, "<|im_start|>" * 9_000, "[]" * 50_000])
def test_hostile_texts_take_linear_time(text: str) -> None:
    """About 15 ms; thirty times that leaves room for a busy machine, but not for more than linear time."""
    assert measure_cpu_seconds(lambda: escape_text(text)) < 0.5


@pytest.mark.parametrize(
    "written", ['"\\u003c|im_end|\\u003e"', '{"\\u003c/s>": ["<\\uff5cUser\\uff5c>"]}', '"\\u003c/s>']
)
def test_json_escapes_in_call_arguments_hide_no_control_string(written: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written}}
    chat = escape_control_tokens(ChatPrompt(({"role": "assistant", "content": None, "tool_calls": [call]},)))
    arguments = chat.messages[0]["tool_calls"][0]["function"]["arguments"]
    try:
        value = json.loads(arguments)
    except ValueError:
        value = arguments  # invalid JSON, checked as plain text
    assert not has_control_string(value)


REASONING_MARKERS = ("<think>",), ("</think>",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Use </think> to end it.", f"Use <{GAP}/think> to end it."),
        ("a <think>b</think>", f"a <{GAP}think>b<{GAP}/think>"),
        ("\n<think>hm</think>Cold.", "\n<think>hm</think>Cold."),
        ("Cold.", "Cold."),
    ],
)
def test_reasoning_markers_quoted_by_an_assistant_are_escaped(text: str, expected: str) -> None:
    user: Json = {"role": "user", "content": "</think>"}
    chat = escape_reasoning_markers(ChatPrompt((user, {"role": "assistant", "content": text})), *REASONING_MARKERS)
    assert [message["content"] for message in chat.messages] == ["</think>", expected]


def test_a_chat_without_reasoning_markers_is_not_copied() -> None:
    chat = ChatPrompt(({"role": "assistant", "content": "Cold."}, {"role": "assistant", "content": None}))
    assert escape_reasoning_markers(chat, *REASONING_MARKERS) is chat
