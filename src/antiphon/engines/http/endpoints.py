"""Generation endpoints of engines: a path, its request bodies and the reader of its responses.

`base.py` sends the requests. Endpoints that only one engine has are in the module of its adapter.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec.json import Decoder

from antiphon.core.prompt import Chunk, GenerationRequest, Sampling
from antiphon.core.stop_strings import StopStringCutter
from antiphon.engines.http.body import RawBody
from antiphon.engines.http.readers import wire
from antiphon.engines.http.readers.completion_reader import ChatCompletionReader
from antiphon.errors import AntiphonError, EngineFailed


class ResponseReader(Protocol):
    """Reads one response. An error is reported through `fault` after the chunks before it."""

    fault: AntiphonError | None
    ended: bool  # the last chunk was returned
    cut: bool  # output was cut here although the engine would continue

    @property
    def finished(self) -> bool:
        """Whether the engine has sent its finish reason."""
        ...

    def feed(self, events: Iterable[Any]) -> list[Chunk]: ...

    def end(self) -> list[Chunk]:
        """Return the last chunks when no more events follow."""
        ...


class EngineEndpoint(Protocol):
    """A path of an engine with its request and response formats."""

    path: str
    can_generate_whole: bool  # whether unstreamed requests are supported

    @property
    def body(self) -> "BodyBuilder": ...

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        """Return the decoder of events."""
        ...

    def reader(self, request: GenerationRequest) -> ResponseReader: ...

    def parse_response(self, label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
        """Parse an unstreamed response; may raise one of DECODE_ERRORS."""
        ...


class BodyBuilder(Protocol):
    def __call__(self, request: GenerationRequest, *, stream: bool) -> bytes: ...


class OpenAiEndpoint:
    """`/v1/chat/completions` or `/v1/completions`.

    `includes_stop`: the engine includes the stop string in its streamed output.
    """

    can_generate_whole = True

    def __init__(
        self, label: str, path: str, body: BodyBuilder, reader: type[ChatCompletionReader], *, includes_stop: bool
    ) -> None:
        self.path = path
        self.body = body
        self._label = label
        self._reader = reader
        self._includes_stop = includes_stop

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        return wire.COMPLETION

    def reader(self, request: GenerationRequest) -> ResponseReader:
        sampling = request.sampling
        must_cut = self._includes_stop and sampling.stop and not sampling.include_stop_str_in_output
        return self._reader(self._label, sampling, StopStringCutter(sampling.stop) if must_cut else None)

    def parse_response(self, label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
        return self._reader(label, sampling).read_whole(wire.COMPLETION.decode(data))


class StreamingEndpoint:
    """An endpoint of one engine for raw prompts, which is only used with streaming."""

    can_generate_whole = False

    def __init__(
        self, label: str, path: str, body: RawBody, decoder: Decoder[Any], reader: Callable[..., ResponseReader]
    ) -> None:
        """`reader` is called with the label and the request."""
        self.path = path
        self.body = body.build
        self._label = label
        self._decoder = decoder
        self._reader = reader

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        return self._decoder

    def reader(self, request: GenerationRequest) -> ResponseReader:
        return self._reader(self._label, request)

    def parse_response(self, label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
        raise TypeError("this answer is always streamed")


class StreamingReader:
    """Base of readers for streams whose last event has the finish reason and the counts."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.ended = False
        self.cut = False
        self.fault: AntiphonError | None = None

    @property
    def finished(self) -> bool:
        return self.ended

    def end(self) -> list[Chunk]:
        if not self.ended:
            raise EngineFailed(f"{self._label} stopped in the middle of its answer.")
        return []
