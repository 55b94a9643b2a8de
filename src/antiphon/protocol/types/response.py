"""The Response object. Every field is always sent, with its default value, unless it is UNSET.

Fields of OpenAI's newest models and the sampling extensions are UNSET until a request uses them.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from antiphon.protocol.types.items import InputItem, OutputItem
from antiphon.protocol.types.parts import InputFile, InputImage, InputText, Tagged
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Json, Tool

ResponseStatus = Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
IncompleteReason = Literal["max_output_tokens", "content_filter", "max_messages", "steered"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryStyle = Literal["auto", "concise", "detailed"]
Verbosity = Literal["low", "medium", "high"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]


class InputTokensDetails(Struct, kw_only=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    input_tokens_per_turn: list[int] | UnsetType = UNSET
    cached_tokens_per_turn: list[int] | UnsetType = UNSET


class OutputTokensDetails(Struct, kw_only=True):
    reasoning_tokens: int = 0
    tool_output_tokens: int = 0
    output_tokens_per_turn: list[int] | UnsetType = UNSET
    tool_output_tokens_per_turn: list[int] | UnsetType = UNSET


class Usage(Struct, kw_only=True):
    """Token counts; the totals are sums over all turns."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = field(default_factory=OutputTokensDetails)
    total_tokens: int = 0


class IncompleteDetails(Struct, kw_only=True):
    reason: IncompleteReason


class ResponseError(Struct, kw_only=True):
    code: str
    message: str
    type: str = "server_error"
    param: str | None = None


class TextFormat(Tagged, tag="text", kw_only=True):
    """Any text."""


class JsonObjectFormat(Tagged, tag="json_object", kw_only=True):
    """Any JSON object."""


class JsonSchemaFormat(Tagged, tag="json_schema", kw_only=True):
    name: str
    schema: Json
    description: str | UnsetType = UNSET
    strict: bool | None = None


class StructuralTagFormat(Tagged, tag="structural_tag", kw_only=True):
    """JSON schemas that apply between tags; an extension of vLLM and SGLang."""

    structures: list[Json] | UnsetType = UNSET
    triggers: list[str] | UnsetType = UNSET
    format: Json | UnsetType = UNSET


Format = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class TextConfig(Struct, kw_only=True):
    format: Format = field(default_factory=TextFormat)
    verbosity: Verbosity = "medium"


class ReasoningConfig(Struct, kw_only=True):
    effort: Effort | None = None
    summary: SummaryStyle | None = None
    generate_summary: SummaryStyle | UnsetType = UNSET
    context: Literal["auto", "current_turn", "all_turns"] | UnsetType = UNSET
    mode: str | UnsetType = UNSET


class Compactor(Struct, kw_only=True):
    """An entry of `context_management`."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1000, le=2**31 - 1)] | None = None


class ConversationRef(Struct, kw_only=True):
    id: str


class PromptRef(Struct, kw_only=True):
    """A stored prompt template and the values of its variables."""

    id: str
    version: str | None = None
    variables: dict[str, str | InputText | InputImage | InputFile] | None = None


Modality = Literal["text", "image"]


class Judgement(Struct, kw_only=True):
    """The result for one input."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Modality]]


class ModerationResult(Judgement, tag_field="type", tag="moderation_result", kw_only=True):
    model: str


class ModerationFailure(Tagged, tag="error", kw_only=True):
    """The reason why the input or the output has no result."""

    code: str
    message: str


ModerationVerdict = ModerationResult | ModerationFailure


class ResponseModeration(Struct, kw_only=True):
    """The results of a response."""

    input: ModerationVerdict
    output: ModerationVerdict


class Response(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus = "in_progress"
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | list[InputItem] | None = None
    previous_response_id: str | None = None
    conversation: ConversationRef | None = None
    model: str
    output: list[OutputItem] = []
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    tool_choice: ToolChoice = "auto"
    tools: list[Tool] | Raw = []  # JSON in a response that the server has made: it is encoded several times
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    text: TextConfig = field(default_factory=TextConfig)
    reasoning: ReasoningConfig = field(default_factory=ReasoningConfig)
    usage: Usage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt: PromptRef | None = None
    store: bool = True
    background: bool = False
    service_tier: ServiceTier = "default"
    user: str | None = None

    moderation: ResponseModeration | UnsetType = UNSET
    prompt_cache_options: Json | UnsetType = UNSET
    prompt_cache_diagnostics: Json | UnsetType = UNSET
    tool_usage: Json | UnsetType = UNSET
    image: Json | UnsetType = UNSET
    access_programs: Json | UnsetType = UNSET
    context_management: list[Compactor] | UnsetType = UNSET

    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    stop: str | list[str] | UnsetType = UNSET
    include_stop_str_in_output: bool | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    n: int | UnsetType = UNSET
    best_of: int | UnsetType = UNSET
    length_penalty: float | UnsetType = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    chat_template_kwargs: dict[str, Any] | UnsetType = UNSET
    logprobs: bool | UnsetType = UNSET
    num_assistant_tokens: int | UnsetType = UNSET
    assistant_confidence_threshold: float | UnsetType = UNSET
    max_ngram_size: int | UnsetType = UNSET

    # An extension of this server: names of fields that were sent and have no effect, as in the header
    # x-antiphon-ignored. SDKs hide headers, and a WebSocket has none.
    ignored_fields: list[str] | UnsetType = UNSET

    # Only with `enable_response_messages`: the complete prompt as chat messages, and the answer.
    input_messages: list[Json] | UnsetType = UNSET
    output_messages: list[Json] | UnsetType = UNSET
