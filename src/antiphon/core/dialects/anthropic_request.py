"""A request of Anthropic's API → the same request as a CreateResponse.

From there on it is handled like every request, so history, prompts, tools, images and errors are the same. Fields
without a counterpart are rejected by name; fields without effect are reported as ignored.
"""

from functools import partial
from typing import Any, Final, TypeVar, assert_never

from msgspec import UNSET, Struct

from antiphon.core.dialects.anthropic_items import AnthropicItems
from antiphon.core.dialects.param_names import AnthropicParamNames
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.anthropic_codec import (
    DecodedAnthropicRequest,
    decode_anthropic_count,
    decode_anthropic_message,
)
from antiphon.protocol.decoding.checks import ToolChecks, check_request
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.decoding.part_cache import TenantParts
from antiphon.protocol.types.anthropic.request import (
    AnyToolChoice,
    AutoToolChoice,
    CountTokens,
    CreateMessage,
    MessageTool,
    NamedToolChoice,
    NoToolChoice,
    TextBlock,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
)
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Effort, JsonSchemaFormat, ReasoningConfig, TextConfig
from antiphon.protocol.types.shared_list import SharedList, derive
from antiphon.protocol.types.tool_choice import FunctionChoice, ToolChoice
from antiphon.protocol.types.tools import FunctionTool, Tool

T = TypeVar("T", bound=CountTokens)

# Upper limits of the thinking budget in tokens per effort; above the last one the effort is high.
EFFORT_BUDGETS: Final[tuple[tuple[int, Effort], ...]] = ((4096, "low"), (16384, "medium"))
# Claude Code puts a line for billing in front of its system prompt that differs in every request. With it, the prompt
# would share no prefix with other prompts.
BILLING_PREFIX: Final = "x-anthropic-billing-header:"


class AnthropicRequest(Struct, frozen=True, kw_only=True):
    """A request of a client of this API, translated."""

    decoded: DecodedRequest
    names: AnthropicParamNames
    stream: bool = False
    stop_sequences: tuple[str, ...] = ()
    shows_thinking: bool = True
    effort: Effort | None = None  # a hint: ignored for models without an effort setting


def read_message(body: bytes, limits: Limits, cache: TenantParts | None = None) -> AnthropicRequest:
    decoded = decode_anthropic_message(body, limits, cache)
    request = decoded.request
    if request.messages and request.messages[-1].role == "assistant":
        last = f"messages[{len(request.messages) - 1}]"
        raise UnsupportedParameter(
            "Prefilled assistant messages are not supported: the last message must be a user's.", param=last
        )
    return _translate(decoded, _sampling(request), limits)


def read_count(body: bytes, limits: Limits, cache: TenantParts | None = None) -> AnthropicRequest:
    return _translate(decode_anthropic_count(body, limits, cache), {}, limits)


def _translate(decoded: DecodedAnthropicRequest[T], sampling: dict[str, Any], limits: Limits) -> AnthropicRequest:
    request = decoded.request
    _check_supported(request)
    items = AnthropicItems()
    for index, message in enumerate(request.messages):
        items.add_message(message, f"messages[{index}]")
    system, ignored_system = _system(request.system)
    fields = {
        "model": request.model,
        "input": items.items,
        **system,
        **_choose_tool(request),
        **_text_format(request),
        **sampling,
    }
    effort, hint, ineffective = _effort(request)
    if effort is not None:
        fields["reasoning"] = ReasoningConfig(effort=effort)
    names = AnthropicParamNames(items.positions, _param_overrides(request))
    try:
        translated = CreateResponse(**fields, tools=_translate_tools(request.tools, limits))
        check_request(translated, fields, limits)
    except AntiphonError as error:
        raise names.translate_error(error) from None
    if translated.tools:
        fields["tools"] = translated.tools
    ignored = [*decoded.ignored, *ignored_system, *items.ignored, *ineffective]
    return AnthropicRequest(
        decoded=DecodedRequest(translated, frozenset(fields), ignored),
        names=names,
        stream=isinstance(request, CreateMessage) and request.stream,
        stop_sequences=tuple(fields.get("stop", ())),
        shows_thinking=request.thinking is None or request.thinking.display != "omitted",
        effort=hint,
    )


def _check_supported(request: CountTokens) -> None:
    if not request.messages:
        raise MissingParameter("At least one message is required.", param="messages")
    if request.container:
        raise UnsupportedParameter("'container' is not supported: this server has no containers.", param="container")
    if request.mcp_servers:
        raise UnsupportedParameter(
            "'mcp_servers' is not supported: this server does not call MCP servers for this API.", param="mcp_servers"
        )


