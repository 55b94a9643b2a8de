"""Requests to the child process of OpenVINO: the fields of GenerationConfig and StructuredOutputConfig."""

import random
from typing import Any, Final

from antiphon.core.prompt import Constraint, Grammar, Json, JsonObject, JsonSchema, Sampling, StructuralTag
from antiphon.engines.embedded.wire import encode
from antiphon.engines.gguf import GgufHeader
from antiphon.errors import UnsupportedParameter

SUPPORTED_FIELDS: Final = frozenset({
    "max_output_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "skip_special_tokens", "logprobs",
    "n", "best_of", "length_penalty", "text.format", "chat_template_kwargs", "min_tokens", "stop_token_ids",
    "return_token_ids", "grammar.regex", "grammar.gbnf", "structural_tag",
})  # fmt: skip
_NO_DRAFT: Final = "Start the engine with --openvino-draft-model."
UNSUPPORTED_REASONS: Final = {
    "top_logprobs": "OpenVINO computes the log probability of the chosen token only.",
    "logit_bias": "OpenVINO has no such setting.",
    "grammar.lark": "OpenVINO supports EBNF and regular expressions.",
    "cache_salt": "Its cache cannot be partitioned.",
    "prompt_logprobs": "OpenVINO computes no logprobs for prompt tokens.",
    "num_assistant_tokens": f"{_NO_DRAFT[:-1]} or --openvino-prompt-lookup.",
    "assistant_confidence_threshold": _NO_DRAFT,
    "max_ngram_size": "Start the engine with --openvino-prompt-lookup.",
}
DRAFT_FIELDS: Final = frozenset({"num_assistant_tokens", "assistant_confidence_threshold"})
LOOKUP_FIELDS: Final = frozenset({"num_assistant_tokens", "max_ngram_size"})
PENALTIES: Final = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}  # without an effect
ASSISTANT_TOKENS, NGRAM_SIZE = 5, 3  # of requests that set none, to an engine with a draft model or prompt lookup

# Control tokens that end an answer, besides the end of sequence of the file: llama.cpp recognises the same ones.
END_TOKENS: Final = frozenset({
    "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|return|>", "<|call|>",
    "<|end_of_text|>", "</s>", "<|eot|>",
})  # fmt: skip


def list_end_tokens(header: GgufHeader) -> list[int]:
    found = {id for text, id in header.control_tokens.items() if text in END_TOKENS or text == header.eos}
    return sorted(found)


def build_config(sampling: Sampling, room: int, assistant: str) -> Json:
    """Build the fields of GenerationConfig. `room`: tokens of the context after the prompt; `assistant`: "draft",
    "lookup" or "", for an engine that computes several tokens at a time.
    """
    beams = sampling.best_of or 1
    is_sampled = sampling.temperature != 0.0 and beams == 1
    fields: dict[str, Any] = {
        "max_new_tokens": max(min(sampling.max_tokens or room, room), 1),
        "min_new_tokens": sampling.min_tokens,
        "ignore_eos": sampling.ignore_eos or None,
        "logprobs": None if sampling.logprobs is None else 1,
        **_penalise(sampling, beams),
    }
    if is_sampled:
        fields |= {
            "do_sample": True,
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if (sampling.top_k or 0) > 0 else None,
            "min_p": sampling.min_p,
            "rng_seed": random.getrandbits(31) if sampling.seed is None else sampling.seed,
        }
    elif beams > 1:
        fields |= {"num_beams": beams, "num_return_sequences": beams, "length_penalty": sampling.length_penalty}
    return {name: value for name, value in (fields | _assist(sampling, assistant)).items() if value is not None}


def _penalise(sampling: Sampling, beams: int) -> Json:
    found = {name: value for name in PENALTIES if (value := getattr(sampling, name)) is not None}
    for name, value in found.items():
        if beams > 1 and value != PENALTIES[name]:
            raise UnsupportedParameter(
                f"OpenVINO's beam search has no '{name}': send it without 'best_of'.", param=name
            )
    return found


def _assist(sampling: Sampling, assistant: str) -> Json:
    """An engine with a draft model or prompt lookup needs these fields in every request."""
    threshold = sampling.assistant_confidence_threshold
    if assistant == "draft" and threshold is not None:
        return {"assistant_confidence_threshold": threshold}
    tokens = sampling.num_assistant_tokens or ASSISTANT_TOKENS
    if assistant == "lookup":
        return {"num_assistant_tokens": tokens, "max_ngram_size": sampling.max_ngram_size or NGRAM_SIZE}
    return {"num_assistant_tokens": tokens} if assistant else {}


def to_structured_output(constraint: Constraint | None) -> dict[str, str]:
    """Return the field of StructuredOutputConfig; empty without a constraint."""
    match constraint:
        case None:
            return {}
        case JsonObject():
            return {"json_schema": '{"type":"object"}'}
        case JsonSchema(schema=schema):
            return {"json_schema": encode(schema).decode()}
        case Grammar(syntax="regex", definition=definition):
            return {"regex": definition}
        case Grammar(definition=definition):
            return {"grammar": definition}
        case StructuralTag(tag=tag):
            return {"structural_tags_config": encode(tag).decode()}
