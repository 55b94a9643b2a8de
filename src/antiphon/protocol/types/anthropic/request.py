"""The bodies of POST /messages (Anthropic's Messages API) and of its count_tokens.

Fields that are understood but have no effect (cache_control, context_management, …) are not declared here, so that they
are reported as ignored. A plain string in place of a list of blocks is converted by decoding/dialect_codecs.py.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from antiphon.protocol.types.parts import Tagged
from antiphon.protocol.types.tools import Json


class Base64Source(Tagged, tag="base64", kw_only=True):
    media_type: str
    data: str


class UrlSource(Tagged, tag="url", kw_only=True):
    url: str


class FileSource(Tagged, tag="file", kw_only=True):
    file_id: str


class TextSource(Tagged, tag="text", kw_only=True):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class Citations(Struct, kw_only=True):
    enabled: bool = False


class TextBlock(Tagged, tag="text", kw_only=True):
    text: str


class ImageBlock(Tagged, tag="image", kw_only=True):
    source: Base64Source | UrlSource | FileSource


class ContentSource(Tagged, tag="content", kw_only=True):
    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Tagged, tag="document", kw_only=True):
    source: Base64Source | TextSource | ContentSource | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(Tagged, tag="search_result", kw_only=True):
    source: str
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class ThinkingBlock(Tagged, tag="thinking", kw_only=True):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Tagged, tag="redacted_thinking", kw_only=True):
    data: str


class ToolUseBlock(Tagged, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: Json


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(Tagged, tag="tool_result", kw_only=True):
    tool_use_id: str
    content: str | list[ResultBlock] = ""
    is_error: bool = False


InputBlock = ResultBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: list[InputBlock]


class MessageTool(Struct, kw_only=True):
    """A client tool. Types other than `custom` denote Anthropic's own tools."""

    type: str = "custom"
    name: str
    description: str | None = None
    input_schema: Json | None = None
    strict: bool | None = None
    defer_loading: bool = False
    allowed_callers: list[str] | None = None
    eager_input_streaming: bool | None = None  # no effect: tool input is always streamed as it is generated


class AnthropicToolChoice(Struct, kw_only=True, tag_field="type"):
    """Choice of the tools that may or must be called, and whether in parallel."""

    disable_parallel_tool_use: bool = False


class AutoToolChoice(AnthropicToolChoice, tag="auto", kw_only=True): ...


class AnyToolChoice(AnthropicToolChoice, tag="any", kw_only=True): ...


class NamedToolChoice(AnthropicToolChoice, tag="tool", kw_only=True):
    name: str


class NoToolChoice(AnthropicToolChoice, tag="none", kw_only=True): ...


class ThinkingConfig(Struct, kw_only=True, tag_field="type"):
    """Whether the model reasons before it answers, and whether the reasoning is returned."""

    display: Literal["summarized", "omitted"] | None = None


class ThinkingEnabled(ThinkingConfig, tag="enabled", kw_only=True):
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class ThinkingAdaptive(ThinkingConfig, tag="adaptive", kw_only=True): ...


class ThinkingDisabled(ThinkingConfig, tag="disabled", kw_only=True): ...


class JsonOutput(Struct, kw_only=True):
    """The answer must be an instance of this JSON schema."""

    type: Literal["json_schema"] = "json_schema"
    schema: Json


class OutputConfig(Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None


class MessageMetadata(Struct, kw_only=True):
    user_id: str | None = None


class CountTokens(Struct, kw_only=True):
    """The fields of a request that make up the prompt."""

    model: str
    messages: list[InputMessage]
    system: list[TextBlock] = field(default_factory=list)
    tools: list[MessageTool] = field(default_factory=list)
    tool_choice: AutoToolChoice | AnyToolChoice | NamedToolChoice | NoToolChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutput | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None


class CreateMessage(CountTokens, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool = False
    stop_sequences: list[str] = field(default_factory=list)
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
