"""The body of POST /responses: OpenAI's fields and the sampling extensions of the engines.

None means not sent; null is equivalent to omitting the field. Fixed ranges are declared here, so that the published
schema shows them; limits that the operator sets are checked in decoding/checks.py.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from antiphon.protocol.types import response
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.parts import Int64
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Json, Tool

Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class StreamOptions(Struct, kw_only=True):
    include_obfuscation: bool = False


class SidePolicy(Struct, kw_only=True):
    mode: Literal["score", "block"]


class ModerationPolicy(Struct, kw_only=True):
    input: SidePolicy | None = None
    output: SidePolicy | None = None


class ModerationConfig(Struct, kw_only=True):
    """The `moderation` field of a request."""

    model: Annotated[str, Meta(min_length=1)]
    policy: ModerationPolicy | None = None


class SharedFields(Struct, kw_only=True):
    """Fields that responses, chat completions and completions have in common."""

    model: str | None = None
    stream: bool = False
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1, description="0 is read as greedy.")] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    user: str | None = None
    service_tier: response.ServiceTier | None = None
    prompt_cache_key: str | None = None
    n: Annotated[int, Meta(ge=1)] | None = None

    # Extensions that engines support in addition to OpenAI's fields.
    best_of: Annotated[int, Meta(ge=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1, description="-1 or at least 1.")] | None = None
    min_p: Annotated[float, Meta(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=1000)] | None = None
    length_penalty: Annotated[float, Meta(ge=-1000, le=1000)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    num_assistant_tokens: Positive | None = None
    assistant_confidence_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_ngram_size: Positive | None = None
    # For responses only with compatibility mode off; the service checks that.
    priority: Int64 | None = None
    cache_salt: str | None = None


class CreateResponse(SharedFields, kw_only=True):
    input: list[InputItem] = field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: response.ConversationRef | None = None
    prompt: response.PromptRef | None = None

    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None

    text: response.TextConfig = field(default_factory=response.TextConfig)
    reasoning: response.ReasoningConfig = field(default_factory=response.ReasoningConfig)
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    include: list[Includable] = field(default_factory=list)

    generate: bool = True
    stream_options: StreamOptions | None = None
    store: bool | None = None
    background: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    safety_identifier: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Json | None = None
    context_management: list[response.Compactor] | None = None
    moderation: ModerationConfig | None = None
    image: Json | None = None
    access_programs: Json | None = None
    multi_agent: Json | None = None
    client_metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None

    # Only with compatibility mode off; the service checks that.
    request_id: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    previous_input_messages: list[Json] | None = None
    enable_response_messages: bool | None = None
    wait_for_tool_outputs: bool | None = None
