"""Events of llama.cpp's /completion → Chunks.

llama.cpp supports stop strings and the model's own end of sequence, but no other stop tokens. Where an answer ends at
another token, `LlamaCppStreamDecoder` sets `stopped` and builds the last chunk itself; the reader then closes the
stream, which cancels the generation.
"""

from collections.abc import Iterable, Sequence

from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, Sampling, TokenCounts
from antiphon.engines.base import clamp_logprob, clamp_token_count
from antiphon.engines.llamacpp.wire import LlamaCppCandidate, LlamaCppEvent, LlamaCppProbability
from antiphon.errors import EngineFailed
from antiphon.protocol.types.parts import Logprob, TopLogprob


def read_chunks(events: Iterable[LlamaCppEvent], sampling: Sampling) -> list[Chunk]:
    return [_to_chunk(event, sampling) for event in events if event.prompt_progress is None]


def _to_chunk(event: LlamaCppEvent, sampling: Sampling) -> Chunk:
    if event.stop:
        return _to_last_chunk(event, sampling)
    if event.error is not None:
        raise EngineFailed(f"The engine failed: {event.error.message}.")
    chunk = Chunk(text=event.content, tokens=tuple(event.tokens))
    if event.completion_probabilities:
        chunk.logprobs = tuple(_to_logprobs(event.completion_probabilities, sampling.logprobs or 0))
    return chunk


def _to_last_chunk(event: LlamaCppEvent, sampling: Sampling) -> Chunk:
    finish: FinishKind = "stop" if event.stop_type in ("eos", "word") else "length"
    counts = TokenCounts(
        input_tokens=clamp_token_count(event.tokens_evaluated),
        cached_tokens=clamp_token_count(event.cached),
        output_tokens=clamp_token_count(event.tokens_predicted),
    )
    stop_text = event.stopping_word if sampling.include_stop_str_in_output else ""
    last = Chunk(text=event.content + stop_text, tokens=tuple(event.tokens), finish=finish, counts=counts)
    if event.stopping_word:
        last.extras = EngineExtras(stop_reason=event.stopping_word)
    return last


def _to_logprobs(probabilities: Iterable[LlamaCppProbability], limit: int) -> Iterable[Logprob]:
    for token in probabilities:
        if token.bytes:  # empty: the end of the answer, or a part of a possible stop string
            top = [_to_top_logprob(candidate) for candidate in token.top_logprobs[:limit]]
            yield Logprob(token=token.token, bytes=token.bytes, logprob=clamp_logprob(token.logprob), top_logprobs=top)


def _to_top_logprob(candidate: LlamaCppCandidate) -> TopLogprob:
    return TopLogprob(token=candidate.token, bytes=candidate.bytes, logprob=clamp_logprob(candidate.logprob))


class LlamaCppStreamDecoder:
    """Converts the events of one answer to chunks and ends it at the client's stop tokens."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.stopped = False  # the answer has ended; ignore further events
        self._sampling = sampling
        self._prompt = prompt
        self._stop_tokens = frozenset(sampling.stop_token_ids)
        self._prompt_ids_pending = sampling.return_token_ids
        self._cached_tokens = 0
        self._output_tokens = 0

    def decode(self, events: Iterable[LlamaCppEvent]) -> list[Chunk]:
        """Convert events to chunks. Runs for every token."""
        if self._stop_tokens:
            events = self._note_cached_tokens(events)
        chunks = read_chunks(events, self._sampling)
        if self._stop_tokens:
            chunks = self._cut_at_stop_token(chunks)
        if self._prompt_ids_pending and chunks:
            self._prompt_ids_pending = False
            _get_extras(chunks[0]).prompt_token_ids = list(self._prompt)
        return chunks

    def _note_cached_tokens(self, events: Iterable[LlamaCppEvent]) -> list[LlamaCppEvent]:
        """Record the number of cached prompt tokens from progress events."""
        events = list(events)
        for event in events:
            if event.prompt_progress is not None:
                self._cached_tokens = clamp_token_count(event.prompt_progress.cache)
        return events

    def _cut_at_stop_token(self, chunks: list[Chunk]) -> list[Chunk]:
        for index, chunk in enumerate(chunks):
            self._output_tokens += len(chunk.tokens)
            if chunk.finish is None and (found := self._stop_tokens.intersection(chunk.tokens)):
                self.stopped = True
                return [*chunks[:index], self._build_last_chunk(chunk, min(found))]
        return chunks

    def _build_last_chunk(self, chunk: Chunk, token: int) -> Chunk:
        counts = TokenCounts(
            input_tokens=len(self._prompt), cached_tokens=self._cached_tokens, output_tokens=self._output_tokens
        )
        text = chunk.text if self._sampling.include_stop_str_in_output else ""
        return Chunk(
            text=text, tokens=chunk.tokens, finish="stop", counts=counts, extras=EngineExtras(stop_reason=token)
        )


def _get_extras(chunk: Chunk) -> EngineExtras:
    if chunk.extras is None:
        chunk.extras = EngineExtras()
    return chunk.extras
