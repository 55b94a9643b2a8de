"""Request → Sampling and Constraint: which numbers an engine gets."""

from msgspec import UNSET

from antiphon.core.prompt import Constraint, JsonObject, JsonSchema, Sampling, StructuralTag
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat, StructuralTagFormat, TextFormat

# The fields of a request that any of this is made from, beside max_output_tokens.
_SAMPLED = frozenset({
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "stop",
    "include_stop_str_in_output", "seed", "ignore_eos", "skip_special_tokens", "n", "best_of", "length_penalty",
    "logprobs", "top_logprobs", "include", "num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size",
})  # fmt: skip
LOGPROBS = "message.output_text.logprobs"


def sampling(request: CreateResponse, sent: frozenset[str], max_tokens: int | None) -> Sampling:
    """`sent` are the names of the fields that the client sent."""
    if _SAMPLED.isdisjoint(sent):
        return Sampling(max_tokens=max_tokens)
    greedy = request.top_p == 0
    return Sampling(
        max_tokens=max_tokens,
        temperature=0.0 if greedy else request.temperature,
        top_p=None if greedy else request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        stop=stops(request),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        seed=request.seed,
        ignore_eos=bool(request.ignore_eos),
        skip_special_tokens=request.skip_special_tokens is not False,
        best_of=request.best_of,
        length_penalty=request.length_penalty,
        logprobs=(request.top_logprobs or 0) if wants_logprobs(request) or (request.n or 1) > 1 else None,
        num_assistant_tokens=request.num_assistant_tokens,
        assistant_confidence_threshold=request.assistant_confidence_threshold,
        max_ngram_size=request.max_ngram_size,
    )


def wants_logprobs(request: CreateResponse) -> bool:
    return bool(request.logprobs or request.top_logprobs or LOGPROBS in request.include)


def constraint(request: CreateResponse) -> Constraint | None:
    form = request.text.format
    match form:
        case TextFormat():
            return None
        case JsonObjectFormat():
            return JsonObject()
        case JsonSchemaFormat(schema=schema, name=name, strict=strict):
            return JsonSchema(schema=schema, name=name, strict=strict is not False)
        case StructuralTagFormat():
            given = {name: getattr(form, name) for name in form.__struct_fields__}
            return StructuralTag({name: value for name, value in given.items() if value is not UNSET})


def stops(request: CreateResponse) -> tuple[str, ...]:
    stop = request.stop
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
