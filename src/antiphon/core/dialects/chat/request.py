"""A chat completion's request → the same request as a CreateResponse: messages become items, in their order.

From here on it goes the way of every request, so history, prompts, tools, images and refusals are the same. What has
no counterpart is refused by name; what changes nothing is named as ignored.
"""

from typing import Any, Final, assert_never

from msgspec import Struct

from antiphon.core.dialects.chat.items import Items, chat_items
from antiphon.core.dialects.chat.response_format import Asked, asked_format
from antiphon.core.dialects.chat_extensions import REFUSED, Wishes, refuse, wishes
from antiphon.core.dialects.param_names import ChatNames
from antiphon.errors import AntiphonError, InvalidValue, MutuallyExclusive, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.chat_codec import DecodedGeneration, decode_chat
from antiphon.protocol.decoding.checks import check_request
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.chat.request import (
    ChooseAllowed,
    ChooseCustom,
    ChooseFunction,
    CreateChat,
    CustomDeclaration,
    DeclaredFunction,
    FunctionDeclaration,
    GrammarFormat,
    Named,
)
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ReasoningConfig, TextConfig
from antiphon.protocol.types.tool_choice import AllowedTools, CustomChoice, FunctionChoice, ToolChoice
from antiphon.protocol.types.tools import CustomTool, FunctionTool, GrammarInput, Json, Tool

# What both call by the same name, and mean the same by. Neither `n`, which is so many calls of the model, nor how a
# stream is told.
_ALIKE: Final = tuple(
    {*CreateChat.__struct_fields__} & {*CreateResponse.__struct_fields__}
    - {"n", "stream_options", "store", "tools", "tool_choice", "priority", "cache_salt", "request_id"}
)  # fmt: skip
_WITHOUT_EFFECT: Final = ("store", "metadata", "prediction")
_REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    **REFUSED,
    "audio": ((), "Answers are text."),
    "web_search_options": (
        (),
        "This server does not search the web for a chat.",
    ),
    "echo": ((False,), "The answer stands alone."),
    "add_generation_prompt": ((True,), "An answer always begins a new message."),
    "continue_final_message": ((False,), "An answer always begins a new message."),
    "chat_template": ((), "The template is the operator's to choose."),
    "documents": (([],), "Put them into `messages`."),
}


class AskedChat(Struct, frozen=True, kw_only=True):
    request: CreateChat
    decoded: Decoded  # the same as a CreateResponse
    wishes: Wishes  # and what such a one cannot say
    names: ChatNames


def read_chat(body: bytes, limits: Limits) -> AskedChat:
    return from_chat(decode_chat(body, limits), limits)


def from_chat(asked: DecodedGeneration[CreateChat], limits: Limits) -> AskedChat:
    request, sent = asked.request, asked.sent
    _refuse(request, sent)
    items, form = chat_items(request.messages), asked_format(request, limits)
    names = _names(request, items, form)
    given = _given(request, sent, items, form)
    translated = CreateResponse(**given)
    try:
        check_request(translated, given, limits)
    except AntiphonError as error:
        raise names.told(error) from None
    ignored = [*asked.ignored, *items.ignored, *[name for name in _WITHOUT_EFFECT if getattr(request, name)]]
    if request.stream_options is not None and not request.stream:
        ignored.append("stream_options")
    return AskedChat(
        request=request,
        decoded=Decoded(translated, frozenset(given), ignored),
        wishes=wishes(request, form.grammar, form.param, limits),
        names=names,
    )


