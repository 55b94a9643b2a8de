"""Reads completions of raw prompts into Chunks with raw text, and with token ids where the engine returns them.

Responses of `/v1/completions` end like those of a chat, so the reader inherits from `chat_reader.py`'s. Events of
llama.cpp's own `/completion` are read as the embedded engine reads them.
"""

from collections.abc import Iterable, Iterator

from antiphon.core.prompt import Chunk, EngineExtras, GenerationRequest, TokenPrompt
from antiphon.engines.clamp import clamp_logprob
from antiphon.engines.http.error_mapping import map_stream_error
from antiphon.engines.http.readers.chat_reader import ChatCompletionReader, to_logprob
from antiphon.engines.http.readers.wire import TextChoice, TextCompletion, TextLogprobs
from antiphon.engines.llamacpp.completion_stream import LlamaCppStreamDecoder
from antiphon.engines.llamacpp.wire import LlamaCppEvent
from antiphon.errors import AntiphonError, EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob


class TextCompletionReader(ChatCompletionReader, eq=False):
    """Reader of `/v1/completions`."""

    def feed(self, events: Iterable[TextCompletion]) -> list[Chunk]:  # type: ignore[override]  # another endpoint
        """Read events; this is the token path."""
        chunks: list[Chunk] = []
        is_fast = self._stop_cut is None and not self._full
        for event in events:
            if event.error is not None:
                self.fault = map_stream_error(self._label, event.error)
                break
            if event.choices:
                choice = event.choices[0]
                if is_fast and choice.text and self._finish is None and not (
                    choice.finish_reason or choice.index or choice.logprobs or choice.prompt_token_ids
                ):  # fmt: skip
                    chunks.append(Chunk(text=choice.text, tokens=tuple(choice.token_ids or ())))
                else:
                    self._read_choice(choice, chunks)
                if self.fault is not None:
                    break
            if event.usage is not None:
                self._usage = event.usage
                if event.system_fingerprint is not None or event.service_tier is not None:
                    extras = self._ensure_extras()
                    extras.system_fingerprint, extras.service_tier = event.system_fingerprint, event.service_tier
                if self._finish is not None:
                    chunks.append(self._final_chunk())
                    break
        return chunks

    def _read_choice(self, choice: TextChoice, chunks: list[Chunk]) -> None:  # type: ignore[override]  # another endpoint
        if choice.index or self._finish is not None:
            return
        text = choice.text or ""
        chunk = Chunk(
            text=text if self._stop_cut is None else self._stop_cut.feed(text),
            tokens=tuple(choice.token_ids or ()),
        )
        if choice.prompt_token_ids and self._sampling.return_token_ids:
            chunk.extras = EngineExtras(prompt_token_ids=choice.prompt_token_ids)
        if choice.logprobs is not None and (top_count := self._sampling.logprobs) is not None:
            chunk.logprobs = tuple(_to_logprobs(choice, choice.logprobs, top_count))
        if chunk.text or chunk.tokens or chunk.logprobs or chunk.extras:
            chunks.append(chunk)
        if choice.finish_reason:
            self._set_finish(choice.finish_reason, choice.stop_reason)


def _to_logprobs(choice: TextChoice, logprobs: TextLogprobs, top_count: int) -> Iterator[Logprob]:
    if logprobs.content is not None:
        yield from [to_logprob(one, top_count) for one in logprobs.content]
        return
    tokens, numbers, tops = logprobs.tokens or [], logprobs.token_logprobs or [], logprobs.top_logprobs or []
    if choice.finish_reason == "stop" and tokens and not (choice.text or "").endswith(tokens[-1]):
        tokens = tokens[:-1]  # the token that ended the output is not part of it
    for at, token in enumerate(tokens):
        top = tops[at] if at < len(tops) else None
        logprob = clamp_logprob(numbers[at] if at < len(numbers) else None)
        yield Logprob(
            token=token,
            bytes=list(token.encode()),
            logprob=logprob,
            top_logprobs=_to_top_logprobs(top or {}, top_count),
        )


def _to_top_logprobs(candidates: dict[str, float | None], top_count: int) -> list[TopLogprob]:
    """Sort the candidates by probability: the chosen one may come before more likely ones."""
    ranked = sorted(((clamp_logprob(value), token) for token, value in candidates.items()), reverse=True)[:top_count]
    return [TopLogprob(token=token, bytes=list(token.encode()), logprob=value) for value, token in ranked]


class LlamaCppReader:
    """Reader of llama.cpp's `/completion`."""

    def __init__(self, label: str, request: GenerationRequest) -> None:
        self._label = label
        self._answer = LlamaCppStreamDecoder(
            request.sampling, request.prompt.tokens if isinstance(request.prompt, TokenPrompt) else ()
        )
        self.ended = False
        self.cut = False
        self.fault: AntiphonError | None = None

    @property
    def finished(self) -> bool:
        return self.ended

    def feed(self, events: Iterable[LlamaCppEvent]) -> list[Chunk]:
        chunks = self._answer.decode(self._until_error(events))
        self.ended, self.cut = any(chunk.finish is not None for chunk in chunks), self._answer.stopped
        return [chunk for chunk in chunks if chunk.text or chunk.tokens or chunk.finish is not None]

    def end(self) -> list[Chunk]:
        if not self.ended:
            raise EngineFailed(f"{self._label} stopped in the middle of its answer.")
        return []

    def _until_error(self, events: Iterable[LlamaCppEvent]) -> Iterable[LlamaCppEvent]:
        """Yield the events before an error or the end."""
        for event in events:
            if event.error is not None:
                self.fault = map_stream_error(self._label, {"message": event.error.message, "type": event.error.type})
                return
            yield event
            if event.stop:
                return
