"""What engines take and give: Prompt, Sampling and Constraint in, Chunks out.

These are values without behaviour. An engine that renders chats itself takes a ChatPrompt;
one that we render for takes a TextPrompt or a TokenPrompt.
"""

from typing import Any, Literal

from msgspec import Struct

from antiphon.protocol.types.response import Logprob

Json = dict[str, Any]
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class Segment(Struct, frozen=True):
    """A stretch of rendered prompt. Only in `control` segments may text become control tokens:
    what users, tools and files wrote stays text, whatever it looks like."""

    text: str
    control: bool


class TextPrompt(Struct, frozen=True):
    segments: tuple[Segment, ...]


class TokenPrompt(Struct, frozen=True):
    tokens: tuple[int, ...]


class ChatPrompt(Struct, frozen=True):
    """Messages and tools in the shape of chat completions."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    tool_choice: str | Json = "auto"
    parallel_tool_calls: bool = True
    template_kwargs: Json = {}
    recipients: dict[str, str] = {}  # functions that gpt-oss knows by names of its own


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class Template(Struct, frozen=True, kw_only=True):
    """A model's chat template and the tokens it names; operator's data, never a client's."""

    source: str
    bos: str = ""
    eos: str = ""


class Reads(Struct, frozen=True, kw_only=True):
    """The operator's word on how a model's output is to be read; "auto": by the model's template and name."""

    calls: str = "auto"  # --tool-call-parser
    thoughts: str = "auto"  # --reasoning-parser
    harmony: bool = False  # --harmony


class Sampling(Struct, frozen=True, kw_only=True):
    """How to choose tokens. None leaves the choice to the engine."""

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
    best_of: int | None = None
    length_penalty: float | None = None
    logprobs: int | None = None  # None: none wanted; k: with the k likeliest alternatives
    num_assistant_tokens: int | None = None
    assistant_confidence_threshold: float | None = None
    max_ngram_size: int | None = None
    # Asked for by chat and completions alone.
    logit_bias: dict[str, float] | None = None  # token id → bias
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    return_token_ids: bool = False


class JsonObject(Struct, frozen=True):
    """The answer must be a JSON object."""


class JsonSchema(Struct, frozen=True):
    """The answer must be an instance of this (already vetted) schema."""

    schema: Json
    name: str = "answer"
    strict: bool = True


class Grammar(Struct, frozen=True):
    """The answer must be a sentence of this (already vetted) grammar."""

    syntax: Literal["regex", "lark", "gbnf"]
    definition: str


class StructuralTag(Struct, frozen=True):
    """Schemas between tags, in the shape of vLLM's and SGLang's `structural_tag`."""

    tag: Json


Constraint = JsonObject | JsonSchema | Grammar | StructuralTag


class Work(Struct, frozen=True, kw_only=True):
    """One call of a model: all that an engine needs to know."""

    model: str
    prompt: Prompt
    sampling: Sampling
    constraint: Constraint | None = None
    effort: str | None = None  # reasoning effort, for engines that take it by name
    cache_key: str | None = None  # the client's prompt_cache_key
    salt: str | None = None  # what keeps prefix caches apart: of tenants, and of whom a client keeps apart
    affinity: str | None = None  # works of the same one are best done where their common prefix is warm
    level: Literal["chat", "text", "tokens"] | None = None  # what its reader expects to come back; None: whatever
    shown: tuple[str, ...] = ()  # control tokens that the engine must not hide in what it says: its reader needs them
    whole: bool = False  # nobody listens before the end: the answer is to come in one piece
    priority: int | None = None
    request_id: str | None = None  # what the engine is to call it
    mm_processor_kwargs: Json | None = None
    kv_transfer_params: Json | None = None


class Counts(Struct, frozen=True, kw_only=True):
    """Tokens of one call, as the engine counted them."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class CallPiece(Struct, frozen=True, kw_only=True):
    """A piece of a tool call from an engine that parses calls itself. The first one has a name."""

    index: int
    name: str = ""
    arguments: str = ""


class Extras(Struct, kw_only=True):
    """What chat and completions pass on of an engine's answer as it came."""

    stop_reason: int | str | None = None
    prompt_logprobs: Any = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: Json | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class Chunk(Struct, kw_only=True, gc=False):
    """A piece of what a model said. `text` is the answer where the engine splits reasoning and
    calls off itself (chat level), the raw output where it does not (text and token level)."""

    text: str = ""
    thought: str = ""
    refusal: str = ""
    calls: tuple[CallPiece, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    finish: Finish | None = None
    counts: Counts | None = None
    extras: Extras | None = None