def _refuse(request: CreateChat, sent: frozenset[str]) -> None:
    refuse(request, sent, _REFUSED)
    if request.modalities not in (None, [], ["text"]):
        raise UnsupportedParameter("Answers are text: `modalities` can only be ['text'].", param="modalities")
    if request.top_logprobs and not request.logprobs:
        raise InvalidValue("Invalid value for 'top_logprobs': it needs 'logprobs': true.", param="top_logprobs")
    if request.best_of is not None and request.best_of > 1 and (request.n or 1) > 1:
        raise UnsupportedParameter("`best_of` gives one answer: send `n` without it.", param="best_of")
    for one, other in (("functions", "tools"), ("function_call", "tool_choice")):
        if {one, other} <= sent:
            raise _excluded(one, other)
    if request.max_tokens and request.max_completion_tokens and request.max_tokens != request.max_completion_tokens:
        raise _excluded("max_tokens", "max_completion_tokens")


def _given(request: CreateChat, sent: frozenset[str], items: Items, form: Asked) -> Json:
    """The fields of a CreateResponse that were sent."""
    given: Json = {name: getattr(request, name) for name in _ALIKE if name in sent}
    given["input"] = items.items
    if request.functions is not None:
        given |= {"tools": [_function(each) for each in request.functions], "parallel_tool_calls": False}
    elif request.tools:
        given["tools"] = [_tool(each) for each in request.tools]
    if not {"tool_choice", "function_call"}.isdisjoint(sent):
        given["tool_choice"] = _choice(request)
    if (most := request.max_completion_tokens or request.max_tokens) is not None:
        given["max_output_tokens"] = most
    if form.format is not None or request.verbosity is not None:
        given["text"] = text = TextConfig(verbosity=request.verbosity or "medium")
        text.format = form.format or text.format
    if request.reasoning_effort is not None:
        given["reasoning"] = ReasoningConfig(effort=request.reasoning_effort)
    return given


def _tool(declared: FunctionDeclaration | CustomDeclaration) -> Tool:
    if isinstance(declared, FunctionDeclaration):
        return _function(declared.function)
    custom = declared.custom
    form = custom.format
    if isinstance(form, GrammarFormat):
        grammar = GrammarInput(syntax=form.grammar.syntax, definition=form.grammar.definition)
        return CustomTool(name=custom.name, description=custom.description, format=grammar)
    return CustomTool(name=custom.name, description=custom.description, format=form)


def _function(declared: DeclaredFunction) -> FunctionTool:
    return FunctionTool(
        name=declared.name, description=declared.description, parameters=declared.parameters, strict=declared.strict
    )


def _choice(request: CreateChat) -> ToolChoice:
    wanted = request.tool_choice if request.function_call is None else request.function_call
    match wanted:
        case str():
            return wanted
        case Named(name=name) | ChooseFunction(function=Named(name=name)):
            return FunctionChoice(name=name)
        case ChooseCustom(custom=Named(name=name)):
            return CustomChoice(name=name)
        case ChooseAllowed(allowed_tools=allowed):
            return AllowedTools(mode=allowed.mode, tools=[_flat(each) for each in allowed.tools])
        case _:
            assert_never(wanted)


def _flat(entry: Json) -> Json:
    """`{type, function: {name}}` is `{type, name}`."""
    kind = entry.get("type", "function")
    held = entry.get(kind) if isinstance(kind, str) else None
    return {"type": kind, "name": held.get("name") if isinstance(held, dict) else entry.get("name")}


def _names(request: CreateChat, items: Items, form: Asked) -> ChatNames:
    fields = {"text.format.schema": form.schema, "text.format": form.param}
    if request.max_completion_tokens is None and request.max_tokens is not None:
        fields["max_output_tokens"] = "max_tokens"
    if request.functions is not None:
        fields |= {"tools": "functions", "tool_choice": "function_call"}
        return ChatNames(items.places, fields, [f"functions[{index}]" for index in range(len(request.functions))])
    kinds = ["function" if isinstance(each, FunctionDeclaration) else "custom" for each in request.tools]
    return ChatNames(items.places, fields, [f"tools[{index}].{kind}" for index, kind in enumerate(kinds)])


def _excluded(param: str, other: str) -> MutuallyExclusive:
    return MutuallyExclusive(
        f"Mutually exclusive parameters. Ensure you are only providing one of: '{other}' or '{param}'.", param=param
    )
