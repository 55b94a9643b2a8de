"""Something that generates. Adding one is a file here and a line in registry.py.

The rules every engine keeps (tests/contracts/test_engine.py runs them over the registry):
- closing the iterator of `generate` cancels the work and frees what it held;
- the last chunk has a `finish` and `counts`;
- a dead, silent or babbling engine raises EngineFailed or Unavailable, within a deadline.

How many tokens an engine says that it read or said, as far as that can be believed: metrics are made of it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import ClassVar, Literal, Protocol

from msgspec import Struct, field

from antiphon.core.prompt import Chunk, Prompt, Reads, Template, Work
from antiphon.errors import UnsupportedParameter

Level = Literal["chat", "text", "tokens"]
Deed = Literal[
    "generate", "embed", "tokenize", "detokenize", "score", "rerank", "classify", "pooling", "transcribe", "translate"
]

JSON = "application/json"


class Standing(Struct, eq=False):
    """Whether what was said still stands: whoever said it lets it fall before saying anything else, so that nobody has
    to ask. What rests on it falls with it."""

    stands: bool = True
    resting: list["Standing"] = []

    def bear(self) -> "Standing":
        """One more that rests on it."""
        borne = Standing(self.stands)
        if self.stands:
            self.resting = [*(one for one in self.resting if one.stands), borne]
        return borne

    def fall(self) -> None:
        self.stands, resting, self.resting = False, self.resting, []
        for one in resting:
            one.fall()


FALLEN = Standing(stands=False)


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a model on this engine takes, and which request fields it honours.

    `honours` holds names of request fields ("top_k", "stop", "tools", "text.format", "reasoning.effort",
    "input_image", "top_logprobs", …); the service refuses by name what is asked for and not in it.
    """

    prompt: Level  # what comes back, and what is best sent; who has no template to render with sends a chat
    honours: frozenset[str]
    takes: frozenset[Level] = frozenset()  # kinds of prompts that `generate` takes beside the one above
    does: frozenset[Deed] = frozenset({"generate"})
    context: int | None = None  # tokens of prompt and answer together; None: not known
    slots: int | None = None  # generations at once; None: not bounded by us
    lane: str | None = None  # models of one lane share those slots; None: each has its own
    counts: bool = False  # `count` works
    wholes: bool = False  # `answer` works
    template: Template | None = None  # for engines that we render for
    wording: str = ""  # the source of the template of an engine that renders itself, where it tells
    knows_tools: bool = True  # the template of an engine that renders itself tells the model of tools
    gullible: bool = False  # it renders chats itself, and takes whatever looks like a control token for one
    architecture: str | None = None  # of the model, as its file or its engine names it ("qwen2", "gpt-oss", …)
    reads: Reads = Reads()  # the operator's word on how its raw output is to be read
    lacks: dict[str, str] = {}  # of fields that are not honoured, why; for those who ask for them
    version: str | None = None  # the engine's, where it tells
    parsers: dict[str, str] = {}  # what it parses itself ("tools", "reasoning"), and by which name, where it tells
    standing: Standing = field(default_factory=lambda: FALLEN)  # FALLEN: who wants to be sure has to ask again


Take = Callable[[list[Chunk]], Awaitable[None] | None]  # gives what has to be awaited before more, if anything


class Flow(list[Chunk]):
    """One of the lists that `generate` may yield, after the first: an empty one that the next can be poured out of.

    To be asked for each list costs a wake-up of the asker, which is as much as all else. Who does not know this, or
    does not want it, passes it over as the empty list that it is, and goes on asking.
    """

    async def pour(self, take: Take) -> None:
        """Give each list to `take` from the very callback that brought it, and wait for what that gives.

        `take` does not raise. When this returns there is no more, or something went wrong: who asks is told.
        """
        raise NotImplementedError


class Model(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    owned_by: str = "antiphon"


class State(Struct, frozen=True, kw_only=True):
    """How an engine does: itself, or as one of those that a pool is made of."""

    name: str
    engine: str  # its kind
    models: tuple[str, ...] = ()
    healthy: bool
    draining: bool = False
    breaker: Literal["closed", "open", "half-open"] = "closed"
    running: int = 0
    slots: int | None = None
    works: int = 0  # given to it since it is there
    failures: int = 0  # of these, by its own fault


class Embedded(Struct, frozen=True, kw_only=True):
    """A vector for each input, in their order, and the tokens of all."""

    vectors: list[list[float]]
    tokens: int


class Relayed(Struct, frozen=True):
    """What an engine answered, as it came."""

    body: bytes
    media_type: str = JSON
    metadata: bytes = b""  # a header of vLLM's, in JSON: where in the bytes each vector is


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    async def open(self) -> None:
        """Get ready; raise a StartupError sentence for a person if that cannot be."""

    async def close(self) -> None: ...

    def models(self) -> Sequence[Model]: ...

    def first(self) -> Model | None:
        """The model that names stand for which are nobody's own; None as long as it is not known."""
        ...

    def serves(self, model: str) -> bool: ...

    async def capabilities(self, model: str) -> Capabilities:
        """May load the model. As long as they stand, the same would be given again, and the model is served."""

    def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        """Lists of chunks: what came together is handed on together. See Flow."""

    async def answer(self, work: Work) -> list[Chunk]:
        """All that `generate` would yield, in one piece, if its capabilities say so (`wholes`): where nobody listens
        before the end it costs less. Cancelling it cancels the work."""
        ...

    async def count(self, model: str, prompt: Prompt) -> int: ...

    def healthy(self) -> bool: ...

    def states(self) -> Sequence[State]:
        """Its own, or one for each engine that it is made of."""
        ...

    # What an engine does beside generating, if its capabilities say so (`does`). GeneratesOnly refuses all of it.

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> Embedded:
        """Token ids are taken as they are; texts get what the model wants around them.

        `truncate`: the first so many tokens of each are enough; -1: as many as the model takes. Without it what is too
        long raises ContextTooLong. `dimensions` that the model was not made for raise UnsupportedParameter.
        """
        ...

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        """What the model reads of it; not `special`: without what the model wants around a text, such as a BOS."""
        ...

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str: ...

    async def relay(self, model: str, deed: Deed, body: bytes, media_type: str = JSON) -> Relayed:
        """In the engine's own shapes: JSON for score, rerank, classify and pooling, a form with a file for audio."""
        ...


class GeneratesOnly:
    """For engines to inherit: whoever asks for more than generating is told so by name."""

    name: ClassVar[str]

    def models(self) -> Sequence[Model]:
        raise NotImplementedError

    def healthy(self) -> bool:
        raise NotImplementedError

    def first(self) -> Model | None:
        return next(iter(self.models()), None)

    def states(self) -> Sequence[State]:
        models = tuple(model.id for model in self.models())
        return [State(name=self.name, engine=self.name, models=models, healthy=self.healthy())]

    async def answer(self, work: Work) -> list[Chunk]:
        raise self._undone("gives no answers in one piece")

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> Embedded:
        raise self._undone("makes no embeddings")

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        raise self._undone("does not tokenize for others")

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        raise self._undone("does not detokenize for others")

    async def relay(self, model: str, deed: Deed, body: bytes, media_type: str = JSON) -> Relayed:
        raise self._undone(f"does not {deed}")

    def _undone(self, what: str) -> UnsupportedParameter:
        return UnsupportedParameter(f"The {self.name} engine {what}.", param="model")


MOST_TOKENS = 2**40


def believed(number: int | None) -> int:
    if number is None or number <= 0:
        return 0
    return number if number < MOST_TOKENS else MOST_TOKENS
