"""SGLang's /generate → Chunks.

By default every event repeats the whole answer so far, its ids and its log probabilities; a server that was started
with --incremental-streaming-output sends only what is new. Which of both it is, it says of itself.
"""

from collections.abc import Iterable, Sequence

from antiphon.core.prompt import Chunk, Counts, Extras, Finish, Sampling
from antiphon.engines.base import believed
from antiphon.engines.http.error_mapping import said_error
from antiphon.engines.http.readers.chat_reader import FINISHES, finite
from antiphon.engines.http.readers.wire import Ending, Generated, MetaInfo, Told
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.response import Logprob, TopLogprob


class GenerateReader:
    def __init__(self, who: str, sampling: Sampling, *, whole: bool) -> None:
        """`whole`: events repeat what was said before them."""
        self._who = who
        self._alternatives = sampling.logprobs
        self._whole = whole
        self._letters = self._tokens = self._scored = 0  # that have been heard
        self._begun = False
        self.ended = False
        self.cut = False
        self.fault: AntiphonError | None = None

    @property
    def finished(self) -> bool:
        return self.ended

    def feed(self, events: Iterable[Generated]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for event in events:
            if event.error is not None:
                self.fault = said_error(self._who, event.error)
                break
            chunk = self._piece(event)
            if (ending := event.meta_info.finish_reason) is not None:
                if (finish := self._finish(ending)) is None:
                    break
                self._close(chunk, finish, event.meta_info)
                chunks.append(chunk)
                break
            if chunk.text or chunk.tokens or chunk.extras:
                chunks.append(chunk)
        return chunks

    def end(self) -> list[Chunk]:
        if not self.ended:
            raise EngineFailed(f"{self._who} stopped in the middle of its answer.")
        return []

    def _piece(self, event: Generated) -> Chunk:
        text, ids = event.text or "", event.output_ids or []
        if self._whole:
            text, ids = text[self._letters :], ids[self._tokens :]
        self._letters += len(text)
        self._tokens += len(ids)
        chunk = Chunk(text=text, tokens=tuple(ids))
        if self._alternatives is not None:
            chunk.logprobs = self._logprobs(event.meta_info)
        if not self._begun and event.prompt_token_ids:
            chunk.extras = Extras(prompt_token_ids=event.prompt_token_ids)
        self._begun = True
        return chunk

    def _logprobs(self, meta: MetaInfo) -> tuple[Logprob, ...]:
        said, tops = meta.output_token_logprobs or [], meta.output_top_logprobs or []
        begin = self._scored if self._whole else 0
        self._scored = begin + len(said[begin:])
        ending = meta.finish_reason
        if ending is not None and ending.type == "stop" and isinstance(ending.matched, int):
            said = said[:-1]  # the token that ended the answer is no part of it
        return tuple([
            _logprob(one, tops[at] if at < len(tops) else None, self._alternatives or 0)
            for at, one in enumerate(said)
            if at >= begin
        ])  # fmt: skip

    def _finish(self, ending: Ending) -> Finish | None:
        finish = FINISHES.get(ending.type)
        if finish is None:
            error = {"message": ending.message or ending.type[:80], "code": ending.status_code}
            self.fault = said_error(self._who, error)
        return finish

    def _close(self, chunk: Chunk, finish: Finish, meta: MetaInfo) -> None:
        self.ended = True
        read, said = believed(meta.prompt_tokens), believed(meta.completion_tokens)
        chunk.finish = finish
        chunk.counts = Counts(
            input_tokens=read,
            cached_tokens=min(read, believed(meta.cached_tokens)),
            output_tokens=said,
            reasoning_tokens=min(said, believed(meta.reasoning_tokens)),
        )
        matched = meta.finish_reason.matched if meta.finish_reason is not None else None
        if isinstance(matched, int | str):
            chunk.extras = chunk.extras or Extras()
            chunk.extras.stop_reason = matched


def _logprob(said: Told, top: Sequence[Told] | None, most: int) -> Logprob:
    tops = [TopLogprob(token=one[2] or "", bytes=_bytes(one), logprob=finite(one[0])) for one in (top or ())[:most]]
    return Logprob(token=said[2] or "", bytes=_bytes(said), logprob=finite(said[0]), top_logprobs=tops)


def _bytes(told: Told) -> list[int]:
    return list((told[2] or "").encode())
