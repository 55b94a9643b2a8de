"""llama.cpp's dialect: Work → the body of its /completion, and its events → Chunks.

One answer as it comes in: events → chunks, and its end at a token of the client's choosing.

llama.cpp knows stop strings and the model's own end. Where an answer ends at another token, whoever reads stops reading
there, which cancels the rest; the last chunk is then ours to make.
"""

from collections.abc import Iterable, Sequence

from msgspec import MsgspecError, Struct, field
from msgspec.json import Decoder, Encoder

from antiphon.core.prompt import Chunk, Counts, Extras, Finish, Json, Sampling
from antiphon.engines.base import believed
from antiphon.engines.client import Refused
from antiphon.engines.llamacpp.constraints import Guide
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, InvalidValue
from antiphon.protocol.types.response import Logprob, TopLogprob

HONOURS = frozenset({
    "max_output_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "skip_special_tokens",
    "top_logprobs", "logprobs", "n", "text.format", "chat_template_kwargs", "logit_bias", "stop_token_ids",
    "return_token_ids", "grammar.regex", "grammar.lark", "grammar.gbnf",
})  # fmt: skip
LACKS = {
    "structural_tag": "llama.cpp knows no structural tags.",
    "min_tokens": "llama.cpp has nothing like it.",
    "prompt_logprobs": "llama.cpp computes none for the tokens of a prompt.",
}

# Of the last event; it would otherwise repeat the whole prompt and every setting.
FIELDS = (
    "content", "tokens", "stop", "stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated",
    "timings/cache_n",
)  # fmt: skip
RANDOM_SEED = 2**32 - 1  # what llama.cpp takes for «choose one»
LEAST_LOGPROB = -9999.0

encode = Encoder().encode


class Completion(Struct, kw_only=True, omit_defaults=True):
    """What is left out is llama.cpp's to choose."""

    prompt: Sequence[int]
    n_predict: int = -2
    stream: bool = False
    return_tokens: bool = False
    return_progress: bool = False  # without a word before the first token, a prompt could not be cancelled
    cache_prompt: bool | None = None
    response_fields: Sequence[str] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    n_probs: int = 0
    preserved_tokens: Sequence[str] = ()
    json_schema: Json | None = None
    grammar: str = ""
    logit_bias: Sequence[tuple[int | str, float]] = ()


class Candidate(Struct, gc=False):
    token: str
    bytes: list[int]
    logprob: float


class Probability(Candidate):
    top_logprobs: list[Candidate] = []


class Fault(Struct):
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class Progress(Struct):
    """Through a prompt: so many of its tokens did not have to be computed."""

    cache: int = 0


class Event(Struct, kw_only=True):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    prompt_progress: Progress | None = None
    completion_probabilities: list[Probability] = []
    stop_type: str = ""
    stopping_word: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    cached: int = field(default=0, name="timings/cache_n")
    error: Fault | None = None


class Tokens(Struct):
    tokens: list[int]


class Text(Struct):
    content: str


class Failure(Struct):
    error: Fault


EVENT = Decoder(Event)
TOKENS = Decoder(Tokens)
TEXT = Decoder(Text)
FAILURE = Decoder(Failure)


def completion(
    tokens: Sequence[int], sampling: Sampling, guide: Guide, shown: Sequence[str], *, cached: bool = True
) -> Completion:
    """`shown` are the control tokens that are not to be hidden; not `cached`: all of the prompt is computed, so that
    nobody learns from the time it takes what others asked."""
    seed = sampling.seed
    return Completion(
        prompt=tokens,
        n_predict=-1 if sampling.max_tokens is None else sampling.max_tokens,
        stream=True,
        return_tokens=True,
        return_progress=True,
        cache_prompt=cached,
        response_fields=FIELDS,
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repeat_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        seed=seed if seed != RANDOM_SEED else RANDOM_SEED - 1,
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos,
        n_probs=0 if sampling.logprobs is None else max(sampling.logprobs, 1),
        preserved_tokens=shown,
        json_schema=guide.schema,
        grammar=guide.grammar,
        logit_bias=tuple([(int(token), bias) for token, bias in (sampling.logit_bias or {}).items()]),
    )


def trial(prompt: Sequence[int], guide: Guide, forbidden: int | str) -> Completion:
    """One token of which a grammar must not let through what is wanted most."""
    return Completion(
        prompt=prompt,
        n_predict=1,
        temperature=0.0,
        return_tokens=True,
        response_fields=("content", "tokens"),
        json_schema=guide.schema,
        grammar=guide.grammar,
        logit_bias=((forbidden, 1000.0),),
    )


