"""The wire format of llama.cpp's server: its requests, replies, events and errors."""

from collections.abc import Sequence

from msgspec import MsgspecError, Struct, field
from msgspec.json import Decoder, Encoder

from antiphon.core.prompt import Json, Sampling
from antiphon.engines.client import EngineHttpError
from antiphon.engines.llamacpp.constraints import LlamaCppConstraint
from antiphon.errors import AntiphonError, ContextTooLong, EngineFailed, InvalidValue

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


class LlamaCppCompletion(Struct, kw_only=True, omit_defaults=True):
    """Body of /completion; omitted fields get llama.cpp's defaults."""

    prompt: Sequence[int]
    n_predict: int = -2
    stream: bool = False
    return_tokens: bool = False
    # progress events make prefill cancellable: without output the disconnect is not noticed
    return_progress: bool = False
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


class LlamaCppCandidate(Struct, gc=False):
    token: str
    bytes: list[int]
    logprob: float


class LlamaCppProbability(LlamaCppCandidate):
    top_logprobs: list[LlamaCppCandidate] = []


class LlamaCppError(Struct):
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class PromptProgress(Struct):
    """Progress of the prompt; `cache` counts the prompt tokens that were already cached."""

    cache: int = 0


class LlamaCppEvent(Struct, kw_only=True):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[LlamaCppProbability] = []
    stop_type: str = ""
    stopping_word: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    cached: int = field(default=0, name="timings/cache_n")
    error: LlamaCppError | None = None


class LlamaCppTokens(Struct):
    tokens: list[int]


class LlamaCppText(Struct):
    content: str


class LlamaCppFailure(Struct):
    error: LlamaCppError


EVENT_DECODER = Decoder(LlamaCppEvent)
TOKENS_DECODER = Decoder(LlamaCppTokens)
TEXT_DECODER = Decoder(LlamaCppText)
FAILURE_DECODER = Decoder(LlamaCppFailure)


def build_completion(
    tokens: Sequence[int],
    sampling: Sampling,
    constraint: LlamaCppConstraint,
    visible_tokens: Sequence[str],
    *,
    use_cache: bool = True,
) -> LlamaCppCompletion:
    """Build the body of a streamed completion.

    `visible_tokens` are the control tokens to include in the text. Without `use_cache` the complete prompt is computed,
    so that its duration reveals nothing about the prompts of other clients.
    """
    seed = sampling.seed
    return LlamaCppCompletion(
        prompt=tokens,
        n_predict=-1 if sampling.max_tokens is None else sampling.max_tokens,
        stream=True,
        return_tokens=True,
        return_progress=True,
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
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos,
        n_probs=0 if sampling.logprobs is None else max(sampling.logprobs, 1),
        preserved_tokens=visible_tokens,
        json_schema=constraint.schema,
        grammar=constraint.grammar,
        logit_bias=tuple([(int(token), bias) for token, bias in (sampling.logit_bias or {}).items()]),
    )


def build_probe(prompt: Sequence[int], constraint: LlamaCppConstraint, forbidden: int | str) -> LlamaCppCompletion:
    """Build a request for one token that strongly favours `forbidden`, which an enforced grammar must reject."""
    return LlamaCppCompletion(
        prompt=prompt,
        n_predict=1,
        temperature=0.0,
        return_tokens=True,
        response_fields=("content", "tokens"),
        json_schema=constraint.schema,
        grammar=constraint.grammar,
        logit_bias=((forbidden, 1000.0),),
    )


def to_client_error(error: EngineHttpError) -> AntiphonError:
    """Convert an error response of llama.cpp to an error for the client."""
    try:
        details = FAILURE_DECODER.decode(error.body).error
    except MsgspecError:
        return error
    if details.type == "exceed_context_size_error":
        return ContextTooLong(
            f"The input has {details.n_prompt_tokens} tokens, and this model takes {details.n_ctx} with the answer.",
            param="input",
        )
    if error.status_code == 400 and "schema" in details.message:
        return InvalidValue(f"This schema cannot be enforced: {details.message}.", param="text.format.schema")
    if error.status_code == 400 and "grammar" in details.message:
        return InvalidValue(f"This grammar cannot be enforced: {details.message}.", param="text.format")
    if error.status_code == 400:
        return InvalidValue(f"The engine refuses this input: {details.message}.", param="input")
    return EngineFailed(f"The engine failed: {details.message}.")
