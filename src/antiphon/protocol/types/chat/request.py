"""The body of POST /chat/completions.

None means not sent; null is equivalent to omitting the field. Message fields that a role does not use are reported as
ignored (core/dialects/chat_request.py).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.protocol.types.completions import CompletionFields
from antiphon.protocol.types.parts import CacheBreakpoint, InputAudio, RefusalPart, Tagged
from antiphon.protocol.types.request import ModerationConfig
from antiphon.protocol.types.response import Effort, Verbosity
from antiphon.protocol.types.tools import Json, TextInput

ChatRole = Literal["system", "developer", "user", "assistant", "tool", "function"]


class TextPart(Tagged, tag="text", kw_only=True):
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class ImageUrl(Struct, kw_only=True):
    url: str
    detail: Literal["auto", "low", "high", "original"] = "auto"


class ImagePart(Tagged, tag="image_url", kw_only=True):
    image_url: ImageUrl
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class FileContent(Struct, kw_only=True):
    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET


class FilePart(Tagged, tag="file", kw_only=True):
    file: FileContent
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


ChatPart = TextPart | ImagePart | FilePart | InputAudio | RefusalPart


class PastFunction(Struct, kw_only=True):
    name: str
    arguments: str


class PastCustom(Struct, kw_only=True):
    name: str
    input: str


class PastCall(Struct, kw_only=True, tag_field="type"):
    """A tool call that the assistant made in an earlier turn."""

    id: str


class PastFunctionCall(PastCall, tag="function", kw_only=True):
    function: PastFunction


class PastCustomCall(PastCall, tag="custom", kw_only=True):
    custom: PastCustom


class ChatMessageIn(Struct, kw_only=True):
    role: ChatRole
    content: str | list[ChatPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[PastFunctionCall | PastCustomCall] | None = None
    tool_call_id: str | None = None
    function_call: PastFunction | None = None
    audio: Any = None


class DeclaredFunction(Struct, kw_only=True):
    name: str
    description: str | UnsetType = UNSET
    parameters: Json | None = None
    strict: bool | None = None


class GrammarDefinition(Struct, kw_only=True):
    syntax: Literal["lark", "regex"]
    definition: str


class GrammarFormat(Tagged, tag="grammar", kw_only=True):
    grammar: GrammarDefinition


class DeclaredCustom(Struct, kw_only=True):
    name: str
    description: str | UnsetType = UNSET
    format: TextInput | GrammarFormat | UnsetType = UNSET


class FunctionDeclaration(Tagged, tag="function", kw_only=True):
    function: DeclaredFunction


class CustomDeclaration(Tagged, tag="custom", kw_only=True):
    custom: DeclaredCustom


class Named(Struct, kw_only=True):
    name: str


class ChooseFunction(Tagged, tag="function", kw_only=True):
    function: Named


class ChooseCustom(Tagged, tag="custom", kw_only=True):
    custom: Named


class AllowedNames(Struct, kw_only=True):
    mode: Literal["auto", "required"] = "auto"
    tools: list[ChooseFunction | ChooseCustom]


class ChooseAllowed(Tagged, tag="allowed_tools", kw_only=True):
    allowed_tools: AllowedNames


class CreateChat(CompletionFields, kw_only=True):
    messages: list[ChatMessageIn] = field(default_factory=list)

    tools: list[FunctionDeclaration | CustomDeclaration] = field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | ChooseFunction | ChooseCustom | ChooseAllowed = "auto"
    parallel_tool_calls: bool = True
    functions: list[DeclaredFunction] | None = None
    function_call: Literal["none", "auto"] | Named | None = None

    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True
    verbosity: Verbosity | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    safety_identifier: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None  # only with compatibility mode off
    moderation: ModerationConfig | None = None

    # Accepted without effect on the answer, and reported as ignored.
    store: bool | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Json | None = None
    prediction: Json | None = None

    # Unsupported fields, declared so that they can be rejected by name.
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    echo: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    chat_template: Any = None
    documents: Any = None
    request_id: Any = None
