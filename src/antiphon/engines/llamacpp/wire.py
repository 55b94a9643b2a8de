"""Requests to llama.cpp's server: constraints and other fields of completions.

A constraint is a JSON schema or a grammar, enforced by llguidance or by llama.cpp itself.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.prompt import Constraint, Grammar, Json, JsonObject, JsonSchema, Sampling, StructuralTag
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.schemas.grammars import escape_lark_regex
from antiphon.protocol.schemas.schema_edits import bound_values, edit_keywords

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
IMAGE_PREFIXES = ("iVBORw0KGgo", "/9j/", "R0lGOD")  # of PNG, JPEG and GIF, in base64
RANDOM_SEED = 2**32 - 1  # llama.cpp's value for a random seed

FORMATS = frozenset({"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
LARK_HEADER = "%llguidance {}\n"


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


def read_image(url: str) -> str:
    """Return the base64 of an image in a data URL; raises InvalidValue for formats that llama.cpp does not decode."""
    data = url.partition(";base64,")[2]
    if not data.startswith(IMAGE_PREFIXES):
        raise InvalidValue("The model takes images in the formats PNG, JPEG and GIF.", param="input")
    return data


def build_completion(
    prompt: Sequence[int] | Json,
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
        prompt=prompt,
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
