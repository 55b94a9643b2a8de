"""A request of Anthropic's API → the same request as a CreateResponse.

From here on it goes the way of every request, so history, prompts, tools, images and refusals are the same. What has
no counterpart is refused by name; what changes nothing is named.
"""

from typing import Any, Final, TypeVar, assert_never

from msgspec import UNSET, Struct

from antiphon.core.dialects.anthropic.items import Items
from antiphon.core.dialects.param_names import MessageNames
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.anthropic_codec import DecodedMessages, decode_count, decode_message
from antiphon.protocol.decoding.checks import check_request
from antiphon.protocol.decoding.codec import Decoded
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
from antiphon.protocol.types.tools import FunctionChoice, FunctionTool, ToolChoice

T = TypeVar("T", bound=CountTokens)

# The effort that a budget of so many tokens for thinking amounts to; above the last, high.
BUDGETS: Final[tuple[tuple[int, Effort], ...]] = ((4096, "low"), (16384, "medium"))
# Claude Code writes a line about itself in front of its system prompt, another one each time. It is meant for billing,
# and a prompt that begins with it shares no prefix with any other.
BILLING: Final = "x-anthropic-billing-header:"


class Asked(Struct, frozen=True, kw_only=True):
    """What a client of this API asked for."""

    decoded: Decoded
    names: MessageNames
    stream: bool = False
    stops: tuple[str, ...] = ()
    shows_thoughts: bool = True
    effort: Effort | None = None  # a hint: for models that can be told, and dropped for others


def read_message(body: bytes, limits: Limits) -> Asked:
    decoded = decode_message(body, limits)
    request = decoded.request
    if request.messages and request.messages[-1].role == "assistant":
        last = f"messages[{len(request.messages) - 1}]"
        raise UnsupportedParameter(
            "This server does not go on with an assistant's message: the last one has to be a user's.", param=last
        )
    return _asked(decoded, _sampling(request), limits)


def read_count(body: bytes, limits: Limits) -> Asked:
    return _asked(decode_count(body, limits), {}, limits)


def _asked(decoded: DecodedMessages[T], sampling: dict[str, Any], limits: Limits) -> Asked:
    request = decoded.request
    _refuse(request)
    items = Items()
    for index, message in enumerate(request.messages):
        items.take(message, f"messages[{index}]")
    system, unsaid = _system(request.system)
    fields = {"model": request.model, "input": items.items, **system, **_tools(request), **_form(request), **sampling}
    effort, hint, idle = _effort(request)
    if effort is not None:
        fields["reasoning"] = ReasoningConfig(effort=effort)
    names = MessageNames(items.places, _named(request))
    asked = CreateResponse(**fields)
    try:
        check_request(asked, fields, limits)
    except AntiphonError as error:
        raise names.told(error) from None
    ignored = [*decoded.ignored, *unsaid, *items.ignored, *idle]
    return Asked(
        decoded=Decoded(asked, frozenset(fields), ignored),
        names=names,
        stream=isinstance(request, CreateMessage) and request.stream,
        stops=tuple(fields.get("stop", ())),
        shows_thoughts=request.thinking is None or request.thinking.display != "omitted",
        effort=hint,
    )


def _refuse(request: CountTokens) -> None:
    if not request.messages:
        raise MissingParameter("At least one message is needed.", param="messages")
    if request.container:
        raise UnsupportedParameter("'container' is not supported: this server has no containers.", param="container")
    if request.mcp_servers:
        raise UnsupportedParameter(
            "'mcp_servers' is not supported: this server does not call MCP servers for this API.", param="mcp_servers"
        )


def _system(blocks: list[TextBlock]) -> tuple[dict[str, Any], list[str]]:
    """And the names of what is not said."""
    billing = [f"system[{index}]" for index, block in enumerate(blocks) if block.text.startswith(BILLING)]
    said = "\n\n".join([block.text for block in blocks if not block.text.startswith(BILLING)])
    return ({"instructions": said} if said else {}), billing


def _tools(request: CountTokens) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.tools:
        fields["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools)]
    if (choice := request.tool_choice) is not None:
        fields["tool_choice"] = _choice(choice)
        if choice.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: MessageTool, at: str) -> FunctionTool:
    if tool.type != "custom":
        raise UnsupportedParameter(
            f"Tools of the type {tool.type[:64]!r} are Anthropic's own; here they are of the type 'custom', with an "
            "input_schema.",
            param=f"{at}.type",
        )
    if tool.input_schema is None:
        raise MissingParameter(f"Missing required parameter: '{at}.input_schema'.", param=f"{at}.input_schema")
    _check_input(tool.input_schema, f"{at}.input_schema.type")
    callers = tool.allowed_callers
    return FunctionTool(
        name=tool.name,
        description=tool.description or UNSET,
        parameters=tool.input_schema,
        strict=tool.strict,
        defer_loading=tool.defer_loading or UNSET,
        allowed_callers=UNSET if callers is None or "direct" in callers else ["programmatic"],
    )


def _check_input(schema: dict[str, Any], where: str) -> None:
    """What says nothing of its type may still be one."""
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise InvalidValue(f"Invalid value for '{where}': it has to be 'object', as every input is.", param=where)


def _choice(choice: AutoToolChoice | AnyToolChoice | NamedToolChoice | NoToolChoice) -> ToolChoice:
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
    """What is demanded, what is hinted at, and the names of what counts for nothing."""
    wanted = None if request.output_config is None else request.output_config.effort
    match request.thinking:
        case None | ThinkingAdaptive():
            return None, wanted, []
        case ThinkingDisabled():
            return "none", None, [] if wanted is None else ["output_config.effort"]
        case ThinkingEnabled(budget_tokens=budget):
            return wanted or next((effort for most, effort in BUDGETS if budget <= most), "high"), None, []
        case _:
            assert_never(request.thinking)


def _form(request: CountTokens) -> dict[str, Any]:
    forms = [request.output_format, None if request.output_config is None else request.output_config.format]
    given = [form for form in forms if form is not None]
    if not given:
        return {}
    if given[0] != given[-1]:
        raise InvalidValue(
            "'output_format' and 'output_config.format' ask for different formats.", param="output_format"
        )
    return {"text": TextConfig(format=JsonSchemaFormat(name="answer", schema=given[0].schema, strict=True))}


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


def _named(request: CountTokens) -> dict[str, str]:
    """What the client calls the format and the effort."""
    thinks = isinstance(request.thinking, ThinkingEnabled)
    return {
        "text.format": "output_format" if request.output_format is not None else "output_config.format",
        "reasoning.effort": "thinking" if thinks else "output_config.effort",
    }
