"""How a model is spoken to and heard: which prompt is made of a chat, what its answer is held to, and who reads it.

A tongue serves one request. It may make the prompt several times, of histories that get shorter, and is then asked how
the answer to the last one is to be heard. One that remembers nothing of that (`lasts`) serves all requests of a kind.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal, Protocol

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Constraint, Json, Prompt
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import PLAIN, Reading
from antiphon.protocol.types.request import CreateResponse

AT_ONCE: Final = 64 * 1024  # characters that are looked through in some milliseconds, whatever they are

Means = Literal["json", "lark", "tag"]  # what an engine may hold an answer to
Now = Callable[[], datetime]
Held = frozenset[Literal["calls", "form"]]  # tool_choice and strict tools; the format of the answer


class Heard(Struct, frozen=True, kw_only=True):
    parser: str  # a name in parsers/registry.py
    reading: Reading = PLAIN
    constraint: Constraint | None = None
    stops: tuple[int, ...] = ()  # tokens that end the answer, beside those that the client named
    shown: tuple[str, ...] = ()  # control tokens that the engine must not hide: the parser reads them
    held: Held = frozenset()  # to what the engine holds the model while it speaks; the rest is looked at afterwards


class Tongue(Protocol):
    honours: frozenset[str]  # names of request fields: the engine's, and what is made up for here
    lasts: bool  # for all requests of its kind
    verbatim: bool  # a chat is said as it is, however long

    def long(self, chat: ChatPrompt) -> bool:
        """Whether it takes so long to say this that others should not have to wait for it."""
        ...

    def say(self, chat: ChatPrompt, now: Now) -> Prompt: ...

    def hear(self, chat: ChatPrompt, said: Prompt) -> Heard:
        """`said`: what became of the chat."""
        ...


def is_much(chat: ChatPrompt) -> bool:
    """Whether to look through all that is said takes longer than others should wait."""
    said = [message.get("content") for message in chat.messages]
    texts = [text for content in said for text in ([content] if isinstance(content, str) else _texts(content))]
    return sum(map(len, texts)) > AT_ONCE


def _texts(parts: list[Json] | None) -> list[str]:
    return [part["text"] for part in parts or () if "text" in part]


def is_thoughtless(request: CreateResponse, chat: ChatPrompt) -> bool:
    """Whether the model is told not to think."""
    return request.reasoning.effort == "none" or chat.template_kwargs.get("enable_thinking") is False


def means(able: Capabilities) -> frozenset[Means]:
    fields: dict[str, Means] = {"text.format": "json", "grammar.lark": "lark", "structural_tag": "tag"}
    return frozenset([mean for field, mean in fields.items() if field in able.honours])
