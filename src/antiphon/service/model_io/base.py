"""Model adapters: convert a chat to a prompt, constrain the output, and select its parser.

An adapter serves one request. It may render the prompt several times, from histories that get shorter, and then
specifies how the output of the last one is read.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal, Protocol

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Constraint, Json, Prompt
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import DEFAULT_OPTIONS, ParserOptions
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.shared_list import derive

MAX_INLINE_CHARS: Final = 64 * 1024  # scanned in a few milliseconds; more is scanned in a thread

ConstraintKind = Literal["json", "lark", "tag"]  # constraints that an engine can enforce
Now = Callable[[], datetime]
EnforcedParts = frozenset[
    Literal["calls", "form"]
]  # calls: tool_choice and strict tools; form: the format of the answer


class OutputSpec(Struct, frozen=True, kw_only=True):
    """Constraint and parser options for the output of a prompt."""

    parser: str  # a name in parsers/registry.py
    parser_options: ParserOptions = DEFAULT_OPTIONS
    constraint: Constraint | None = None
    stop_token_ids: tuple[int, ...] = ()  # tokens that end the answer, besides those that the client named
    visible_tokens: tuple[str, ...] = ()  # control tokens that the engine must not strip: the parser reads them
    enforced: EnforcedParts = (
        frozenset()
    )  # enforced by the engine during generation; the other rules are checked afterwards


class ModelAdapter(Protocol):
    honours: frozenset[str]  # request fields that are supported, by the engine or by the adapter

    def is_slow(self, chat: ChatPrompt) -> bool:
        """Whether rendering the chat belongs in a thread."""
        ...

    def render(self, chat: ChatPrompt, now: Now) -> Prompt: ...

    def make_output_spec(self, chat: ChatPrompt, prompt: Prompt) -> OutputSpec:
        """`prompt`: the rendered chat."""
        ...


def is_large(chat: ChatPrompt) -> bool:
    """Whether scanning all texts would block the event loop for too long."""
    contents = [message.get("content") for message in chat.messages]
    texts = [text for content in contents for text in ([content] if isinstance(content, str) else _texts(content))]
    return sum(map(len, texts)) > MAX_INLINE_CHARS


def _texts(parts: list[Json] | None) -> list[str]:
    return [part["text"] for part in parts or () if "text" in part]


def name_tools(tools: tuple[Json, ...]) -> dict[str, Json]:
    """Return the tools by the names of their functions."""
    return derive(tools, name_tools, lambda: {tool["function"]["name"]: tool for tool in tools})


def is_reasoning_disabled(request: CreateResponse, chat: ChatPrompt) -> bool:
    """Whether the request disables the model's reasoning."""
    return request.reasoning.effort == "none" or chat.template_kwargs.get("enable_thinking") is False


def find_constraint_kinds(capabilities: Capabilities) -> frozenset[ConstraintKind]:
    fields: dict[str, ConstraintKind] = {"text.format": "json", "grammar.lark": "lark", "structural_tag": "tag"}
    return frozenset([kind for field, kind in fields.items() if field in capabilities.supported_fields])
