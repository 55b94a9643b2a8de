"""Events of llama.cpp's own /completion → Chunks, as the embedded engine reads them."""

from collections.abc import Iterable

from antiphon.core.prompt import Chunk, TokenPrompt, Work
from antiphon.engines.http.refusals import said_error
from antiphon.engines.llamacpp.answer import Answer
from antiphon.engines.llamacpp.wire import Event
from antiphon.errors import AntiphonError, EngineFailed


class CompletionReader:
    def __init__(self, who: str, work: Work) -> None:
        self._who = who
        self._answer = Answer(work.sampling, work.prompt.tokens if isinstance(work.prompt, TokenPrompt) else ())
        self.ended = False
        self.cut = False
        self.fault: AntiphonError | None = None

    @property
    def finished(self) -> bool:
        return self.ended

    def feed(self, events: Iterable[Event]) -> list[Chunk]:
        chunks = self._answer.take(self._well(events))
        self.ended, self.cut = any(chunk.finish is not None for chunk in chunks), self._answer.cut
        return [chunk for chunk in chunks if chunk.text or chunk.tokens or chunk.finish is not None]

    def end(self) -> list[Chunk]:
        if not self.ended:
            raise EngineFailed(f"{self._who} stopped in the middle of its answer.")
        return []

    def _well(self, events: Iterable[Event]) -> Iterable[Event]:
        """Those before an error."""
        for event in events:
            if event.error is not None:
                self.fault = said_error(self._who, {"message": event.error.message, "type": event.error.type})
                return
            yield event
            if event.stop:
                return
