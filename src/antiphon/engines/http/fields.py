"""The table of request field names per engine, or why an engine lacks a field.

Rows are named as clients name the fields; the last two rows are kinds of input. Bodies, capabilities, error messages
and docs/engines.md are made from it. Fields that are not in it are the same everywhere: model, messages, stream.
Sources: the servers' own documentation and request types, as of November 2026.

`TABLE` is about chats; `_RAW_DEFAULTS` and `_RAW_BY_ENGINE` define what differs for raw prompts, that is text or token
ids. vLLM, OVMS, Ollama and OpenAI have `completions` for these; SGLang's own `/generate` and llama.cpp's own
`/completion` return more, so they are used there. Settings of the chat template, such as whether to reason, are already
in the rendered prompt.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Constraint, Grammar, Json, JsonObject, JsonSchema, StructuralTag
from antiphon.engines.llamacpp.constraints import to_llamacpp_constraint
from antiphon.engines.llamacpp.wire import RANDOM_SEED
from antiphon.errors import UnsupportedParameter


class SentField(Struct, frozen=True):
    """Sent under `name`, perhaps converted by `change`, perhaps together with the fields in `also`.

    A dot in `name` leads into a nested object.
    """

    name: str
    change: Callable[[Any], Any] | None = None
    note: str = ""
    also: Json = {}


class UnsentField(Struct, frozen=True):
    """Not sent: Antiphon implements it, or it is a hint without effect on the output."""

    note: str


class UnsupportedField(Struct, frozen=True):
    """A request that sets it fails with status 400 and this reason."""

    reason: str


Cell = SentField | UnsentField | UnsupportedField
Column = dict[str, Cell]

NAMES: Final = ("vllm", "sglang", "ovms", "llamacpp-server", "ollama", "openai")
OLLAMA_EFFORTS: Final = {"minimal": "low", "xhigh": "high", "max": "high"}


def response_format(constraint: Constraint) -> Json:
    match constraint:
        case JsonObject():
            return {"type": "json_object"}
        case JsonSchema(schema=schema, name=name, strict=strict):
            return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}
        case StructuralTag(tag=tag):
            return {"type": "structural_tag", **tag}
        case Grammar():
            raise TypeError("a grammar is not a response format")


def _schema_format(constraint: Constraint) -> Json:
    schema = JsonSchema({"type": "object"}) if isinstance(constraint, JsonObject) else constraint
    return response_format(schema)


def _tag_format(constraint: StructuralTag) -> Json:
    """Return the `format` of a structural tag, which is what OVMS accepts; the older `structures` are not supported."""
    tag_format = constraint.tag.get("format")
    if not isinstance(tag_format, dict):
        raise UnsupportedParameter(
            "'text.format' with `structures` is not supported by the ovms engine: send a `format`.", param="text.format"
        )
    return tag_format


def _definition(grammar: Grammar) -> str:
    return grammar.definition


def _definition_under(name: str) -> Callable[[Grammar], Json]:
    return lambda grammar: {name: grammar.definition}


def _bias_pairs(bias: dict[str, float]) -> list[list[float]]:
    """Return (token id, bias) pairs: llama.cpp would tokenize the keys of an object as text."""
    return [[int(token), value] for token, value in bias.items()]


def _for_each(default: Cell, **others: Cell) -> Column:
    """Return a row with one cell for all engines but some (an underscore stands for the hyphen in an engine's name)."""
    overrides = {engine.replace("_", "-"): cell for engine, cell in others.items()}
    return {engine: overrides.get(engine, default) for engine in NAMES}


def _sent_as(name: str, **others: Cell) -> Column:
    return _for_each(SentField(name), **others)


def _unsupported(reason: str, **others: Cell) -> Column:
    return _for_each(UnsupportedField(reason), **others)


_OPENAI = UnsupportedField("OpenAI's API has no such field.")
_OLLAMA = UnsupportedField("Ollama's OpenAI endpoint has no such field.")
_NO_BEAMS = "It supports no beam search for chats."
_NO_SPECULATION = "Speculative decoding is configured when its server starts."
_BEAM_NOTE = "beam width; not streamed"
_TOOL_CHOICE_NOTE = "it has no such field: Antiphon sends only the named tool, and retries if no tool is called"
_NO_GRAMMARS = "It supports JSON schemas only."
_NO_IDS = "It returns no token ids for chats."
_NO_SUCH = "It has no such field."

TABLE: Final[dict[str, Column]] = {
    "max_output_tokens": _sent_as(
        "max_completion_tokens", llamacpp_server=SentField("max_tokens"), ollama=SentField("max_tokens")
    ),
    "temperature": _sent_as("temperature"),
    "top_p": _sent_as("top_p"),
    "top_k": _sent_as(
        "top_k",
        llamacpp_server=SentField("top_k", lambda value: max(value, 0), "−1 as 0, its value for all tokens"),
        ollama=_OLLAMA,
        openai=_OPENAI,
    ),
    "min_p": _sent_as("min_p", ollama=_OLLAMA, openai=_OPENAI),
    "repetition_penalty": _sent_as(
        "repetition_penalty", llamacpp_server=SentField("repeat_penalty"), ollama=_OLLAMA, openai=_OPENAI
    ),
    "frequency_penalty": _sent_as("frequency_penalty"),
    "presence_penalty": _sent_as("presence_penalty"),
    "stop": _sent_as("stop"),
    "include_stop_str_in_output": _sent_as(
        "include_stop_str_in_output",
        sglang=SentField("no_stop_trim"),
        ovms=SentField(
            "include_stop_str_in_output",
            note="it always includes it in a stream; Antiphon removes it unless requested",
        ),
        llamacpp_server=UnsupportedField("llama.cpp's chat endpoint always omits the stop string."),
        ollama=UnsupportedField("Ollama always omits the stop string."),
        openai=UnsupportedField("OpenAI's API always omits the stop string."),
    ),
    "seed": _sent_as(
        "seed",
        sglang=SentField("seed", note="rejected by a server that was started without --enable-deterministic-inference"),
        llamacpp_server=SentField(
            "seed", lambda value: min(value, RANDOM_SEED - 1), "2³²−1, its value for a random seed, as one less"
        ),
    ),
    "ignore_eos": _sent_as("ignore_eos", ollama=_OLLAMA, openai=_OPENAI),
    "skip_special_tokens": _sent_as(
        "skip_special_tokens",
        llamacpp_server=UnsupportedField("llama.cpp's chat endpoint always removes special tokens."),
        ollama=_OLLAMA,
        openai=_OPENAI,
    ),
    "n": _for_each(
        UnsentField("as several calls, ordered by their log probabilities"),
        ovms=UnsupportedField("It returns no log probabilities by which choices could be ordered."),
    ),
    "best_of": _unsupported(
        _NO_BEAMS,
        vllm=SentField("n", note=_BEAM_NOTE, also={"use_beam_search": True}),
        ovms=SentField("best_of", note=_BEAM_NOTE),
    ),
    "length_penalty": _unsupported(_NO_BEAMS, vllm=SentField("length_penalty"), ovms=SentField("length_penalty")),
    "top_logprobs": _sent_as(
        "top_logprobs",
        vllm=SentField("top_logprobs", also={"logprobs": True}),
        sglang=SentField("top_logprobs", also={"logprobs": True}),
        ovms=UnsupportedField(
            "OpenVINO Model Server returns no log probabilities in a stream, and no alternatives at all."
        ),
        llamacpp_server=SentField("top_logprobs", lambda value: max(value, 1), "at least 1", {"logprobs": True}),
        ollama=SentField("top_logprobs", also={"logprobs": True}),
        openai=SentField("top_logprobs", also={"logprobs": True}),
    ),
    "num_assistant_tokens": _unsupported(_NO_SPECULATION, ovms=SentField("num_assistant_tokens")),
    "assistant_confidence_threshold": _unsupported(_NO_SPECULATION, ovms=SentField("assistant_confidence_threshold")),
    "max_ngram_size": _unsupported(_NO_SPECULATION, ovms=SentField("max_ngram_size")),
    "text.format": {
        engine: SentField("response_format", response_format, "json_object and json_schema")
        if engine != "ovms"
        else SentField("response_format", _schema_format, "json_object as the schema of any object")
        for engine in NAMES
    },
    "reasoning.effort": _sent_as(
        "reasoning_effort",
        ovms=SentField(
            "chat_template_kwargs", lambda effort: {"enable_thinking": effort != "none"}, "as `enable_thinking`"
        ),
        ollama=SentField(
            "reasoning_effort",
            lambda effort: OLLAMA_EFFORTS.get(effort, effort),
            "minimal as low, xhigh and max as high",
        ),
    ),
    "chat_template_kwargs": _sent_as("chat_template_kwargs", ollama=_OLLAMA, openai=_OPENAI),
    "structural_tag": _unsupported(
        "It supports no structural tags.",
        vllm=SentField("response_format", response_format),
        sglang=SentField("response_format", response_format),
        ovms=SentField("response_format", _tag_format, "the `format` within it"),
    ),
    "grammar.regex": _unsupported(
        _NO_GRAMMARS,
        vllm=SentField("structured_outputs", _definition_under("regex")),
        sglang=SentField("regex", _definition),
        ovms=SentField("response_format", lambda grammar: {"type": "regex", "pattern": grammar.definition}),
    ),
    "grammar.gbnf": _unsupported(
        _NO_GRAMMARS,
        vllm=SentField("structured_outputs", _definition_under("grammar")),
        sglang=SentField("ebnf", _definition),
        ovms=SentField("response_format", lambda grammar: {"type": "grammar", "grammar": grammar.definition}),
        llamacpp_server=SentField("grammar", _definition),
    ),
    "grammar.lark": _unsupported(
        "It supports no Lark grammars.",
        vllm=SentField("structured_outputs", _definition_under("grammar"), "it converts them to GBNF"),
    ),
    "logit_bias": _sent_as(
        "logit_bias",
        ovms=UnsupportedField(_NO_SUCH),
        llamacpp_server=SentField("logit_bias", _bias_pairs, "as pairs"),
        ollama=_OLLAMA,
    ),
    "min_tokens": _unsupported(_NO_SUCH, vllm=SentField("min_tokens"), sglang=SentField("min_tokens")),
    "stop_token_ids": _unsupported(_NO_SUCH, vllm=SentField("stop_token_ids"), sglang=SentField("stop_token_ids")),
    "prompt_logprobs": _unsupported(
        "It returns no log probabilities of a prompt.", vllm=SentField("prompt_logprobs", note="not streamed")
    ),
    "return_token_ids": _unsupported(_NO_IDS, vllm=SentField("return_token_ids")),
    "kv_transfer_params": _unsupported(
        "It supports no KV cache transfer.", vllm=SentField("kv_transfer_params", note="not streamed")
    ),
    "cache_salt": _for_each(
        UnsentField("it has no such field: all of its clients share one cache"),
        vllm=SentField("cache_salt"),
        sglang=SentField("cache_salt"),
        openai=UnsentField("its caches are per organisation; see `prompt_cache_key` for tenants"),
    ),
    "prompt_cache_key": _for_each(
        UnsentField("not needed: it finds common prefixes by itself"),
        openai=SentField("prompt_cache_key", note="with tenants, a digest of the key and the tenant"),
    ),
    "priority": _unsupported("It supports no priorities.", vllm=SentField("priority"), sglang=SentField("priority")),
    "request_id": _unsupported("It accepts no request ids.", vllm=SentField("request_id"), sglang=SentField("rid")),
    "mm_processor_kwargs": _unsupported(
        "It accepts no image processor settings.", vllm=SentField("mm_processor_kwargs")
    ),
    "tools": _sent_as("tools"),
    "tool_choice": _sent_as("tool_choice", ollama=UnsentField(_TOOL_CHOICE_NOTE)),
    "parallel_tool_calls": _sent_as(
        "parallel_tool_calls",
        ovms=UnsentField("Antiphon drops calls after the first"),
        ollama=UnsentField("Antiphon drops calls after the first"),
    ),
    "reasoning items": _sent_as(
        "reasoning_content",
        ollama=SentField("reasoning"),
        openai=UnsentField("the API accepts no reasoning text"),
    ),
    "input_image": {engine: SentField("messages", note="`image_url` parts with data URLs") for engine in NAMES},
}


def column(engine: str) -> Column:
    """Return the cells of one engine, by field."""
    return {field: cells[engine] for field, cells in TABLE.items()}


def supported_fields(fields: Column) -> frozenset[str]:
    """Return the names of supported request fields, for `Capabilities`."""
    names = {field for field, cell in fields.items() if not isinstance(cell, UnsupportedField)} - _unsalted_fields(
        fields
    )
    return frozenset(names | {"logprobs"} if "top_logprobs" in names else names)


def unsupported_reasons(fields: Column) -> dict[str, str]:
    """Return the reason for each unsupported field."""
    reasons = {field: cell.reason for field, cell in fields.items() if isinstance(cell, UnsupportedField)}
    return reasons | dict.fromkeys(_unsalted_fields(fields), "Its cache cannot be partitioned.")


def _unsalted_fields(fields: Column) -> set[str]:
    """Return `cache_salt` if the engine ignores it: a tenant's salt is then dropped, but a client's own is rejected."""
    return {"cache_salt"} if isinstance(fields.get("cache_salt"), UnsentField) else set()


_IN_TEMPLATE = UnsentField("the chat template renders it")
_RAW_DEFAULTS: Final[Column] = {
    "max_output_tokens": SentField("max_tokens"),
    "top_logprobs": SentField("logprobs"),
    "reasoning.effort": _IN_TEMPLATE,
    "chat_template_kwargs": _IN_TEMPLATE,
    "reasoning items": _IN_TEMPLATE,
    "tools": UnsentField("the model's chat template renders them, and Antiphon parses the calls"),
    "tool_choice": UnsentField("Antiphon enforces it"),
    "parallel_tool_calls": UnsentField("Antiphon drops calls after the first"),
    "input_image": UnsupportedField("Images are supported at chat level only."),
    "mm_processor_kwargs": UnsupportedField("Images are supported at chat level only."),
}
_NO_FORMATS = UnsupportedField("It supports output formats for chats only.")


def _schema_text(constraint: JsonObject | JsonSchema) -> str:
    schema = constraint.schema if isinstance(constraint, JsonSchema) else {"type": "object"}
    return msgspec.json.encode(schema).decode()


def _tag_text(constraint: StructuralTag) -> str:
    return msgspec.json.encode(response_format(constraint)).decode()


def _sampling_params(*names: str, **others: str) -> Column:
    """Return cells for fields within SGLang's `sampling_params`, under the same name or another."""
    named = {**{name: name for name in names}, **others}
    return {field: SentField(f"sampling_params.{name}") for field, name in named.items()}


def _sampling_param(name: str, change: Callable[[Any], Any]) -> Cell:
    return SentField(f"sampling_params.{name}", change)


_RAW_BY_ENGINE: Final[dict[str, Column]] = {
    "vllm": {},
    "sglang": {
        **_sampling_params(
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
            "stop", "ignore_eos", "skip_special_tokens", "logit_bias", "stop_token_ids",
            max_output_tokens="max_new_tokens", seed="sampling_seed", include_stop_str_in_output="no_stop_trim",
            min_tokens="min_new_tokens",
        ),
        "top_logprobs": SentField("top_logprobs_num", also={"return_logprob": True, "return_text_in_logprobs": True}),
        "text.format": _sampling_param("json_schema", _schema_text),
        "structural_tag": _sampling_param("structural_tag", _tag_text),
        "grammar.regex": _sampling_param("regex", lambda grammar: grammar.definition),
        "grammar.gbnf": _sampling_param("ebnf", lambda grammar: grammar.definition),
        "return_token_ids": SentField("return_prompt_token_ids", note="for the prompt; output ids are always returned"),
    },
    "ovms": {
        "text.format": _NO_FORMATS,
        "structural_tag": _NO_FORMATS,
        "grammar.regex": _NO_FORMATS,
        "grammar.gbnf": _NO_FORMATS,
        "top_logprobs": column("ovms")["top_logprobs"],
    },
    "llamacpp-server": {
        "max_output_tokens": SentField("n_predict"),
        "include_stop_str_in_output": UnsentField("Antiphon adds it"),
        "top_logprobs": SentField("n_probs", lambda value: max(value, 1), "at least 1"),
        "text.format": SentField(
            "json_schema", lambda constraint: to_llamacpp_constraint(constraint).schema, "without white space"
        ),
        "stop_token_ids": UnsentField("Antiphon ends the output there"),
        "return_token_ids": UnsentField("they are always returned"),
    },
    "ollama": {"text.format": _NO_FORMATS},
    "openai": {"text.format": _NO_FORMATS},
}  # fmt: skip


def raw_column(engine: str) -> Column:
    """Return the cells of one engine for raw prompts."""
    return {**column(engine), **_RAW_DEFAULTS, **_RAW_BY_ENGINE[engine]}
