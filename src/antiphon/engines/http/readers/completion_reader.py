"""Completions of raw prompts → Chunks whose text is raw, with the ids of its tokens where they are told.

An answer ends as one to a chat does, so reading.py's reader is taken for everything but the pieces themselves.

Events of llama.cpp's own /completion → Chunks, as the embedded engine reads them.
"""

from collections.abc import Iterable, Iterator

from antiphon.core.prompt import Chunk, Extras, Sampling, TokenPrompt, Work
from antiphon.engines.http.error_mapping import said_error
from antiphon.engines.http.readers.chat_reader import ChatReader, finite, logprob_of, told
from antiphon.engines.http.readers.wire import TEXT_COMPLETION, TextChoice, TextCompletion, TextLogprobs
from antiphon.engines.llamacpp.wire import Answer, Event
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.response import Logprob, TopLogprob


class TextReader(ChatReader, eq=False):
    def feed(self, events: Iterable[TextCompletion]) -> list[Chunk]:  # type: ignore[override]  # of another endpoint
        """The token path."""
        chunks: list[Chunk] = []
        plainly = self._cut is None and not self._full
        for event in events:
            if event.error is not None:
                self.fault = said_error(self._who, event.error)
                break
            if event.choices:
                choice = event.choices[0]
                if plainly and choice.text and self._finish is None and not (
                    choice.finish_reason or choice.index or choice.logprobs or choice.prompt_token_ids
                ):  # fmt: skip
                    chunks.append(Chunk(text=choice.text, tokens=tuple(choice.token_ids or ())))
                else:
                    self._hear(choice, chunks)
                if self.fault is not None:
                    break
            if event.usage is not None:
                self._usage = event.usage
                if event.system_fingerprint is not None or event.service_tier is not None:
                    beside = self._beside()
                    beside.system_fingerprint, beside.service_tier = event.system_fingerprint, event.service_tier
                if self._finish is not None:
                    chunks.append(self._last())
                    break
        return chunks

    def _hear(self, choice: TextChoice, chunks: list[Chunk]) -> None:  # type: ignore[override]  # of another endpoint
        if choice.index or self._finish is not None:
            return
        text = choice.text or ""
        chunk = Chunk(
            text=text if self._cut is None else self._cut.feed(text),
            tokens=tuple(choice.token_ids or ()),
        )
        if choice.prompt_token_ids and self._sampling.return_token_ids:
            chunk.extras = Extras(prompt_token_ids=choice.prompt_token_ids)
        if choice.logprobs is not None and (most := self._sampling.logprobs) is not None:
            chunk.logprobs = tuple(_logprobs(choice, choice.logprobs, most))
        if chunk.text or chunk.tokens or chunk.logprobs or chunk.extras:
            chunks.append(chunk)
        if choice.finish_reason:
            self._stop(choice.finish_reason, choice.stop_reason)

    def _said_once(self, completion: TextCompletion, choice: TextChoice) -> Extras | None:  # type: ignore[override]  # of another endpoint
        return told(completion, self._extras, choice.prompt_logprobs, None)


def text_answers(who: str, said: bytes, sampling: Sampling) -> list[Chunk]:
    """All of an answer that came at once."""
    return TextReader.whole(who, TEXT_COMPLETION.decode(said), sampling)


def _logprobs(choice: TextChoice, said: TextLogprobs, most: int) -> Iterator[Logprob]:
    if said.content is not None:
        yield from [logprob_of(one, most) for one in said.content]
        return
    tokens, numbers, tops = said.tokens or [], said.token_logprobs or [], said.top_logprobs or []
    if choice.finish_reason == "stop" and tokens and not (choice.text or "").endswith(tokens[-1]):
        tokens = tokens[:-1]  # the one that ended the answer is no part of it
    for at, token in enumerate(tokens):
        top = tops[at] if at < len(tops) else None
        logprob = finite(numbers[at] if at < len(numbers) else None)
        yield Logprob(token=token, bytes=list(token.encode()), logprob=logprob, top_logprobs=_top(top or {}, most))


def _top(candidates: dict[str, float | None], most: int) -> list[TopLogprob]:
    """Likeliest first: what was chosen may stand before those that are likelier."""
    ranked = sorted(((finite(value), token) for token, value in candidates.items()), reverse=True)[:most]
    return [TopLogprob(token=token, bytes=list(token.encode()), logprob=value) for value, token in ranked]


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
