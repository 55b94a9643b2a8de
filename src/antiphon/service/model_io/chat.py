"""Adapter for engines that render chats and parse the output themselves.

If the operator names an output format, the engine leaves it in the text and it is parsed here. Tools are then described
in the text for an engine without tool support.
"""

from antiphon.core.prompt import ChatPrompt, Prompt
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.detection import ModelOutputFormat
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import TextFormat
from antiphon.render.control_token_escape import escape_control_tokens
from antiphon.render.template.tool_prompt import CALL_FORMAT, render_tools_as_text
from antiphon.service.model_io.base import Now, OutputSpec, is_large, is_reasoning_disabled, name_tools
from antiphon.service.model_io.sampling import make_constraint

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