def _system(blocks: list[TextBlock]) -> tuple[dict[str, Any], list[str]]:
    """Return the instructions, and the paths of blocks that are left out."""
    billing = [f"system[{index}]" for index, block in enumerate(blocks) if block.text.startswith(BILLING_PREFIX)]
    text = "\n\n".join([block.text for block in blocks if not block.text.startswith(BILLING_PREFIX)])
    return ({"instructions": text} if text else {}), billing


def _translate_tools(declared: list[MessageTool], limits: Limits) -> list[Tool]:
    """Return the checked tools: once for all requests that share them."""
    return derive(declared, limits, partial(_to_function_tools, declared, limits))


def _to_function_tools(declared: list[MessageTool], limits: Limits) -> list[Tool]:
    tools: list[Tool] = [_function_tool(tool, f"tools[{index}]") for index, tool in enumerate(declared)]
    ToolChecks(limits).check(tools, "tools")
    return SharedList(tools)


def _choose_tool(request: CountTokens) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if (choice := request.tool_choice) is not None:
        fields["tool_choice"] = _tool_choice(choice)
        if choice.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
    return fields


def _function_tool(tool: MessageTool, path: str) -> FunctionTool:
    if tool.type != "custom":
        raise UnsupportedParameter(
            f"Tools of the type {tool.type[:64]!r} are not supported: declare tools of the type 'custom' with an "
            "input_schema.",
            param=f"{path}.type",
        )
    if tool.input_schema is None:
        raise MissingParameter(f"Missing required parameter: '{path}.input_schema'.", param=f"{path}.input_schema")
    _check_input_schema(tool.input_schema, f"{path}.input_schema.type")
    callers = tool.allowed_callers
    return FunctionTool(
        name=tool.name,
        description=tool.description or UNSET,
        parameters=tool.input_schema,
        strict=tool.strict,
        defer_loading=tool.defer_loading or UNSET,
        allowed_callers=UNSET if callers is None or "direct" in callers else ["programmatic"],
    )


def _check_input_schema(schema: dict[str, Any], param: str) -> None:
    """Check that the schema allows objects. A schema without a type is accepted."""
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise InvalidValue(f"Invalid value for '{param}': it must be 'object'.", param=param)


def _tool_choice(choice: AutoToolChoice | AnyToolChoice | NamedToolChoice | NoToolChoice) -> ToolChoice:
    match choice:
        case AutoToolChoice():
            return "auto"
        case AnyToolChoice():
            return "required"
        case NamedToolChoice(name=name):
            return FunctionChoice(name=name)
        case NoToolChoice():
            return "none"
        case _:
            assert_never(choice)


def _effort(request: CountTokens) -> tuple[Effort | None, Effort | None, list[str]]:
    """Return the required effort, the hinted effort, and the names of fields without effect."""
    requested = None if request.output_config is None else request.output_config.effort
    match request.thinking:
        case None | ThinkingAdaptive():
            return None, requested, []
        case ThinkingDisabled():
            return "none", None, [] if requested is None else ["output_config.effort"]
        case ThinkingEnabled(budget_tokens=budget):
            return requested or next((effort for limit, effort in EFFORT_BUDGETS if budget <= limit), "high"), None, []
        case _:
            assert_never(request.thinking)


def _text_format(request: CountTokens) -> dict[str, Any]:
    candidates = [request.output_format, None if request.output_config is None else request.output_config.format]
    formats = [candidate for candidate in candidates if candidate is not None]
    if not formats:
        return {}
    if formats[0] != formats[-1]:
        raise InvalidValue(
            "'output_format' and 'output_config.format' specify different formats.", param="output_format"
        )
    return {"text": TextConfig(format=JsonSchemaFormat(name="answer", schema=formats[0].schema, strict=True))}


def _sampling(request: CreateMessage) -> dict[str, Any]:
    user = None if request.metadata is None else request.metadata.user_id
    tier = None if request.service_tier is None else "auto" if request.service_tier == "auto" else "default"
    fields = {
        "max_output_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k or None,
        "stop": request.stop_sequences or None,
        "user": user,
        "service_tier": tier,
        "stream": request.stream or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _param_overrides(request: CountTokens) -> dict[str, str]:
    """Return the client's field names for the format and the effort."""
    has_budget = isinstance(request.thinking, ThinkingEnabled)
    return {
        "text.format": "output_format" if request.output_format is not None else "output_config.format",
        "reasoning.effort": "thinking" if has_budget else "output_config.effort",
    }
