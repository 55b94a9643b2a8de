"""Generation endpoints of engines: a path, its request bodies and the reader of its responses.

`base.py` sends the requests. Readers of endpoints that only one engine has are in the module of its adapter.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec.json import Decoder

from antiphon.core.prompt import Chunk, GenerationRequest, Sampling
from antiphon.core.stop_strings import StopStringCutter
from antiphon.engines.http.readers import wire
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


class EngineEndpoint:
    """A path of an engine with its request and response formats. Responses are always streamed.

    `make_reader` is called with the label of the engine and the request.
    """

    can_generate_whole = False  # whether unstreamed requests are supported

    def __init__(
        self,
        label: str,
        path: str,
        body: BodyBuilder,
        decoder: Decoder[Any],
        make_reader: Callable[[str, GenerationRequest], ResponseReader],
    ) -> None:
        self.path = path
        self.body = body
        self._label = label
        self._decoder = decoder
        self._make_reader = make_reader

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        """Return the decoder of events."""
        return self._decoder

    def reader(self, request: GenerationRequest) -> ResponseReader:
        return self._make_reader(self._label, request)

    def parse_response(self, label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
        """Parse an unstreamed response; may raise one of DECODE_ERRORS."""
        raise TypeError("this answer is always streamed")


class OpenAiEndpoint(EngineEndpoint):
    """`/v1/chat/completions` or `/v1/completions`, streamed or not.

    `includes_stop`: the engine includes the stop string in its streamed output.
    """

    can_generate_whole = True

    def __init__(
        self, label: str, path: str, body: BodyBuilder, reader: type[ChatCompletionReader], *, includes_stop: bool
    ) -> None:
        super().__init__(label, path, body, wire.COMPLETION, self._make_stream_reader)
        self._reader = reader
        self._includes_stop = includes_stop

    def _make_stream_reader(self, label: str, request: GenerationRequest) -> ChatCompletionReader:
        sampling = request.sampling
        must_cut = self._includes_stop and sampling.stop and not sampling.include_stop_str_in_output
        return self._reader(label, sampling, StopStringCutter(sampling.stop) if must_cut else None)

    def parse_response(self, label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
        return self._reader(label, sampling).read_whole(wire.COMPLETION.decode(data))
