"""A request of Anthropic's API → the same request as a CreateResponse.

From there on it is handled like every request, so history, prompts, tools, images and errors are the same. Fields
without a counterpart are rejected by name; fields without effect are reported as ignored.
"""

from typing import Any, Final, TypeVar, assert_never

from msgspec import UNSET, Struct

from antiphon.core.dialects.anthropic_items import AnthropicItems
from antiphon.core.dialects.translation import AnthropicParamNames, build_request
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter, invalid_value, missing_parameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import Decoded, DecodedRequest
from antiphon.protocol.decoding.dialect_codecs import decode_anthropic_count, decode_anthropic_message
from antiphon.protocol.decoding.part_cache import TenantParts
from antiphon.protocol.types.anthropic import request as wire
from antiphon.protocol.types.response import Effort, JsonSchemaFormat, ReasoningConfig, TextConfig
from antiphon.protocol.types.tool_choice import FunctionChoice, ToolChoice
from antiphon.protocol.types.tools import FunctionTool

T = TypeVar("T", bound=wire.CountTokens)

# Upper limits of the thinking budget in tokens per effort; above the last one the effort is high.
EFFORT_BUDGETS: Final[tuple[tuple[int, Effort], ...]] = ((4096, "low"), (16384, "medium"))
_MODES: Final[dict[type, ToolChoice]] = {
    wire.AutoToolChoice: "auto",
    wire.AnyToolChoice: "required",
    wire.NoToolChoice: "none",
}
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


def _translate(decoded: Decoded[T], sampling: dict[str, Any], limits: Limits) -> AnthropicRequest:
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
    ignored = [*decoded.ignored, *ignored_system, *items.ignored, *ineffective]
    return AnthropicRequest(
        decoded=build_request(fields, ignored, names, limits, request.tools, _function_tool),
        names=names,
        stream=isinstance(request, wire.CreateMessage) and request.stream,
        stop_sequences=tuple(fields.get("stop", ())),
        shows_thinking=request.thinking is None or request.thinking.display != "omitted",
        effort=hint,
    )


def _check_supported(request: wire.CountTokens) -> None:
    if not request.messages:
        raise MissingParameter("At least one message is required.", param="messages")
    if request.container:
        raise UnsupportedParameter("'container' is not supported: this server has no containers.", param="container")
    if request.mcp_servers:
        raise UnsupportedParameter(
            "'mcp_servers' is not supported: this server does not call MCP servers for this API.", param="mcp_servers"
        )


def _system(blocks: list[wire.TextBlock]) -> tuple[dict[str, Any], list[str]]:
    """Return the instructions, and the paths of blocks that are left out."""
    billing = [f"system[{index}]" for index, block in enumerate(blocks) if block.text.startswith(BILLING_PREFIX)]
    text = "\n\n".join([block.text for block in blocks if not block.text.startswith(BILLING_PREFIX)])
    return ({"instructions": text} if text else {}), billing


def _choose_tool(request: wire.CountTokens) -> dict[str, Any]:
    if (choice := request.tool_choice) is None:
        return {}
    tool_choice = FunctionChoice(name=choice.name) if isinstance(choice, wire.NamedToolChoice) else _MODES[type(choice)]
    return {"tool_choice": tool_choice} | ({"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {})


def _function_tool(tool: wire.MessageTool, path: str) -> FunctionTool:
    if tool.type != "custom":
        raise UnsupportedParameter(
            f"Tools of the type {tool.type[:64]!r} are not supported: declare tools of the type 'custom' with an "
            "input_schema.",
            param=f"{path}.type",
        )
    if tool.input_schema is None:
        raise missing_parameter(f"{path}.input_schema")
    kinds = tool.input_schema.get("type", "object")  # a schema without a type is accepted
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise invalid_value(f"{path}.input_schema.type", "it must be 'object'")
    callers = tool.allowed_callers
    return FunctionTool(
        name=tool.name,
        description=tool.description or UNSET,
        parameters=tool.input_schema,
        strict=tool.strict,
        defer_loading=tool.defer_loading or UNSET,
        allowed_callers=UNSET if callers is None or "direct" in callers else ["programmatic"],
    )


def _effort(request: wire.CountTokens) -> tuple[Effort | None, Effort | None, list[str]]:
    """Return the required effort, the hinted effort, and the names of fields without effect."""
    requested = None if request.output_config is None else request.output_config.effort
    match request.thinking:
        case None | wire.ThinkingAdaptive():
            return None, requested, []
        case wire.ThinkingDisabled():
            return "none", None, [] if requested is None else ["output_config.effort"]
        case wire.ThinkingEnabled(budget_tokens=budget):
            return requested or next((effort for limit, effort in EFFORT_BUDGETS if budget <= limit), "high"), None, []
        case _:
            assert_never(request.thinking)


def _text_format(request: wire.CountTokens) -> dict[str, Any]:
    candidates = [request.output_format, None if request.output_config is None else request.output_config.format]
    if not (formats := [candidate for candidate in candidates if candidate is not None]):
        return {}
    if formats[0] != formats[-1]:
        raise InvalidValue(
            "'output_format' and 'output_config.format' specify different formats.", param="output_format"
        )
    return {"text": TextConfig(format=JsonSchemaFormat(name="answer", schema=formats[0].schema, strict=True))}


def _sampling(request: wire.CreateMessage) -> dict[str, Any]:
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


def _param_overrides(request: wire.CountTokens) -> dict[str, str]:
    """Return the client's field names for the format and the effort."""
    has_budget = isinstance(request.thinking, wire.ThinkingEnabled)
    return {
        "text.format": "output_format" if request.output_format is not None else "output_config.format",
        "reasoning.effort": "thinking" if has_budget else "output_config.effort",
    }
