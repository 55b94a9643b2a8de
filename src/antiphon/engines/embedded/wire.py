"""The wire format between an embedded engine and its child process, which is that of llama.cpp's server: replies,
errors, and events, which become chunks.

llama.cpp supports stop strings and the model's own end of sequence, but no other stop tokens. Where an answer ends at
another token, `LlamaCppStreamDecoder` sets `stopped` and builds the last chunk itself; the reader then closes the
stream, which cancels the generation.
"""

from collections.abc import Iterable, Sequence

from msgspec import MsgspecError, Struct, field
from msgspec.json import Decoder, Encoder

from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, Sampling, TokenCounts
from antiphon.engines.base import clamp_logprob, clamp_token_count
from antiphon.engines.client import EngineHttpError
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, InvalidValue
from antiphon.protocol.types.parts import Logprob

encode = Encoder().encode


class LlamaCppError(Struct):
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class PromptProgress(Struct):
    """Progress of the prompt; `cache` counts the prompt tokens that were already cached."""

    cache: int = 0


class LlamaCppEvent(Struct, kw_only=True):
    """An event of /completion, a reply of /tokenize or /detokenize, or an error response."""

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[Logprob] = []  # in the form of the protocol
    stop_type: str = ""
    stopping_word: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    cached: int = field(default=0, name="timings/cache_n")
    error: LlamaCppError | None = None


EVENT_DECODER = Decoder(LlamaCppEvent)


def to_client_error(error: EngineHttpError) -> AntiphonError:
    """Convert an error response of llama.cpp to an error for the client."""
    try:
        details = EVENT_DECODER.decode(error.body).error
    except MsgspecError:
        details = None
    if details is None:
        return error
    if details.type == "exceed_context_size_error":
        return ContextTooLong(
            f"The input has {details.n_prompt_tokens} tokens, and this model takes {details.n_ctx} with the answer.",
            param="input",
        )
    if error.status_code != 400:
        return EngineFailed(f"The engine failed: {details.message}.")
    if "schema" in details.message:
        return InvalidValue(f"This schema cannot be enforced: {details.message}.", param="text.format.schema")
    if "grammar" in details.message:
        return InvalidValue(f"This grammar cannot be enforced: {details.message}.", param="text.format")
    return InvalidValue(f"The engine refuses this input: {details.message}.", param="input")


def _to_chunk(event: LlamaCppEvent, sampling: Sampling) -> Chunk:
    if event.stop:
        return _to_last_chunk(event, sampling)
    if event.error is not None:
        raise EngineFailed(f"The engine failed: {event.error.message}.")
    chunk = Chunk(text=event.content, tokens=tuple(event.tokens))
    if event.completion_probabilities:
        chunk.logprobs = tuple(_bound_logprobs(event.completion_probabilities, sampling.logprobs or 0))
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


def _bound_logprobs(logprobs: Iterable[Logprob], limit: int) -> Iterable[Logprob]:
    for token in logprobs:
        if token.bytes:  # empty: the end of the answer, or a part of a possible stop string
            token.top_logprobs = token.top_logprobs[:limit]
            for candidate in (token, *token.top_logprobs):
                candidate.logprob = clamp_logprob(candidate.logprob)
            yield token


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
        chunks: list[Chunk] = []
        for event in events:
            if event.prompt_progress is None:
                chunks.append(_to_chunk(event, self._sampling))
            else:
                self._cached_tokens = clamp_token_count(event.prompt_progress.cache)
        if self._stop_tokens:
            chunks = self._cut_at_stop_token(chunks)
        if self._prompt_ids_pending and chunks:
            self._prompt_ids_pending = False
            chunks[0].extras = extras = chunks[0].extras or EngineExtras()
            extras.prompt_token_ids = list(self._prompt)
        return chunks

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
