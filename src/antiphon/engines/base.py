"""The `Engine` protocol and the types that all engines share.

A new engine is a module in this package and a line in `registry.py`. Every engine obeys these rules, which
`tests/contracts/test_engine.py` checks for the whole registry:
- closing the iterator of `generate` cancels the generation and frees its resources;
- the last chunk has `finish` and `counts`;
- an engine that is dead, silent or sends garbage raises EngineFailed or Unavailable within a timeout.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.core.prompt import ChatTemplate, Chunk, GenerationRequest, ParserChoice, Prompt, Sampling
from antiphon.errors import UnsupportedParameter

PromptLevel = Literal["chat", "text", "tokens"]
Task = Literal[
    "generate", "embed", "tokenize", "detokenize", "score", "rerank", "classify", "pooling", "moderate", "transcribe",
    "translate", "speak",
]  # fmt: skip

# returns an awaitable that must finish before the next call, or None
ChunkSink = Callable[[list[Chunk]], Awaitable[None] | None]

EmbeddingInputs = Sequence[str | Sequence[int]]  # texts, or token ids

ProgressCallback = Callable[[str, int, int], None]  # task, amount done, total

JSON_MEDIA_TYPE = "application/json"
BYTES_MEDIA_TYPE = "application/octet-stream"
MAX_TOKEN_COUNT = 2**40
MIN_LOGPROB = -9999.0  # OpenAI's value for a very unlikely token


class Capabilities(Struct, frozen=True, kw_only=True):
    """Prompt forms, tasks and request fields that a model on this engine supports.

    `supported_fields` holds names of request fields ("top_k", "stop", "tools", "text.format", "reasoning.effort",
    "input_image", "top_logprobs", …). The service rejects requests that set a field which is not in it, by the name of
    the field.
    """

    level: PromptLevel  # form of the output and, if there is a template to render, of the prompt; else a chat is sent
    supported_fields: frozenset[str]
    other_levels: frozenset[PromptLevel] = frozenset()  # further prompt forms that `generate` accepts
    tasks: frozenset[Task] = frozenset({"generate"})
    context: int | None = None  # tokens of prompt and output together; None: unknown
    slots: int | None = None  # concurrent generations; None: no limit on our side
    replicas: int = 1  # engines that serve the model
    lane: str | None = None  # models of one lane share the slots; None: each model has its own
    can_count_tokens: bool = False  # whether `count_tokens` works
    can_generate_whole: bool = False  # whether a request with `buffered` is answered unstreamed, in one list
    template: ChatTemplate | None = None  # chat template, for engines whose prompts Antiphon renders
    template_source: str = ""  # chat template of an engine that renders itself, if it reports one
    takes_effort: bool | None = True  # whether a supported `reasoning.effort` reaches the model; None: unknown
    unconfirmed_fields: frozenset[str] = frozenset()  # supported fields that may have no effect: reported as ignored
    template_has_tools: bool = True  # whether the template of an engine that renders itself describes tools
    corrects_images: bool = False  # its requests apply the `correction` of large images, see `AttachmentLookup`
    needs_control_escape: bool = False  # it renders chats and parses control tokens in any text: escape them
    default_sampling: Sampling = Sampling()  # of requests that set no values of their own
    architecture: str | None = None  # architecture of the model as its file or engine names it ("qwen2", "gpt-oss", …)
    parser_choice: ParserChoice = ParserChoice()  # the operator's choice of parsers for raw output
    unsupported_reasons: dict[str, str] = {}  # unsupported field → reason, for error messages
    version: str | None = None  # version of the engine, if it reports one
    # what the engine parses itself ("tools", "reasoning") → name of its parser, if reported
    parsers: dict[str, str] = {}


class Model(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    owned_by: str = "antiphon"


class EngineStatus(Struct, frozen=True, kw_only=True):
    """Status of an engine, or of one member of a pool."""

    name: str
    engine: str  # kind of engine
    models: tuple[str, ...] = ()
    healthy: bool
    draining: bool = False
    breaker: Literal["closed", "open", "half-open"] = "closed"
    running: int = 0
    slots: int | None = None
    works: int = 0  # requests since the engine was added
    failures: int = 0  # requests that failed through the engine's own fault
    loaded: tuple[str, ...] | None = None  # models in memory; None: unknown


class EmbeddingResult(Struct, frozen=True, kw_only=True):
    """One vector per input, in input order, and the tokens of all inputs."""

    vectors: list[list[float]]
    tokens: int


class PassthroughReply(Struct, frozen=True):
    """Response body of an engine, unchanged."""

    body: bytes
    media_type: str = JSON_MEDIA_TYPE
    metadata: bytes = b""  # JSON of vLLM's `metadata` header: byte ranges of the vectors in the body


class PushStream(list[Chunk]):
    """Empty list that `generate` may yield after the first one; the remaining chunks can be pushed out of it.

    Pulling each list costs a wake-up of the consumer, which is as expensive as everything else together. Consumers that
    do not support pushing skip it as the empty list that it is, and keep iterating.
    """

    async def push_to(self, sink: ChunkSink) -> None:
        """Call `sink` with each list from the callback that received it, and await what `sink` returns.

        `sink` must not raise. This returns at the end of the stream or after a failure; iterate on to get that.
        """
        raise NotImplementedError


class Engine(Protocol):
    """An inference engine, embedded or remote. An engine that inherits from it supports generation only by default."""

    @property
    def name(self) -> str: ...

    async def open(self) -> None:
        """Make the engine ready; raise StartupError with a message for the operator if that fails."""

    async def close(self) -> None: ...

    def models(self) -> Sequence[Model]: ...

    def default_model(self) -> Model | None:
        """Return the model that serves unknown model names; None while it is not known."""
        return next(iter(self.models()), None)

    def serves(self, model: str) -> bool: ...

    async def capabilities(self, model: str) -> Capabilities:
        """Return the capabilities of a model, which may load it. Called for each request, so engines cache them."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        """Yield lists of chunks: chunks that arrived together are yielded together. See `PushStream`.

        The chunks of a request with `buffered` may arrive in one list, which is cheaper if no client streams.
        """

    async def count_tokens(self, model: str, prompt: Prompt) -> int: ...

    def is_healthy(self) -> bool: ...

    def statuses(self) -> Sequence[EngineStatus]:
        """Return the engine's own status, or one for each member of a pool."""
        models = tuple(model.id for model in self.models())
        return [EngineStatus(name=self.name, engine=self.name, models=models, healthy=self.is_healthy())]

    # Tasks other than generation, available if listed in `Capabilities.tasks`.

    async def embed(
        self, model: str, inputs: EmbeddingInputs, dimensions: int | None = None, truncate: int | None = None
    ) -> EmbeddingResult:
        """Embed texts or token ids. Token ids are used as they are; texts get the special tokens that the model
        expects.

        `truncate` limits each input to its first tokens; -1 means the model's limit. Without it, an input that is too
        long raises ContextTooLong. `dimensions` that the model does not support raise UnsupportedParameter.
        """
        raise unsupported_task(self, "does not support embeddings")

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        """Return the token ids of a prompt. Without `special`, texts get no special tokens such as BOS."""
        raise unsupported_task(self, "does not support tokenization")

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        raise unsupported_task(self, "does not support detokenization")

    async def pass_through(
        self, model: str, task: Task, body: bytes, media_type: str = JSON_MEDIA_TYPE
    ) -> PassthroughReply:
        """Forward a request in the engine's own format: a multipart form for audio, JSON for all other tasks."""
        raise unsupported_task(self, f"does not support the task {task}")

    def speak(self, model: str, body: bytes, as_events: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield speech in pieces; `as_events`: as server-sent events. Closing the iterator cancels the request."""
        raise unsupported_task(self, "does not support the task speak")


def unsupported_task(engine: Engine, reason: str) -> UnsupportedParameter:
    return UnsupportedParameter(f"The {engine.name} engine {reason}.", param="model")


def clamp_token_count(number: int | None) -> int:
    """Bound a token count that an engine reported, because metrics add it up: missing or negative counts become 0."""
    if number is None or number <= 0:
        return 0
    return number if number < MAX_TOKEN_COUNT else MAX_TOKEN_COUNT


def clamp_logprob(logprob: float | None) -> float:
    """Bound a log probability that an engine reported: one that is missing becomes the lowest value."""
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)


def min_limit(one: int | None, other: int | None) -> int | None:
    """Return the lower of two limits. None is no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
