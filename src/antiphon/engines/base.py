"""Something that generates. Adding one is a file here and a line in registry.py.

The rules every engine keeps (tests/contracts/test_engine.py runs them over the registry):
- closing the iterator of `generate` cancels the work and frees what it held;
- the last chunk has a `finish` and `counts`;
- a dead, silent or babbling engine raises EngineFailed or Unavailable, within a deadline.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar, Literal, Protocol

from msgspec import Struct

from antiphon.core.prompt import Chunk, Prompt, Template, Work
from antiphon.errors import UnsupportedParameter

Level = Literal["chat", "text", "tokens"]
Deed = Literal["generate", "embed", "tokenize", "detokenize", "score", "rerank", "classify", "pooling", "audio"]


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
    counts: bool = False  # `count` works
    template: Template | None = None  # for engines that we render for
    lacks: dict[str, str] = {}  # of fields that are not honoured, why; for those who ask for them
    version: str | None = None  # the engine's, where it tells


class Model(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    owned_by: str = "antiphon"


class Embedded(Struct, frozen=True, kw_only=True):
    """A vector for each input, in their order, and the tokens of all."""

    vectors: list[list[float]]
    tokens: int


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    async def open(self) -> None:
        """Get ready; raise a StartupError sentence for a person if that cannot be."""

    async def close(self) -> None: ...

    def models(self) -> Sequence[Model]: ...

    def serves(self, model: str) -> bool: ...

    async def capabilities(self, model: str) -> Capabilities:
        """May load the model."""

    def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        """Lists of chunks: what came together is handed on together."""

    async def count(self, model: str, prompt: Prompt) -> int: ...

    def healthy(self) -> bool: ...

    # What an engine does beside generating, if its capabilities say so (`does`). GeneratesOnly refuses all of it.

    async def embed(self, model: str, inputs: Sequence[str | Sequence[int]], dimensions: int | None) -> Embedded: ...

    async def tokenize(self, model: str, prompt: Prompt) -> tuple[int, ...]: ...

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str: ...

    async def relay(self, deed: Deed, body: bytes) -> bytes:
        """JSON in, JSON out, in the engine's own shapes: score, rerank, classify, pooling."""
        ...


class GeneratesOnly:
    """For engines to inherit: whoever asks for more than generating is told so by name."""

    name: ClassVar[str]

    async def embed(self, model: str, inputs: Sequence[str | Sequence[int]], dimensions: int | None) -> Embedded:
        raise self._undone("makes no embeddings")

    async def tokenize(self, model: str, prompt: Prompt) -> tuple[int, ...]:
        raise self._undone("does not tokenize for others")

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        raise self._undone("does not detokenize for others")

    async def relay(self, deed: Deed, body: bytes) -> bytes:
        raise self._undone(f"does not {deed}")

    def _undone(self, what: str) -> UnsupportedParameter:
        return UnsupportedParameter(f"The {self.name} engine {what}.", param="model")
