"""Model adapters: convert a chat to a prompt, constrain the output, and select its parser.

An adapter serves one request. It may render the prompt several times, from histories that get shorter, and then
specifies how the output of the last one is read.

`ChatModelAdapter` is the one for engines that render chats and parse the output themselves. If the operator names an
output format, the engine leaves it in the text and it is parsed here. Tools are then described in the text for an
engine without tool support.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal, Protocol

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Constraint, Json, Prompt
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import DEFAULT_OPTIONS, ParserOptions
from antiphon.parsers.detection import ModelOutputFormat
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import TextFormat
from antiphon.protocol.types.shared_list import derive
from antiphon.render.control_token_escape import escape_control_tokens
from antiphon.render.template.tool_prompt import CALL_FORMAT, render_tools_as_text
from antiphon.service.model_io.sampling import make_constraint

MAX_INLINE_CHARS: Final = 64 * 1024  # scanned in a few milliseconds; more is scanned in a thread

ConstraintKind = Literal["json", "lark", "tag"]  # constraints that an engine can enforce
Now = Callable[[], datetime]
# calls: tool_choice and strict tools; form: the format of the answer
EnforcedParts = frozenset[Literal["calls", "form"]]


class OutputSpec(Struct, frozen=True, kw_only=True):
    """Constraint and parser options for the output of a prompt."""

    parser: str  # a name in parsers/registry.py
    parser_options: ParserOptions = DEFAULT_OPTIONS
    constraint: Constraint | None = None
    stop_token_ids: tuple[int, ...] = ()  # tokens that end the answer, besides those that the client named
    visible_tokens: tuple[str, ...] = ()  # control tokens that the engine must not strip: the parser reads them
    # enforced by the engine during generation; the other rules are checked afterwards
    enforced: EnforcedParts = frozenset()


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


_PLAIN_OUTPUT = OutputSpec(parser="chat")
_UNESCAPED_OUTPUT = OutputSpec(parser="unbroken chat")


class ChatModelAdapter:
    def __init__(
        self, request: CreateResponse, capabilities: Capabilities, output_format: ModelOutputFormat | None = None
    ) -> None:
        """`output_format`: as far as the operator has named it."""
        self._output_format = output_format or ModelOutputFormat(calls=None)
        self._describes_tools = self._output_format.calls is not None and "tools" not in capabilities.supported_fields
        self.honours = (
            capabilities.supported_fields | {"tools"} if self._describes_tools else capabilities.supported_fields
        )
        self._request = request
        self._gullible = capabilities.needs_control_escape

    def is_slow(self, chat: ChatPrompt) -> bool:
        return self._gullible and is_large(chat)

    def render(self, chat: ChatPrompt, now: Now) -> Prompt:
        escaped = escape_control_tokens(chat) if self._gullible else chat  # before markers of our own are added
        return render_tools_as_text(escaped) if self._describes_tools else escaped

    def make_output_spec(self, chat: ChatPrompt, prompt: Prompt) -> OutputSpec:
        changed = prompt is not chat  # texts in the chat may have been escaped
        if not chat.tools and self._output_format.reasoning is None and type(self._request.text.format) is TextFormat:
            return _UNESCAPED_OUTPUT if changed else _PLAIN_OUTPUT  # the usual case
        output_constraint = make_constraint(self._request)
        return OutputSpec(
            parser="unbroken chat" if changed else "chat",
            parser_options=self._make_parser_options(chat),
            constraint=output_constraint,
            enforced=frozenset() if output_constraint is None else frozenset({"form"}),
        )

    def _make_parser_options(self, chat: ChatPrompt) -> ParserOptions:
        tools = name_tools(chat.tools)
        calls = CALL_FORMAT if self._describes_tools else self._output_format.calls
        reasoning_disabled = is_reasoning_disabled(self._request, chat)
        return ParserOptions(
            reasoning=self._output_format.reasoning,
            calls=calls if tools else None,
            tools=tools if calls else {},
            prompt_hidden=not reasoning_disabled,
        )
