"""Harmony prompts equal those of other implementations and of the openai_harmony package, token for token."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from openai_harmony import (  # type: ignore[import-untyped]
    Author,
    Conversation,
    DeveloperContent,
    Message,
    RenderConversationConfig,
    Role,
    SystemContent,
    load_harmony_encoding,
)

from antiphon.core.prompt import ChatPrompt, Json
from antiphon.render.harmony.renderer import render_harmony
from antiphon.render.harmony.system import HarmonySettings
from tests.golden.harmony.cases import FOLDER, decode_tokens

TODAY = "2025-06-28"


class PromptCase(Struct, kw_only=True):
    name: str
    source: str
    messages: list[Json]
    tools: list[Json]
    effort: str
    builtins: tuple[str, ...]
    prompt: str


PROMPTS = msgspec.json.decode((FOLDER / "prompts.json").read_bytes(), type=list[PromptCase])


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in PROMPTS])
@pytest.mark.shows("D.1", "D1.3", "D1.4")
def test_a_prompt_equals_that_of_another_implementation(case: PromptCase) -> None:
    chat = ChatPrompt(tuple(case.messages), tuple(case.tools))
    prompt = render_harmony(chat, HarmonySettings(today=TODAY, effort=case.effort, builtins=case.builtins))
    assert decode_tokens(prompt.tokens) == case.prompt


TEXT = st.text(max_size=60)
CONVERSATIONS = st.lists(
    st.tuples(st.sampled_from(["user", "developer", "final", "commentary", "thought", "call"]), TEXT), max_size=6
)


@settings(max_examples=60)
@given(conversation=CONVERSATIONS, instructions=TEXT)
def test_a_conversation_has_the_same_tokens_as_in_the_openai_harmony_package(
    conversation: list[tuple[str, str]], instructions: str
) -> None:
    chat: list[Json] = [{"role": "system", "content": instructions}, {"role": "user", "content": "hi"}]
    theirs: list[Any] = [
        Message.from_role_and_content(Role.SYSTEM, SystemContent.new().with_conversation_start_date(TODAY)),
        *([_make_developer_message(instructions)] if instructions else []),
        Message.from_role_and_content(Role.USER, "hi"),
    ]
    for number, (kind, text) in enumerate(conversation):
        ours, other = _make_messages(kind, text, f"call_{number}")
        chat += ours
        theirs += other
    prompt = render_harmony(ChatPrompt(tuple(chat)), HarmonySettings(today=TODAY, all_turns=True))
    conversation, config = Conversation.from_messages(theirs), RenderConversationConfig(auto_drop_analysis=False)
    library = load_harmony_encoding("HarmonyGptOss") if not LIBRARY else LIBRARY[0]
    LIBRARY[:] = [library]
    assert list(prompt.tokens) == library.render_conversation_for_completion(conversation, Role.ASSISTANT, config)


LIBRARY: list[Any] = []


def _make_developer_message(text: str) -> Any:
    return Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(text))


def _make_messages(kind: str, text: str, call_id: str) -> tuple[list[Json], list[Any]]:
    """Return the same messages in our chat format and in that of the library."""
    message = Message.from_role_and_content(Role.ASSISTANT, text)
    match kind:
        case "user":
            return [{"role": "user", "content": text}], [Message.from_role_and_content(Role.USER, text)]
        case "developer":
            return [{"role": "developer", "content": text}], [_make_developer_message(text)]
        case "thought":
            final = Message.from_role_and_content(Role.ASSISTANT, "so").with_channel("final")
            answer = {"role": "assistant", "content": "so", "reasoning_content": text}
            return [answer], [*([message.with_channel("analysis")] if text else []), final]
        case "call":
            call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": text}}
            output = Message.from_author_and_content(Author.new(Role.TOOL, "functions.f"), text)
            messages: list[Json] = [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "name": "f", "content": text},
            ]
            library_call = (
                message.with_channel("commentary").with_recipient("functions.f").with_content_type("<|constrain|>json")
            )
            return messages, [library_call, output.with_channel("commentary").with_recipient("assistant")]
        case _:
            phase = {"phase": "commentary"} if kind == "commentary" else {}
            messages = [{"role": "assistant", "content": text, **phase}] if text else []
            return messages, [message.with_channel(kind)] if text else []
