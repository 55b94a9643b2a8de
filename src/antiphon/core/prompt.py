"""Input and output types of engines: Prompt, Sampling and Constraint in, Chunks out.

These are plain values. An engine that renders chats itself takes a ChatPrompt; an engine that Antiphon renders for
takes a TextPrompt or a TokenPrompt.
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from antiphon.protocol.types.parts import Logprob

Json = dict[str, Any]
FinishKind = Literal["stop", "length", "tool_calls", "content_filter"]


class Segment(Struct, frozen=True):
    """A stretch of a rendered prompt.

    Text may become control tokens only in `control` segments: that of users, tools and files always stays text.
    """

    text: str
    control: bool


IMAGE_MARKER = "<__media__>"  # stands for an image in a control segment; llama.cpp's name for it


class TextPrompt(Struct, frozen=True):
    segments: tuple[Segment, ...]
    images: tuple[str, ...] = ()  # data URLs, one for each IMAGE_MARKER, in their order


class TokenPrompt(Struct, frozen=True):
    tokens: tuple[int, ...]


class ChatPrompt(Struct, frozen=True):
    """Messages and tools in the format of chat completions."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    tool_choice: str | Json = "auto"
    parallel_tool_calls: bool = True
    template_kwargs: Json = {}
    recipients: dict[str, str] = {}  # functions that have names of their own in gpt-oss


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class ChatTemplate(Struct, frozen=True, kw_only=True):
    """A model's chat template and the tokens it refers to. Set by the operator, never by a client."""

    source: str
    bos: str = ""
    eos: str = ""


class ParserChoice(Struct, frozen=True, kw_only=True):
    """Parsers the operator configured for a model's output; "auto" selects by the model's template and name."""

    calls: str = "auto"  # --tool-call-parser
    reasoning: str = "auto"  # --reasoning-parser
    harmony: bool = False  # --harmony


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters. None leaves the value to the engine."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    seed: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    best_of: int | None = None  # width of a beam search
    beam: int = 0  # which of its results is returned, best first
    length_penalty: float | None = None
    logprobs: int | None = None  # None: not requested; k: with the k most likely alternatives
    num_assistant_tokens: int | None = None
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int | None = None
    # Used by chat completions and completions only.
    logit_bias: dict[str, float] | None = None  # token id → bias
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    return_token_ids: bool = False


class JsonObject(Struct, frozen=True):
    """The output must be a JSON object."""


class JsonSchema(Struct, frozen=True):
    """The output must match this schema, which was validated before."""

    schema: Json
    name: str = "answer"
    strict: bool = True
    description: str = ""


class Grammar(Struct, frozen=True):
    """The output must match this grammar, which was validated before."""

    syntax: Literal["regex", "lark", "gbnf"]
    definition: str


class StructuralTag(Struct, frozen=True):
    """Schemas between tags, in the format of `structural_tag` of vLLM and SGLang."""

    tag: Json


Constraint = JsonObject | JsonSchema | Grammar | StructuralTag


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """One model call with everything an engine needs for it."""

    model: str
    prompt: Prompt
    sampling: Sampling
    constraint: Constraint | None = None
    effort: str | None = None  # reasoning effort, for engines that take it by name
    cache_key: str | None = None  # the client's prompt_cache_key
    salt: str | None = None  # separates prefix caches of tenants, and of groups that a client separates
    affinity: str | None = None  # requests with the same value share a prefix and should run on the same engine
    level: Literal["chat", "text", "tokens"] | None = None  # output level that the parser expects; None: any
    visible_tokens: tuple[str, ...] = ()  # control tokens that the engine must not strip: the parser needs them
    buffered: bool = False  # nothing is streamed to the client: the engine may return the output in one piece
    priority: int | None = None
    request_id: str | None = None  # request id to send to the engine
    mm_processor_kwargs: Json | None = None
    kv_transfer_params: Json | None = None
    # called with the name of each engine that is tried, and again with the error code if it fails; None: not traced
    note_attempt: Callable[[str, str], None] | None = None


class TokenCounts(Struct, frozen=True, kw_only=True):
    """Token counts of one model call, as reported by the engine."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class CallPiece(Struct, frozen=True, kw_only=True):
    """A piece of a tool call from an engine that parses calls itself. The first piece has the name."""

    index: int
    name: str = ""
    arguments: str = ""


class EngineExtras(Struct, kw_only=True):
    """Fields of an engine's reply that chat completions and completions pass through unchanged."""

    stop_reason: int | str | None = None
    prompt_logprobs: Any = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: Json | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class Chunk(Struct, kw_only=True, gc=False):
    """A piece of model output.

    `text` is the answer if the engine separates reasoning and calls itself (chat level), and the raw output otherwise
    (text and token level).
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[CallPiece, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    finish: FinishKind | None = None
    counts: TokenCounts | None = None
    extras: EngineExtras | None = None
