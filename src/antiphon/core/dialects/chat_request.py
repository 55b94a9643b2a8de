"""A chat completion request → the same request as a CreateResponse: messages become items in the same order.

From there on it is handled like every request, so history, prompts, tools, images and errors are the same. Fields
without a counterpart are rejected by name; fields without effect are reported as ignored.
"""

from typing import Any, Final, assert_never

from msgspec import Struct, UnsetType
from msgspec.structs import asdict

from antiphon.core.dialects import completion_fields
from antiphon.core.dialects.chat_items import ChatItems, to_items
from antiphon.core.dialects.translation import ChatParamNames, build_request
from antiphon.errors import UnsupportedParameter, invalid_value, mutually_exclusive
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.decoding.dialect_codecs import decode_chat
from antiphon.protocol.decoding.part_cache import TenantParts
from antiphon.protocol.types.chat import request as wire
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ReasoningConfig, TextConfig
from antiphon.protocol.types.tool_choice import AllowedTools, CustomChoice, FunctionChoice, ToolChoice
from antiphon.protocol.types.tools import CustomTool, FunctionTool, GrammarInput, Json, TextInput, Tool

# Fields with the same name and meaning in both APIs. Not `n`, which is the number of model calls, nor the stream
# options.
_SHARED_FIELDS: Final = tuple(
    {*wire.CreateChat.__struct_fields__} & {*CreateResponse.__struct_fields__}
    - {"n", "stream_options", "store", "tools", "tool_choice", "priority", "cache_salt", "request_id"}
)  # fmt: skip
_IGNORED_FIELDS: Final = ("store", "metadata", "prediction")
_UNSUPPORTED_FIELDS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    **completion_fields.UNSUPPORTED_FIELDS,
    "audio": ((), "Only text output is supported."),
    "web_search_options": ((), "Web search is not available in chat completions."),
    "echo": ((False,), "The answer cannot repeat the prompt."),
    "add_generation_prompt": ((True,), "An answer always begins a new message."),
    "continue_final_message": ((False,), "An answer always begins a new message."),
    "chat_template": ((), "The template is set by the operator."),
    "documents": (([],), "Put them into `messages`."),
}


class ChatRequest(Struct, frozen=True, kw_only=True):
    request: wire.CreateChat
    decoded: DecodedRequest  # the request as a CreateResponse
    output_format: completion_fields.RequestedFormat
    names: ChatParamNames


def read_chat(body: bytes, limits: Limits, cache: TenantParts | None = None) -> ChatRequest:
    decoded = decode_chat(body, limits, cache)
    request, sent = decoded.request, decoded.sent
    _check_supported(request, sent)
    items, output_format = to_items(request.messages), completion_fields.read_format(request, limits)
    names = _param_names(request, items, output_format)
    fields = _response_fields(request, sent, items, output_format)
    ignored = [*decoded.ignored, *items.ignored, *[name for name in _IGNORED_FIELDS if getattr(request, name)]]
    if request.stream_options is not None and not request.stream:
        ignored.append("stream_options")
    declared = request.tools if request.functions is None else request.functions
    translated = build_request(fields, ignored, names, limits, declared, _to_tool)
    completion_fields.check_fields(request, limits)
    return ChatRequest(request=request, decoded=translated, output_format=output_format, names=names)


def _check_supported(request: wire.CreateChat, sent: frozenset[str]) -> None:
    completion_fields.reject_unsupported(request, sent, _UNSUPPORTED_FIELDS)
    if request.modalities not in (None, [], ["text"]):
        raise UnsupportedParameter("Only text output is supported: `modalities` must be ['text'].", param="modalities")
    if request.top_logprobs and not request.logprobs:
        raise invalid_value("top_logprobs", "it needs 'logprobs': true")
    if request.best_of is not None and request.best_of > 1 and (request.n or 1) > 1:
        raise UnsupportedParameter("`best_of` gives one answer: send `n` without it.", param="best_of")
    for one, other in (("functions", "tools"), ("function_call", "tool_choice")):
        if {one, other} <= sent:
            raise mutually_exclusive(one, other)
    if request.max_tokens and request.max_completion_tokens and request.max_tokens != request.max_completion_tokens:
        raise mutually_exclusive("max_tokens", "max_completion_tokens")


def _response_fields(
    request: wire.CreateChat, sent: frozenset[str], items: ChatItems, output_format: completion_fields.RequestedFormat
) -> Json:
    fields: Json = {name: getattr(request, name) for name in _SHARED_FIELDS if name in sent}
    fields["input"] = items.items
    if request.functions is not None:
        fields["parallel_tool_calls"] = False
    if not {"tool_choice", "function_call"}.isdisjoint(sent):
        fields["tool_choice"] = _to_tool_choice(request)
    if (max_tokens := request.max_completion_tokens or request.max_tokens) is not None:
        fields["max_output_tokens"] = max_tokens
    if output_format.format is not None or request.verbosity is not None:
        fields["text"] = text = TextConfig(verbosity=request.verbosity or "medium")
        text.format = output_format.format or text.format
    if request.reasoning_effort is not None:
        fields["reasoning"] = ReasoningConfig(effort=request.reasoning_effort)
    return fields


def _to_tool(declared: wire.FunctionDeclaration | wire.CustomDeclaration | wire.DeclaredFunction, path: str) -> Tool:
    if isinstance(declared, wire.CustomDeclaration):
        custom = declared.custom
        input_format: TextInput | GrammarInput | UnsetType
        if isinstance(custom.format, wire.GrammarFormat):
            grammar = custom.format.grammar
            input_format = GrammarInput(syntax=grammar.syntax, definition=grammar.definition)
        else:
            input_format = custom.format
        return CustomTool(name=custom.name, description=custom.description, format=input_format)
    return FunctionTool(**asdict(declared.function if isinstance(declared, wire.FunctionDeclaration) else declared))


def _to_tool_choice(request: wire.CreateChat) -> ToolChoice:
    choice = request.tool_choice if request.function_call is None else request.function_call
    match choice:
        case str():
            return choice
        case wire.Named(name=name):
            return FunctionChoice(name=name)
        case wire.ChooseFunction() | wire.ChooseCustom():
            return _to_named_choice(choice)
        case wire.ChooseAllowed(allowed_tools=allowed):
            return AllowedTools(mode=allowed.mode, tools=[*map(_to_named_choice, allowed.tools)])
        case _:
            assert_never(choice)


def _to_named_choice(choice: wire.ChooseFunction | wire.ChooseCustom) -> FunctionChoice | CustomChoice:
    if isinstance(choice, wire.ChooseFunction):
        return FunctionChoice(name=choice.function.name)
    return CustomChoice(name=choice.custom.name)


def _param_names(
    request: wire.CreateChat, items: ChatItems, output_format: completion_fields.RequestedFormat
) -> ChatParamNames:
    fields = {"text.format.schema": output_format.schema_param, "text.format": output_format.param}
    if request.max_completion_tokens is None and request.max_tokens is not None:
        fields["max_output_tokens"] = "max_tokens"
    if request.functions is not None:
        fields |= {"tools": "functions", "tool_choice": "function_call"}
        return ChatParamNames(
            items.positions, fields, [f"functions[{index}]" for index in range(len(request.functions))]
        )
    kinds = ["function" if isinstance(each, wire.FunctionDeclaration) else "custom" for each in request.tools]
    return ChatParamNames(items.positions, fields, [f"tools[{index}].{kind}" for index, kind in enumerate(kinds)])
