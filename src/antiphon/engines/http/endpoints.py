"""Generation endpoints of engines: chats, or raw prompts at one of three kinds of endpoint.

An endpoint defines its path, its body and the reader of its response; `base.py` sends the requests.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from msgspec.json import Decoder

from antiphon.core.prompt import Chunk, GenerationRequest, Sampling
from antiphon.core.stop_strings import StopStringCutter
from antiphon.engines.http.body import ChatBody, RawBody
from antiphon.engines.http.readers import wire
from antiphon.engines.http.readers import wire as raw_wire
from antiphon.engines.http.readers.chat_reader import ChatCompletionReader
from antiphon.engines.http.readers.completion_reader import LlamaCppReader, TextCompletionReader
from antiphon.engines.http.readers.sglang_reader import SglangReader
from antiphon.engines.http.readers.whole_response import parse_chat_response, parse_text_response
from antiphon.engines.llamacpp.wire import EVENT_DECODER
from antiphon.errors import AntiphonError


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

    def body(self, request: GenerationRequest, *, stream: bool) -> bytes: ...

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        """Return the decoder of events."""
        ...

    def reader(self, request: GenerationRequest) -> ResponseReader: ...

    def parse_response(self, label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
        """Parse an unstreamed response; may raise one of DECODE_ERRORS."""
        ...


class ChatEndpoint:
    """`/v1/chat/completions`.

    `includes_stop`: the engine includes the stop string in its output. `needs_full_decoder`: it sends extra data in
    fields that are slower to decode.
    """

    can_generate_whole = True
    parse_response = staticmethod(parse_chat_response)

    def __init__(self, label: str, path: str, body: ChatBody, *, includes_stop: bool, needs_full_decoder: bool) -> None:
        self.path = path
        self._label = label
        self.body = body.build
        self._includes_stop = includes_stop
        self._needs_full_decoder = needs_full_decoder

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        return (
            wire.FULL_COMPLETION if self._needs_full_decoder or request.sampling.return_token_ids else wire.COMPLETION
        )

    def reader(self, request: GenerationRequest) -> ResponseReader:
        full = self._needs_full_decoder or request.sampling.return_token_ids
        return ChatCompletionReader(
            self._label, request.sampling, make_stop_cut(request.sampling, self._includes_stop), full
        )


class TextCompletionEndpoint:
    """`/v1/completions`."""

    can_generate_whole = True
    parse_response = staticmethod(parse_text_response)

    def __init__(self, label: str, path: str, body: RawBody, *, includes_stop: bool) -> None:
        self.path = path
        self._label = label
        self.body = body.build
        self._includes_stop = includes_stop

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        return raw_wire.TEXT_COMPLETION

    def reader(self, request: GenerationRequest) -> ResponseReader:
        return TextCompletionReader(self._label, request.sampling, make_stop_cut(request.sampling, self._includes_stop))


class _StreamOnlyEndpoint:
    """An endpoint that is only used with streaming."""

    can_generate_whole = False

    def __init__(self, label: str, path: str, body: RawBody) -> None:
        self.path = path
        self._label = label
        self.body = body.build

    def parse_response(self, label: str, data: bytes, sampling: Sampling) -> list[Chunk]:
        raise TypeError("this answer is always streamed")


class SglangEndpoint(_StreamOnlyEndpoint):
    """SGLang's `/generate`. `cumulative`: each event repeats the output so far."""

    cumulative = True

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        return raw_wire.GENERATE_EVENT

    def reader(self, request: GenerationRequest) -> ResponseReader:
        return SglangReader(self._label, request.sampling, cumulative=self.cumulative)


class LlamaCppEndpoint(_StreamOnlyEndpoint):
    """llama.cpp's `/completion`."""

    def decoder(self, request: GenerationRequest) -> Decoder[Any]:
        return EVENT_DECODER

    def reader(self, request: GenerationRequest) -> ResponseReader:
        return LlamaCppReader(self._label, request)


def make_stop_cut(sampling: Sampling, includes_stop: bool) -> StopStringCutter | None:
    if not includes_stop or not sampling.stop or sampling.include_stop_str_in_output:
        return None
    return StopStringCutter(sampling.stop)
