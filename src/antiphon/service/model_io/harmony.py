"""Adapter for gpt-oss: prompts and answers are Harmony tokens on every engine.

A client that requests special tokens gets the raw text as the engine detokenizes it.
"""

from typing import ClassVar, Final

from msgspec.structs import replace

from antiphon.core.harmony import STOP_TOKENS
from antiphon.core.prompt import ChatPrompt, Constraint, Json, Prompt
from antiphon.engines.base import Capabilities
from antiphon.errors import StartupError, UnsupportedParameter
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.harmony import HarmonyParser
from antiphon.parsers.raw import RawParser
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import StructuralTagFormat
from antiphon.render.harmony.renderer import render_harmony
from antiphon.render.harmony.system import (
    HarmonyConstraint,
    build_harmony_settings,
    derive_constraint,
    find_builtins,
    find_other_namespaces,
    remove_builtins,
)
from antiphon.service.model_io.adapter import Now, OutputSpec, find_constraint_kinds, list_stops, make_constraint

# Fields that the prompt or the parser implements, whatever the engine supports.
ADAPTER_FIELDS: Final = frozenset({
    "tools", "tool_choice", "parallel_tool_calls", "phase", "developer", "reasoning.effort", "stop",
    "include_stop_str_in_output", "text.format.description",
})  # fmt: skip
MAX_INLINE_CHARS: Final = 8192  # tokenized in a few milliseconds; more is tokenized in a thread
UNSUPPORTED_FIELDS: Final = {
    "input_image": "gpt-oss does not support images.",
    "chat_template_kwargs": "gpt-oss prompts have no template variables: send `reasoning.effort`.",
}


class HarmonyModelAdapter:
    renders_old_reasoning = False
    vocabulary_loaded: ClassVar[bool] = False  # set by the first rendering in this process

    def __init__(self, request: CreateResponse, capabilities: Capabilities) -> None:
        self.honours = capabilities.supported_fields | ADAPTER_FIELDS
        self._request = request
        self._constraint_kinds = find_constraint_kinds(capabilities)

    def render(self, chat: ChatPrompt, now: Now) -> Prompt:
        plain_chat = remove_builtins(chat)
        scene = build_harmony_settings(self._request, now().date(), self._constrain(chat), find_builtins(chat))
        try:
            prompt = render_harmony(plain_chat, scene)
        except StartupError as error:  # not found at startup: the model was detected by its name
            raise UnsupportedParameter(str(error), param="model") from None
        HarmonyModelAdapter.vocabulary_loaded = True
        return prompt

    def is_slow(self, chat: ChatPrompt) -> bool:
        return (
            not self.vocabulary_loaded
            or sum([len(str(message.get("content"))) for message in chat.messages]) > MAX_INLINE_CHARS
        )

    def make_output_spec(self, chat: ChatPrompt, prompt: Prompt) -> OutputSpec:
        constrained = self._constrain(chat)
        output_constraint = self._make_constraint(constrained)
        if self._request.skip_special_tokens is False:
            return OutputSpec(parser=RawParser, constraint=output_constraint, stop_token_ids=STOP_TOKENS)
        parser_options = self._make_parser_options(chat)
        return OutputSpec(
            parser=HarmonyParser,
            parser_options=parser_options,
            constraint=output_constraint,
            stop_token_ids=STOP_TOKENS,
            enforced=constrained.enforced,
        )

    def _make_parser_options(self, chat: ChatPrompt) -> ParserOptions:
        namespaces: dict[str, Json] = {name: {} for name in (*find_builtins(chat), *find_other_namespaces(chat))}
        tools = {tool["function"]["name"]: tool for tool in remove_builtins(chat).tools}
        keeps_stop = bool(self._request.include_stop_str_in_output)
        return ParserOptions(tools={**namespaces, **tools}, stop=list_stops(self._request), include_stop=keeps_stop)

    def _constrain(self, chat: ChatPrompt) -> HarmonyConstraint:
        return derive_constraint(
            self._request, remove_builtins(chat), self._constraint_kinds, bool(find_builtins(chat))
        )

    def _make_constraint(self, constrained: HarmonyConstraint) -> Constraint | None:
        """Return the constraint; a client's structural tag covers the complete output, headers included."""
        if not isinstance(self._request.text.format, StructuralTagFormat):
            return constrained.constraint
        if constrained.opening or constrained.constraint is not None:
            raise UnsupportedParameter(
                "'text.format' with a structural tag is not supported together with a tool that must be called.",
                param="text.format",
            )
        return make_constraint(self._request)


def extend_harmony_capabilities(capabilities: Capabilities) -> Capabilities:
    """Return the capabilities of gpt-oss on this engine."""
    honours = (capabilities.supported_fields | ADAPTER_FIELDS) - UNSUPPORTED_FIELDS.keys()
    reasons = capabilities.unsupported_reasons
    return replace(
        capabilities,
        supported_fields=honours,
        unsupported_reasons={name: why for name, why in reasons.items() if name not in ADAPTER_FIELDS}
        | UNSUPPORTED_FIELDS,
    )
