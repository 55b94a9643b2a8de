"""Request fields of HTTP engines: the name under which a field is sent, or why it is not.

Rows are named as clients name the fields; the last two rows are kinds of input. `CHAT_FIELDS` and `RAW_FIELDS` are the
cells of an engine that has OpenAI's API with the usual extensions; each adapter defines what differs in its own
engine. Bodies, capabilities, error messages and docs/engines.md are made from them. Fields that are not here are the
same everywhere: model, messages, stream. Sources: the servers' own documentation and request types, as of November
2026.

`RAW_FIELDS` is about raw prompts, that is text or token ids: vLLM, OVMS, Ollama and OpenAI have `completions` for
these; SGLang's own `/generate` and llama.cpp's own `/completion` return more, so they are used there. Settings of the
chat template, such as whether to reason, are already in the rendered prompt.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from antiphon.core.prompt import Constraint, Grammar, Json, JsonObject, JsonSchema, StructuralTag


class SentField(Struct, frozen=True):
    """Sent under `name`, perhaps converted by `change`, perhaps together with the fields in `also`.

    A dot in `name` leads into a nested object.
    """

    name: str
    change: Callable[[Any], Any] | None = None
    note: str = ""
    also: Json = {}


class ChosenLogprobs(SentField, frozen=True):
    """`logprobs` is sent under `name`; `top_logprobs` is unsupported, since the engine returns no alternatives."""


class UnsentField(Struct, frozen=True):
    """Not sent: Antiphon implements it, or it is a hint without effect on the output."""

    note: str


class UnsupportedField(Struct, frozen=True):
    """A request that sets it fails with status 400 and this reason."""

    reason: str


Cell = SentField | UnsentField | UnsupportedField
Column = dict[str, Cell]


def response_format(constraint: Constraint) -> Json:
    match constraint:
        case JsonObject():
            return {"type": "json_object"}
        case JsonSchema(schema=schema, name=name, strict=strict, description=description):
            json_schema = {"name": name, "schema": schema, "strict": strict}
            return {
                "type": "json_schema",
                "json_schema": {**json_schema, "description": description} if description else json_schema,
            }
        case StructuralTag(tag=tag):
            return {"type": "structural_tag", **tag}
        case Grammar():
            raise TypeError("a grammar is not a response format")


def grammar_definition(grammar: Grammar) -> str:
    return grammar.definition


def same_cell(cell: Cell, *fields: str) -> Column:
    """Return a column in which these fields have the same cell."""
    return dict.fromkeys(fields, cell)


def same_name(*fields: str) -> Column:
    """Return a column of fields that are sent under their own names."""
    return {field: SentField(field) for field in fields}


_NO_SPECULATION = UnsupportedField("Speculative decoding is configured when its server starts.")
NO_SUCH_FIELD: Final = UnsupportedField("It has no such field.")
NO_RAW_FORMATS: Final = UnsupportedField("It supports output formats for chats only.")
DROPS_LATER_CALLS: Final = UnsentField("Antiphon drops calls after the first")

CHAT_FIELDS: Final[Column] = {
    "max_output_tokens": SentField("max_completion_tokens"),
    **same_name("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty"),
    **same_name("presence_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "skip_special_tokens"),
    "n": UnsentField("as several calls, ordered by their log probabilities if it returns any"),
    **same_cell(UnsupportedField("It supports no beam search for chats."), "best_of", "length_penalty"),
    "top_logprobs": SentField("top_logprobs", also={"logprobs": True}),
    **same_cell(_NO_SPECULATION, "num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size"),
    "text.format": SentField("response_format", response_format, "json_object and json_schema"),
    "reasoning.effort": SentField("reasoning_effort"),
    "chat_template_kwargs": SentField("chat_template_kwargs"),
    "structural_tag": UnsupportedField("It supports no structural tags."),
    **same_cell(UnsupportedField("It supports JSON schemas only."), "grammar.regex", "grammar.gbnf"),
    "grammar.lark": UnsupportedField("It supports no Lark grammars."),
    "logit_bias": SentField("logit_bias"),
    **same_cell(NO_SUCH_FIELD, "min_tokens", "stop_token_ids"),
    "prompt_logprobs": UnsupportedField("It returns no log probabilities of a prompt."),
    "return_token_ids": UnsupportedField("It returns no token ids for chats."),
    "kv_transfer_params": UnsupportedField("It supports no KV cache transfer."),
    "cache_salt": UnsentField("it has no such field: all of its clients share one cache"),
    "prompt_cache_key": UnsentField("not needed: it finds common prefixes by itself"),
    "priority": UnsupportedField("It supports no priorities."),
    "request_id": UnsupportedField("It accepts no request ids."),
    "mm_processor_kwargs": UnsupportedField("It accepts no image processor settings."),
    **same_name("tools", "tool_choice", "parallel_tool_calls"),
    "reasoning items": SentField("reasoning_content"),
    "input_image": SentField("messages", note="`image_url` parts with data URLs"),
    "input_audio": UnsupportedField("It accepts no audio in chats."),
}

_IN_TEMPLATE = UnsentField("the chat template renders it")
_CHATS_ONLY = UnsupportedField("Images and audio are supported at chat level only.")
AUDIO_PARTS: Final = SentField("messages", note="`input_audio` parts")
RAW_FIELDS: Final[Column] = {
    "max_output_tokens": SentField("max_tokens"),
    "top_logprobs": SentField("logprobs"),
    **same_cell(_IN_TEMPLATE, "reasoning.effort", "chat_template_kwargs", "reasoning items"),
    "tools": UnsentField("the model's chat template renders them, and Antiphon parses the calls"),
    "tool_choice": UnsentField("Antiphon enforces it"),
    "parallel_tool_calls": DROPS_LATER_CALLS,
    **same_cell(_CHATS_ONLY, "input_image", "input_audio", "mm_processor_kwargs"),
}


def supported_fields(fields: Column) -> frozenset[str]:
    """Return the names of supported request fields, for `Capabilities`."""
    names = {field for field, cell in fields.items() if not isinstance(cell, UnsupportedField)}
    names -= _unused_fields(fields).keys()
    if "top_logprobs" in names:
        names.add("logprobs")
    return frozenset(names - _missing_alternatives(fields))


def unsupported_reasons(fields: Column) -> dict[str, str]:
    reasons = {field: cell.reason for field, cell in fields.items() if isinstance(cell, UnsupportedField)}
    alternatives = dict.fromkeys(_missing_alternatives(fields), "It returns log probabilities of chosen tokens only.")
    return reasons | alternatives | _unused_fields(fields)


def _missing_alternatives(fields: Column) -> set[str]:
    return {field for field, cell in fields.items() if isinstance(cell, ChosenLogprobs)}


def _unused_fields(fields: Column) -> dict[str, str]:
    """Return the fields that are not sent and that nothing here replaces, with the reasons.

    A tenant's salt is then dropped, but a client's own is rejected; the others are reported as ignored.
    """
    reasons = {
        "cache_salt": "Its cache cannot be partitioned.",
        "prompt_cache_key": "Its cache takes no key. With several engines, the key selects one.",
        "reasoning items": "It accepts no reasoning.",
    }
    unsent = [field for field, cell in fields.items() if isinstance(cell, UnsentField) and cell is not _IN_TEMPLATE]
    return {field: reasons[field] for field in unsent if field in reasons}