def explained(refused: Refused) -> AntiphonError:
    """llama.cpp's reason, as the client should hear it."""
    try:
        fault = FAILURE.decode(refused.body).error
    except MsgspecError:
        return refused
    if fault.type == "exceed_context_size_error":
        return ContextTooLong(
            f"The input has {fault.n_prompt_tokens} tokens, and this model takes {fault.n_ctx} with the answer.",
            param="input",
        )
    if refused.answered == 400 and "schema" in fault.message:
        return InvalidValue(f"This schema cannot be enforced: {fault.message}.", param="text.format.schema")
    if refused.answered == 400 and "grammar" in fault.message:
        return InvalidValue(f"This grammar cannot be enforced: {fault.message}.", param="text.format")
    if refused.answered == 400:
        return InvalidValue(f"The engine refuses this input: {fault.message}.", param="input")
    return EngineFailed(f"The engine failed: {fault.message}.")


def read_chunks(events: Iterable[Event], sampling: Sampling) -> list[Chunk]:
    return [_chunk(event, sampling) for event in events if event.prompt_progress is None]


def _chunk(event: Event, sampling: Sampling) -> Chunk:
    if event.stop:
        return _last(event, sampling)
    if event.error is not None:
        raise EngineFailed(f"The engine failed: {event.error.message}.")
    chunk = Chunk(text=event.content, tokens=tuple(event.tokens))
    if event.completion_probabilities:
        chunk.logprobs = tuple(_logprobs(event.completion_probabilities, sampling.logprobs or 0))
    return chunk


def _last(event: Event, sampling: Sampling) -> Chunk:
    finish: Finish = "stop" if event.stop_type in ("eos", "word") else "length"
    counts = Counts(
        input_tokens=believed(event.tokens_evaluated),
        cached_tokens=believed(event.cached),
        output_tokens=believed(event.tokens_predicted),
    )
    stopped_by = event.stopping_word if sampling.include_stop_str_in_output else ""
    last = Chunk(text=event.content + stopped_by, tokens=tuple(event.tokens), finish=finish, counts=counts)
    if event.stopping_word:
        last.extras = Extras(stop_reason=event.stopping_word)
    return last


def _logprobs(said: Iterable[Probability], most: int) -> Iterable[Logprob]:
    for token in said:
        if token.bytes:  # none: the end of the answer, or a part of what may become a stop string
            top = [_top(candidate) for candidate in token.top_logprobs[:most]]
            yield Logprob(token=token.token, bytes=token.bytes, logprob=_finite(token.logprob), top_logprobs=top)


def _top(candidate: Candidate) -> TopLogprob:
    return TopLogprob(token=candidate.token, bytes=candidate.bytes, logprob=_finite(candidate.logprob))


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class Answer:
    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.cut = False  # it is over, whatever else may come
        self._sampling = sampling
        self._prompt = prompt
        self._stops = frozenset(sampling.stop_token_ids)
        self._tells_prompt = sampling.return_token_ids
        self._cached = 0
        self._said = 0  # tokens

    def take(self, events: Iterable[Event]) -> list[Chunk]:
        """On the token path."""
        if self._stops:
            events = self._counted(events)
        chunks = read_chunks(events, self._sampling)
        if self._stops:
            chunks = self._stopped(chunks)
        if self._tells_prompt and chunks:
            self._tells_prompt = False
            _extras(chunks[0]).prompt_token_ids = list(self._prompt)
        return chunks

    def _counted(self, events: Iterable[Event]) -> list[Event]:
        """Of the progress through the prompt: how much of it did not have to be computed."""
        events = list(events)
        for event in events:
            if event.prompt_progress is not None:
                self._cached = believed(event.prompt_progress.cache)
        return events

    def _stopped(self, chunks: list[Chunk]) -> list[Chunk]:
        for number, chunk in enumerate(chunks):
            self._said += len(chunk.tokens)
            if chunk.finish is None and (found := self._stops.intersection(chunk.tokens)):
                self.cut = True
                return [*chunks[:number], self._last(chunk, min(found))]
        return chunks

    def _last(self, chunk: Chunk, token: int) -> Chunk:
        counts = Counts(input_tokens=len(self._prompt), cached_tokens=self._cached, output_tokens=self._said)
        text = chunk.text if self._sampling.include_stop_str_in_output else ""
        return Chunk(text=text, tokens=chunk.tokens, finish="stop", counts=counts, extras=Extras(stop_reason=token))


def _extras(chunk: Chunk) -> Extras:
    if chunk.extras is None:
        chunk.extras = Extras()
    return chunk.extras
