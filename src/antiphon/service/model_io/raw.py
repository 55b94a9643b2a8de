"""Adapter for models whose raw output is parsed here: reasoning and calls between the markers of their family."""

from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt, ChatTemplate, Prompt, TextPrompt
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.calls.registry import find_format
from antiphon.parsers.detection import ModelOutputFormat
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning import REASONING_FORMATS, close_reasoning, opens_reasoning
from antiphon.parsers.unescape import UnescapingRawParser
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.control_token_escape import escape_control_tokens, escape_reasoning_markers
from antiphon.render.template.template import build_effort_variables, find_effort_variables, render_text, supports_tools
from antiphon.render.template.tool_prompt import CALL_FORMAT, render_tools_as_text
from antiphon.service.model_io import adapter
from antiphon.service.model_io.constraints import OutputConstraints, describe_format


class RawModelAdapter:
    def __init__(self, request: CreateResponse, capabilities: Capabilities, output_format: ModelOutputFormat) -> None:
        self.honours = (
            capabilities.supported_fields - {"tools"}
            if output_format.calls is None
            else capabilities.supported_fields | {"tools"}
        )
        self.renders_old_reasoning = "reasoning.effort" in self.honours and (
            capabilities.template is None or "reasoning_content" in capabilities.template.source
        )
        self._request = request
        self._opens_reasoning = False  # the prompt ends within reasoning
        self._template = capabilities.template
        self._gullible = capabilities.needs_control_escape
        self._changed = False  # texts in the prompt may have been escaped
        knows = (
            capabilities.template_has_tools if capabilities.template is None else supports_tools(capabilities.template)
        )
        self._knows_tools = knows and not output_format.calls_unsupported
        self._output_format = (
            output_format
            if self._knows_tools or output_format.calls is None
            else replace(output_format, calls=CALL_FORMAT)
        )
        self._constraints = OutputConstraints(request, self._output_format, adapter.find_constraint_kinds(capabilities))

    def is_slow(self, chat: ChatPrompt) -> bool:
        return adapter.is_large(chat)

    def render(self, chat: ChatPrompt, now: adapter.Now) -> Prompt:
        """Render the prompt.

        Tools are described in the text for a template without tool support. Control tokens in user texts are escaped
        for an engine that renders itself.
        """
        if (text_format := self._constraints.find_unenforced_format(chat)) is not None:
            chat = describe_format(chat, text_format)
        original = chat
        if self._gullible:
            chat = escape_control_tokens(chat)
        elif self._output_format.reasoning:
            markers = REASONING_FORMATS[self._output_format.reasoning]
            chat = escape_reasoning_markers(chat, markers.opening, markers.closing)
        if not self._knows_tools:
            chat = render_tools_as_text(chat)
        self._changed = chat is not original
        if self._template is None:
            return chat
        prompt = self._check_reasoning(render_text(self._template, self._add_effort(chat, self._template), now()))
        self._changed = self._changed or bool(prompt.images)  # the engine escapes the text beside images
        return prompt

    def make_output_spec(self, chat: ChatPrompt, prompt: Prompt) -> adapter.OutputSpec:
        parser = UnescapingRawParser if self._changed else RawParser
        if self._request.skip_special_tokens is False:  # the client gets the raw text
            return adapter.OutputSpec(parser=parser, constraint=adapter.make_constraint(self._request))
        spec = self._constraints.build(chat, self._make_parser_options(chat), self._opens_reasoning)
        return replace(spec, parser=parser, visible_tokens=_list_visible_tokens(spec.parser_options))

    def _check_reasoning(self, prompt: TextPrompt) -> TextPrompt:
        """Detect reasoning that the prompt opens, and close it if the request disables reasoning."""
        markers = REASONING_FORMATS[self._output_format.reasoning] if self._output_format.reasoning else None
        self._opens_reasoning = markers is not None and opens_reasoning(prompt, markers)
        if self._opens_reasoning and markers is not None and self._request.reasoning.effort == "none":
            self._opens_reasoning = False
            return close_reasoning(prompt, markers)
        return prompt

    def _add_effort(self, chat: ChatPrompt, template: ChatTemplate) -> ChatPrompt:
        variables = build_effort_variables(self._request.reasoning.effort, template.source)
        return replace(chat, template_kwargs={**variables, **chat.template_kwargs}) if variables else chat

    def _make_parser_options(self, chat: ChatPrompt) -> ParserOptions:
        tools = adapter.name_tools(chat.tools)
        return ParserOptions(
            reasoning=self._output_format.reasoning,
            calls=self._output_format.calls if tools else None,
            tools=tools,
            prompt_hidden=self._template is None and not adapter.is_reasoning_disabled(self._request, chat),
        )


def add_effort_support(capabilities: Capabilities) -> Capabilities:
    """Add `reasoning.effort`, and whether the model's template has a variable for it."""
    takes_effort = capabilities.template is not None and bool(find_effort_variables(capabilities.template.source))
    supported = capabilities.supported_fields | {"reasoning.effort"}
    return replace(capabilities, supported_fields=supported, takes_effort=takes_effort)


def _list_visible_tokens(parser_options: ParserOptions) -> tuple[str, ...]:
    controls = REASONING_FORMATS[parser_options.reasoning].control_tokens if parser_options.reasoning else ()
    frame = find_format(parser_options.calls) if parser_options.calls else None
    return controls if frame is None else controls + frame.controls
