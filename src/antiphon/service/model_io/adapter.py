"""Model adapters: convert a chat to a prompt, constrain the output, and select its parser; and the sampling parameters.

An adapter serves one request. It may render the prompt several times, from histories that get shorter, and then
specifies how the output of the last one is read.

`ChatModelAdapter` is the one for engines that render chats and parse the output themselves. If the operator names an
output format, the engine leaves it in the text and it is parsed here. Tools are then described in the text for an
engine without tool support.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

from msgspec import UNSET, Struct

from antiphon.core.prompt import ChatPrompt, Constraint, Json, JsonObject, JsonSchema, Prompt, Sampling, StructuralTag
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import DEFAULT_OPTIONS, Parser, ParserOptions
from antiphon.parsers.chat import ChatParser
from antiphon.parsers.detection import ModelOutputFormat
from antiphon.parsers.unescape import UnescapingChatParser
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat, StructuralTagFormat, TextFormat
from antiphon.protocol.types.shared_list import derive
from antiphon.render.control_token_escape import escape_control_tokens
from antiphon.render.harmony.system import ConstraintKind, EnforcedParts
from antiphon.render.template.tool_prompt import CALL_FORMAT, render_tools_as_text

MAX_INLINE_CHARS: Final = 64 * 1024  # scanned in a few milliseconds; more is scanned in a thread

# Request fields that affect the sampling, besides max_output_tokens.
_SAMPLING_FIELDS = frozenset({
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "stop",
    "include_stop_str_in_output", "seed", "ignore_eos", "skip_special_tokens", "n", "best_of", "length_penalty",
    "logprobs", "top_logprobs", "include", "num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size",
})  # fmt: skip
LOGPROBS_INCLUDE = "message.output_text.logprobs"

Now = Callable[[], datetime]


class OutputSpec(Struct, frozen=True, kw_only=True):
    """Constraint and parser options for the output of a prompt."""

    parser: type[Parser]
    parser_options: ParserOptions = DEFAULT_OPTIONS
    constraint: Constraint | None = None
    stop_token_ids: tuple[int, ...] = ()  # tokens that end the answer, besides those that the client named
    visible_tokens: tuple[str, ...] = ()  # control tokens that the engine must not strip: the parser reads them
    # enforced by the engine during generation; the other rules are checked afterwards
    enforced: EnforcedParts = frozenset()


class ModelAdapter(Protocol):
    honours: frozenset[str]  # request fields that are supported, by the engine or by the adapter
    renders_old_reasoning: bool  # whether reasoning before the last user message can be part of the prompt

    def is_slow(self, chat: ChatPrompt) -> bool:
        """Return whether rendering the chat belongs in a thread."""
        ...

    def render(self, chat: ChatPrompt, now: Now) -> Prompt: ...

    def make_output_spec(self, chat: ChatPrompt, prompt: Prompt) -> OutputSpec:
        """`prompt`: the rendered chat."""
        ...


def is_large(chat: ChatPrompt) -> bool:
    """Return whether scanning all texts would block the event loop for too long."""
    contents = [message.get("content") or "" for message in chat.messages]
    parts = [part.get("text", "") for content in contents if not isinstance(content, str) for part in content]
    return sum([len(text) for text in (*contents, *parts) if isinstance(text, str)]) > MAX_INLINE_CHARS


def name_tools(tools: tuple[Json, ...]) -> dict[str, Json]:
    return derive(tools, name_tools, lambda: {tool["function"]["name"]: tool for tool in tools})


def is_reasoning_disabled(request: CreateResponse, chat: ChatPrompt) -> bool:
    return request.reasoning.effort == "none" or chat.template_kwargs.get("enable_thinking") is False


def find_constraint_kinds(capabilities: Capabilities) -> frozenset[ConstraintKind]:
    fields: dict[str, ConstraintKind] = {"text.format": "json", "grammar.lark": "lark", "structural_tag": "tag"}
    return frozenset([kind for field, kind in fields.items() if field in capabilities.supported_fields])


_PLAIN_OUTPUT = OutputSpec(parser=ChatParser)
_UNESCAPED_OUTPUT = OutputSpec(parser=UnescapingChatParser)


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
        self.renders_old_reasoning = (
            "reasoning.effort" in self.honours and "reasoning items" not in capabilities.unsupported_reasons
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
            parser=UnescapingChatParser if changed else ChatParser,
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


def make_sampling(
    request: CreateResponse, sent: frozenset[str], max_tokens: int | None, supported_fields: frozenset[str]
) -> Sampling:
    """`sent`: names of the fields that the client sent. Several choices need log probabilities to be ordered, unless
    the engine orders them in a beam search or has none.
    """
    if _SAMPLING_FIELDS.isdisjoint(sent):
        return Sampling(max_tokens=max_tokens)
    greedy = request.top_p == 0
    is_ranked = (request.n or 1) > 1 >= (request.best_of or 1) and "logprobs" in supported_fields
    return Sampling(
        max_tokens=max_tokens,
        temperature=0.0 if greedy else request.temperature,
        top_p=None if greedy else request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        stop=list_stops(request),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        seed=request.seed,
        ignore_eos=bool(request.ignore_eos),
        skip_special_tokens=request.skip_special_tokens is not False,
        best_of=request.best_of,
        length_penalty=request.length_penalty,
        logprobs=(request.top_logprobs or 0) if find_logprobs_field(request) or is_ranked else None,
        num_assistant_tokens=request.num_assistant_tokens,
        assistant_confidence_threshold=request.assistant_confidence_threshold,
        max_ngram_size=request.max_ngram_size,
    )


def find_logprobs_field(request: CreateResponse) -> str | None:
    """Return the name of the field that requests log probabilities; None if they are not requested."""
    if request.top_logprobs:
        return "top_logprobs"
    return "include" if request.logprobs or LOGPROBS_INCLUDE in request.include else None


def make_constraint(request: CreateResponse) -> Constraint | None:
    text_format = request.text.format
    match text_format:
        case TextFormat():
            return None
        case JsonObjectFormat():
            return JsonObject()
        case JsonSchemaFormat(schema=schema, name=name, strict=strict, description=description):
            return JsonSchema(schema=schema, name=name, strict=strict is not False, description=description or "")
        case StructuralTagFormat():
            values = {name: getattr(text_format, name) for name in text_format.__struct_fields__}
            return StructuralTag({name: value for name, value in values.items() if value is not UNSET})


def list_stops(request: CreateResponse) -> tuple[str, ...]:
    if (stop := request.stop) is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
