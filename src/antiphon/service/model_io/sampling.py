"""Request → Sampling and Constraint, the generation parameters of an engine call."""

from msgspec import UNSET

from antiphon.core.prompt import Constraint, JsonObject, JsonSchema, Sampling, StructuralTag
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonObjectFormat, JsonSchemaFormat, StructuralTagFormat, TextFormat

# Request fields that affect the sampling, besides max_output_tokens.
_SAMPLING_FIELDS = frozenset({
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "stop",
    "include_stop_str_in_output", "seed", "ignore_eos", "skip_special_tokens", "n", "best_of", "length_penalty",
    "logprobs", "top_logprobs", "include", "num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size",
})  # fmt: skip
LOGPROBS_INCLUDE = "message.output_text.logprobs"


def make_sampling(request: CreateResponse, sent: frozenset[str], max_tokens: int | None) -> Sampling:
    """`sent`: names of the fields that the client sent."""
    if _SAMPLING_FIELDS.isdisjoint(sent):
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
        stop=list_stops(request),
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
    return bool(request.logprobs or request.top_logprobs or LOGPROBS_INCLUDE in request.include)


def make_constraint(request: CreateResponse) -> Constraint | None:
    text_format = request.text.format
    match text_format:
        case TextFormat():
            return None
        case JsonObjectFormat():
            return JsonObject()
        case JsonSchemaFormat(schema=schema, name=name, strict=strict):
            return JsonSchema(schema=schema, name=name, strict=strict is not False)
        case StructuralTagFormat():
            values = {name: getattr(text_format, name) for name in text_format.__struct_fields__}
            return StructuralTag({name: value for name, value in values.items() if value is not UNSET})


def list_stops(request: CreateResponse) -> tuple[str, ...]:
    stop = request.stop
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
