"""Generation endpoints of engines: a path, its request bodies and the reader of its responses.

`base.py` sends the requests. Readers of endpoints that only one engine has are in the module of its adapter.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.core.prompt import Chunk, GenerationRequest
from antiphon.engines.http.readers.completion_reader import ChatCompletionReader
from antiphon.errors import AntiphonError, EngineFailed


class StreamReader:
    """Base of readers for streams whose last event has the finish reason and the counts.

    An error is reported through `fault` after the chunks before it.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self.ended = False  # the last chunk was returned
        self.cut = False  # output was cut here although the engine would continue
        self.fault: AntiphonError | None = None

    @property
    def finished(self) -> bool:
        """Whether the engine has sent its finish reason."""
        return self.ended

    def feed(self, events: Iterable[Any]) -> list[Chunk]:
        raise NotImplementedError

    def end(self) -> list[Chunk]:
        """Return the last chunks when no more events follow."""
        if not self.ended:
            raise EngineFailed(f"{self._label} stopped in the middle of its answer.")
        return []


ResponseReader = ChatCompletionReader | StreamReader


class BodyBuilder(Protocol):
    def __call__(self, request: GenerationRequest, *, stream: bool) -> bytes: ...


class EngineEndpoint(Struct, frozen=True):
    """A path of an engine with its request and response formats."""

    path: str
    body: BodyBuilder
    decoder: Decoder[Any]
    make_reader: Callable[[GenerationRequest], ResponseReader]  # of a streamed response
    whole_reader: type[ChatCompletionReader] | None = None  # of an unstreamed response; None: always streamed
