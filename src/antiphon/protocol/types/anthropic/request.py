"""The body of POST /messages, Anthropic's API, and of its count_tokens: what a client of that API may send.

What is understood and changes nothing (cache_control, context_management, …) has no field here, so that the survey
names it as ignored. Where a plain string may stand for a list of blocks, messages_codec.py makes it one.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from antiphon.protocol.types.tools import Json


class Source(Struct, kw_only=True, tag_field="type"):
    """Where an image or a document is found."""


class Base64Source(Source, tag="base64", kw_only=True):
    media_type: str
    data: str


class UrlSource(Source, tag="url", kw_only=True):
    url: str


class FileSource(Source, tag="file", kw_only=True):
    file_id: str


class TextSource(Source, tag="text", kw_only=True):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class Citations(Struct, kw_only=True):
    enabled: bool = False


class Block(Struct, kw_only=True, tag_field="type"):
    """A piece of a message's content."""


class TextBlock(Block, tag="text", kw_only=True):
    text: str


class ImageBlock(Block, tag="image", kw_only=True):
    source: Base64Source | UrlSource | FileSource


class ContentSource(Source, tag="content", kw_only=True):
    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Block, tag="document", kw_only=True):
    source: Base64Source | TextSource | ContentSource | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(Block, tag="search_result", kw_only=True):
    source: str
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class ThinkingBlock(Block, tag="thinking", kw_only=True):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Block, tag="redacted_thinking", kw_only=True):
    data: str


class ToolUseBlock(Block, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: Json


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(Block, tag="tool_result", kw_only=True):
    tool_use_id: str
    content: str | list[ResultBlock] = ""
    is_error: bool = False


InputBlock = ResultBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: list[InputBlock]


class MessageTool(Struct, kw_only=True):
    """A tool of the client's. Any other type than custom is a tool of Anthropic's."""

    type: str = "custom"
    name: str
    description: str | None = None
    input_schema: Json | None = None
    strict: bool | None = None
    defer_loading: bool = False
    allowed_callers: list[str] | None = None
    eager_input_streaming: bool | None = None  # every input is streamed as it comes


class MessageToolChoice(Struct, kw_only=True, tag_field="type"):
    """Which tools may or must be called, and how many at a time."""

    disable_parallel_tool_use: bool = False


class AutoToolChoice(MessageToolChoice, tag="auto", kw_only=True):
    pass


class AnyToolChoice(MessageToolChoice, tag="any", kw_only=True):
    pass


class NamedToolChoice(MessageToolChoice, tag="tool", kw_only=True):
    name: str


class NoToolChoice(MessageToolChoice, tag="none", kw_only=True):
    pass


class Thinking(Struct, kw_only=True, tag_field="type"):
    """Whether to think before the answer, and whether the thoughts are shown."""

    display: Literal["summarized", "omitted"] | None = None


class ThinkingEnabled(Thinking, tag="enabled", kw_only=True):
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class ThinkingAdaptive(Thinking, tag="adaptive", kw_only=True):
    pass


class ThinkingDisabled(Thinking, tag="disabled", kw_only=True):
    pass


class JsonOutput(Struct, kw_only=True):
    """The answer must be an instance of this schema."""

    type: Literal["json_schema"] = "json_schema"
    schema: Json


class OutputConfig(Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None


class MessageMetadata(Struct, kw_only=True):
    user_id: str | None = None


class CountTokens(Struct, kw_only=True):
    """The part of a request that becomes the prompt."""

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
