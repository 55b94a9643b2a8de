"""The wire format of llama.cpp's server: constraints and other fields of its requests, its replies and errors, and its
events, which become chunks.

A constraint is a JSON schema or a grammar, enforced by llguidance or by llama.cpp itself. llama.cpp supports stop
strings and the model's own end of sequence, but no other stop tokens. Where an answer ends at another token,
`LlamaCppStreamDecoder` sets `stopped` and builds the last chunk itself; the reader then closes the stream, which
cancels the generation.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET, MsgspecError, Struct, UnsetType, field
from msgspec.json import Decoder, Encoder

from antiphon.core.prompt import (
    Chunk,
    Constraint,
    EngineExtras,
    FinishKind,
    Grammar,
    Json,
    JsonObject,
    JsonSchema,
    Sampling,
    StructuralTag,
    TokenCounts,
)
from antiphon.engines.base import clamp_logprob, clamp_token_count
from antiphon.engines.client import EngineHttpError
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, InvalidValue, UnsupportedParameter
from antiphon.protocol.schemas.grammars import escape_lark_regex
from antiphon.protocol.schemas.schema_edits import bound_values, edit_keywords
from antiphon.protocol.types.parts import Logprob

SUPPORTED_FIELDS = frozenset({
    "max_output_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "skip_special_tokens",
    "top_logprobs", "logprobs", "n", "text.format", "chat_template_kwargs", "logit_bias", "stop_token_ids",
    "return_token_ids", "grammar.regex", "grammar.lark", "grammar.gbnf",
})  # fmt: skip
UNSUPPORTED_REASONS = {
    "structural_tag": "llama.cpp does not support structural tags.",
    "min_tokens": "llama.cpp has no such setting.",
    "prompt_logprobs": "llama.cpp computes no logprobs for prompt tokens.",
}

# Fields of the last event; without this list it would repeat the complete prompt and every setting.
RESPONSE_FIELDS = (
    "content", "tokens", "stop", "stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated",
    "timings/cache_n",
)  # fmt: skip
RANDOM_SEED = 2**32 - 1  # llama.cpp's value for a random seed

encode = Encoder().encode
FORMATS = frozenset({"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
LARK_HEADER = "%llguidance {}\n"


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


class LlamaCppConstraint(Struct, frozen=True, kw_only=True):
    """The `json_schema` or `grammar` field of a completion request."""

    schema: Json | None = None
    grammar: str = ""

    @property
    def fails_silently(self) -> bool:
        """Whether llguidance enforces it, which ignores what it cannot compile; llama.cpp's own grammars raise."""
        return self.schema is not None or self.grammar.startswith("%llguidance")


UNCONSTRAINED = LlamaCppConstraint()


def to_llamacpp_constraint(constraint: Constraint | None, *, bounded: bool = False) -> LlamaCppConstraint:
    """`bounded`: values that a schema does not limit get limits. llama.cpp's own grammars reject long repetitions, so
    that only llguidance supports these.
    """
    match constraint:
        case None:
            return UNCONSTRAINED
        case JsonObject():
            return LlamaCppConstraint(schema=_set_guidance_options({"type": "object"}, strict=True))
        case JsonSchema(schema=schema, strict=strict):
            edited = edit_keywords(schema, _drop_unknown_format)
            return LlamaCppConstraint(schema=_set_guidance_options(bound_values(edited) if bounded else edited, strict))
        case Grammar(syntax=syntax, definition=definition):
            return LlamaCppConstraint(grammar=_to_grammar(syntax, definition))
        case StructuralTag():
            raise UnsupportedParameter("Structural tags are not supported by the llamacpp engine.", param="text.format")


def _set_guidance_options(schema: Json, strict: bool) -> Json:
    """Set the options of llguidance: no optional white space, in which small models get lost.

    An unknown format is an annotation (JSON Schema 2020-12, Validation §7.2.1). Any other unknown keyword is an error,
    unless the client did not request a strict schema.
    """
    return {**schema, "x-guidance": {"whitespace_flexible": False, "lenient": not strict}}


def _to_grammar(syntax: str, definition: str) -> str:
    match syntax:
        case "regex":
            return f"{LARK_HEADER}start: /{escape_lark_regex(definition)}/"
        case "lark":
            return definition if definition.startswith("%llguidance") else LARK_HEADER + definition
        case _:
            return definition


def _drop_unknown_format(keyword: str, value: str) -> str | UnsetType:
    return UNSET if keyword == "format" and value not in FORMATS else value


def build_completion(
    tokens: Sequence[int],
    sampling: Sampling,
    constraint: LlamaCppConstraint,
    visible_tokens: Sequence[str],
    *,
    use_cache: bool = True,
) -> Json:
    """Build the body of a streamed completion.

    `visible_tokens` are the control tokens to include in the text. Without `use_cache` the complete prompt is computed,
    so that its duration reveals nothing about the prompts of other clients.
    """
    seed, bias = sampling.seed, sampling.logit_bias or {}
    return _omit_unset(
        prompt=tokens,
        n_predict=-1 if sampling.max_tokens is None else sampling.max_tokens,
        stream=True,
        return_tokens=True,
        return_progress=True,  # makes prefill cancellable: without output the disconnect is not noticed
        cache_prompt=use_cache,
        response_fields=RESPONSE_FIELDS,
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repeat_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        seed=seed if seed != RANDOM_SEED else RANDOM_SEED - 1,
        stop=sampling.stop or None,
        ignore_eos=sampling.ignore_eos or None,
        n_probs=None if sampling.logprobs is None else max(sampling.logprobs, 1),
        preserved_tokens=visible_tokens or None,
        json_schema=constraint.schema,
        grammar=constraint.grammar or None,
        logit_bias=[(int(token), value) for token, value in bias.items()] or None,
    )


def build_probe(prompt: Sequence[int], constraint: LlamaCppConstraint, forbidden: int | str) -> Json:
    """Build a request for one token that strongly favours `forbidden`, which an enforced grammar must reject."""
    return _omit_unset(
        prompt=prompt,
        n_predict=1,
        temperature=0.0,
        return_tokens=True,
        response_fields=("content", "tokens"),
        json_schema=constraint.schema,
        grammar=constraint.grammar or None,
        logit_bias=((forbidden, 1000.0),),
    )


def _omit_unset(**fields: Any) -> Json:
    """Return the body of /completion; fields that are None get llama.cpp's defaults."""
    return {name: value for name, value in fields.items() if value is not None}


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
