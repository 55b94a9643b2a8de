"""The ways to ask an engine: a chat, or a raw prompt at one of three kinds of endpoints.

A way knows the path, the body and how the answer is read; who goes it is base.py's business.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from msgspec.json import Decoder

from antiphon.core.prompt import Chunk, Sampling, Work
from antiphon.core.stop_strings import StopCut
from antiphon.engines.http.body import ChatBody, RawBody
from antiphon.engines.http.readers import wire
from antiphon.engines.http.readers import wire as raw_wire
from antiphon.engines.http.readers.chat_reader import ChatReader, chat_answers
from antiphon.engines.http.readers.completion_reader import CompletionReader, TextReader, text_answers
from antiphon.engines.http.readers.sglang_reader import GenerateReader
from antiphon.engines.llamacpp.wire import EVENT
from antiphon.errors import AntiphonError


class Reader(Protocol):
    """One for each answer. What is wrong with it is told after what came before."""

    fault: AntiphonError | None
    ended: bool  # the last chunk was given
    cut: bool  # here, although the engine would go on

    @property
    def finished(self) -> bool:
        """Whether the engine has said why it stopped."""
        ...

    def feed(self, events: Iterable[Any]) -> list[Chunk]: ...

    def end(self) -> list[Chunk]:
        """When no more events come."""
        ...


class Way(Protocol):
    path: str
    wholes: bool  # can it be gone without a stream?

    def body(self, work: Work, *, stream: bool) -> bytes: ...

    def decoder(self, work: Work) -> Decoder[Any]:
        """Of events."""
        ...

    def reader(self, work: Work) -> Reader: ...

    def answers(self, who: str, said: bytes, sampling: Sampling) -> list[Chunk]:
        """Of an answer that came at once. It may be UNREADABLE."""
        ...


class ChatWay:
    """`includes_stop`: the engine sends the stop string along; `tells_all`: what it says beside the answer is under
    names that cost time to look for."""

    wholes = True
    answers = staticmethod(chat_answers)

    def __init__(self, who: str, path: str, body: ChatBody, *, includes_stop: bool, tells_all: bool) -> None:
        self.path = path
        self._who = who
        self.body = body.make
        self._includes_stop = includes_stop
        self._tells_all = tells_all

    def decoder(self, work: Work) -> Decoder[Any]:
        return wire.FULL_COMPLETION if self._tells_all or work.sampling.return_token_ids else wire.COMPLETION

    def reader(self, work: Work) -> Reader:
        full = self._tells_all or work.sampling.return_token_ids
        return ChatReader(self._who, work.sampling, cut_for(work.sampling, self._includes_stop), full)


class TextWay:
    """`/v1/completions`."""

    wholes = True
    answers = staticmethod(text_answers)

    def __init__(self, who: str, path: str, body: RawBody, *, includes_stop: bool) -> None:
        self.path = path
        self._who = who
        self.body = body.make
        self._includes_stop = includes_stop

    def decoder(self, work: Work) -> Decoder[Any]:
        return raw_wire.TEXT_COMPLETION

    def reader(self, work: Work) -> Reader:
        return TextReader(self._who, work.sampling, cut_for(work.sampling, self._includes_stop))


class _Streamed:
    """A way that is only ever gone with a stream."""

    wholes = False

    def __init__(self, who: str, path: str, body: RawBody) -> None:
        self.path = path
        self._who = who
        self.body = body.make

    def answers(self, who: str, said: bytes, sampling: Sampling) -> list[Chunk]:
        raise TypeError("this answer is always streamed")


class GenerateWay(_Streamed):
    """SGLang's `/generate`. `whole`: its events repeat what was said before them."""

    whole = True

    def decoder(self, work: Work) -> Decoder[Any]:
        return raw_wire.GENERATED

    def reader(self, work: Work) -> Reader:
        return GenerateReader(self._who, work.sampling, whole=self.whole)


class CompletionWay(_Streamed):
    """llama.cpp's `/completion`."""

    def decoder(self, work: Work) -> Decoder[Any]:
        return EVENT

    def reader(self, work: Work) -> Reader:
        return CompletionReader(self._who, work)


def cut_for(sampling: Sampling, includes_stop: bool) -> StopCut | None:
    if not includes_stop or not sampling.stop or sampling.include_stop_str_in_output:
        return None
    return StopCut(sampling.stop)
