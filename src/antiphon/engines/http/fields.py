"""The one table of what a request's field is called by each engine, or why the engine has no such thing.

A field of the table is named as clients name it; the last two rows are kinds of input. Bodies, capabilities, refusals
and docs/engines.md are made of it. What is not in it is the same everywhere: model, messages, stream.
It is about chats; raw_fields.py says what is different where a raw prompt is completed.
Sources: the servers' own documentation and request types, as of November 2026.

What differs from the table of fields where a raw prompt is completed: a text, or the ids of its tokens.

vLLM, OVMS, Ollama and OpenAI have `completions` for it; SGLang's own `/generate` and llama.cpp's own `/completion` tell
more, so they are asked there. What a chat template says, such as whether to think, is in the prompt by then.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Constraint, Grammar, Json, JsonObject, JsonSchema, StructuralTag
from antiphon.engines.llamacpp.constraints import guided
from antiphon.errors import UnsupportedParameter

RANDOM_SEED: Final = 2**32 - 1  # what llama.cpp takes for «choose one»


class Sent(Struct, frozen=True):
    """Under this name, perhaps changed, perhaps with fields that belong to it. A dot leads into an object."""

    name: str
    change: Callable[[Any], Any] | None = None
    note: str = ""
    also: Json = {}


class Kept(Struct, frozen=True):
    """Not sent: Antiphon does it itself, or it is a hint that changes no answer."""

    note: str


class Lacking(Struct, frozen=True):
    """A request that asks for it is a 400 with this reason."""

    reason: str


Cell = Sent | Kept | Lacking
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
            raise TypeError("a grammar is no response format")


def _schema_alone(constraint: Constraint) -> Json:
    schema = JsonSchema({"type": "object"}) if isinstance(constraint, JsonObject) else constraint
    return response_format(schema)


def _format_alone(constraint: StructuralTag) -> Json:
    """OVMS takes what is within the tag; what came before there were formats it does not know."""
    form = constraint.tag.get("format")
    if not isinstance(form, dict):
        raise UnsupportedParameter(
            "'text.format' with `structures` is not supported by the ovms engine: send a `format`.", param="text.format"
        )
    return form


def _definition(grammar: Grammar) -> str:
    return grammar.definition


def _under(name: str) -> Callable[[Grammar], Json]:
    return lambda grammar: {name: grammar.definition}


def _pairs(bias: dict[str, float]) -> list[list[float]]:
    """llama.cpp would take a key of an object for a text to look up."""
    return [[int(token), value] for token, value in bias.items()]


def _each(usual: Cell, **others: Cell) -> Column:
    """The same for all but some engines (a hyphen in an engine's name is an underscore here)."""
    given = {engine.replace("_", "-"): cell for engine, cell in others.items()}
    return {engine: given.get(engine, usual) for engine in NAMES}


def _everywhere(name: str, **others: Cell) -> Column:
    return _each(Sent(name), **others)


def _nowhere(reason: str, **others: Cell) -> Column:
    return _each(Lacking(reason), **others)


_OPENAI = Lacking("OpenAI's API has no such field.")
_OLLAMA = Lacking("Ollama's OpenAI endpoint has no such field.")
_NO_BEAMS = "It takes no beam width for a chat."
_NO_DRAFTS = "Drafting is settled when its server starts."
_BEAMS = "the width of a beam search; not streamed"
_CHOICE = "it lets no request choose among tools: Antiphon offers only the one that is named, and asks again for a call"
_NO_GRAMMARS = "It takes schemas only."
_NO_IDS = "It tells no token ids of a chat."
_NO_SUCH = "It has no such field."

TABLE: Final[dict[str, Column]] = {
    "max_output_tokens": _everywhere(
        "max_completion_tokens", llamacpp_server=Sent("max_tokens"), ollama=Sent("max_tokens")
    ),
    "temperature": _everywhere("temperature"),
    "top_p": _everywhere("top_p"),
    "top_k": _everywhere(
        "top_k",
        llamacpp_server=Sent("top_k", lambda value: max(value, 0), "−1 as 0, its word for «all»"),
        ollama=_OLLAMA,
        openai=_OPENAI,
    ),
    "min_p": _everywhere("min_p", ollama=_OLLAMA, openai=_OPENAI),
    "repetition_penalty": _everywhere(
        "repetition_penalty", llamacpp_server=Sent("repeat_penalty"), ollama=_OLLAMA, openai=_OPENAI
    ),
    "frequency_penalty": _everywhere("frequency_penalty"),
    "presence_penalty": _everywhere("presence_penalty"),
    "stop": _everywhere("stop"),
    "include_stop_str_in_output": _everywhere(
        "include_stop_str_in_output",
        sglang=Sent("no_stop_trim"),
        ovms=Sent(
            "include_stop_str_in_output",
            note="it always includes it in a stream; Antiphon trims what was not asked for",
        ),
        llamacpp_server=Lacking("llama.cpp's chat endpoint always leaves the stop string out."),
        ollama=Lacking("Ollama always leaves the stop string out."),
        openai=Lacking("OpenAI's API always leaves the stop string out."),
    ),
    "seed": _everywhere(
        "seed",
        sglang=Sent("seed", note="refused by one that was started without --enable-deterministic-inference"),
        llamacpp_server=Sent(
            "seed", lambda value: min(value, RANDOM_SEED - 1), "2³²−1, its word for «any», as one less"
        ),
    ),
    "ignore_eos": _everywhere("ignore_eos", ollama=_OLLAMA, openai=_OPENAI),
    "skip_special_tokens": _everywhere(
        "skip_special_tokens",
        llamacpp_server=Lacking("llama.cpp's chat endpoint parses special tokens away."),
        ollama=_OLLAMA,
        openai=_OPENAI,
    ),
    "n": _each(
        Kept("so many calls, put in order by their log probabilities"),
        ovms=Lacking("It gives no log probabilities that answers could be put in order by."),
    ),
    "best_of": _nowhere(
        _NO_BEAMS,
        vllm=Sent("n", note=_BEAMS, also={"use_beam_search": True}),
        ovms=Sent("best_of", note=_BEAMS),
    ),
    "length_penalty": _nowhere(_NO_BEAMS, vllm=Sent("length_penalty"), ovms=Sent("length_penalty")),
    "top_logprobs": _everywhere(
        "top_logprobs",
        vllm=Sent("top_logprobs", also={"logprobs": True}),
        sglang=Sent("top_logprobs", also={"logprobs": True}),
        ovms=Lacking("OpenVINO Model Server gives no log probabilities in a stream, and no alternatives at all."),
        llamacpp_server=Sent("top_logprobs", lambda value: max(value, 1), "at least 1", {"logprobs": True}),
        ollama=Sent("top_logprobs", also={"logprobs": True}),
        openai=Sent("top_logprobs", also={"logprobs": True}),
    ),
    "num_assistant_tokens": _nowhere(_NO_DRAFTS, ovms=Sent("num_assistant_tokens")),
    "assistant_confidence_threshold": _nowhere(_NO_DRAFTS, ovms=Sent("assistant_confidence_threshold")),
    "max_ngram_size": _nowhere(_NO_DRAFTS, ovms=Sent("max_ngram_size")),
    "text.format": {
        engine: Sent("response_format", response_format, "json_object and json_schema")
        if engine != "ovms"
        else Sent("response_format", _schema_alone, "json_object as the schema of any object")
        for engine in NAMES
    },
    "reasoning.effort": _everywhere(
        "reasoning_effort",
        ovms=Sent("chat_template_kwargs", lambda effort: {"enable_thinking": effort != "none"}, "as `enable_thinking`"),
        ollama=Sent(
            "reasoning_effort",
            lambda effort: OLLAMA_EFFORTS.get(effort, effort),
            "minimal as low, xhigh and max as high",
        ),
    ),
    "chat_template_kwargs": _everywhere("chat_template_kwargs", ollama=_OLLAMA, openai=_OPENAI),
    "structural_tag": _nowhere(
        "It takes no structural tags.",
        vllm=Sent("response_format", response_format),
        sglang=Sent("response_format", response_format),
        ovms=Sent("response_format", _format_alone, "the `format` within it"),
    ),
    "grammar.regex": _nowhere(
        _NO_GRAMMARS,
        vllm=Sent("structured_outputs", _under("regex")),
        sglang=Sent("regex", _definition),
        ovms=Sent("response_format", lambda grammar: {"type": "regex", "pattern": grammar.definition}),
    ),
    "grammar.gbnf": _nowhere(
        _NO_GRAMMARS,
        vllm=Sent("structured_outputs", _under("grammar")),
        sglang=Sent("ebnf", _definition),
        ovms=Sent("response_format", lambda grammar: {"type": "grammar", "grammar": grammar.definition}),
        llamacpp_server=Sent("grammar", _definition),
    ),
    "grammar.lark": _nowhere(
        "It takes no Lark grammars.", vllm=Sent("structured_outputs", _under("grammar"), "made into GBNF by it")
    ),
    "logit_bias": _everywhere(
        "logit_bias",
        ovms=Lacking(_NO_SUCH),
        llamacpp_server=Sent("logit_bias", _pairs, "as pairs"),
        ollama=_OLLAMA,
    ),
    "min_tokens": _nowhere(_NO_SUCH, vllm=Sent("min_tokens"), sglang=Sent("min_tokens")),
    "stop_token_ids": _nowhere(_NO_SUCH, vllm=Sent("stop_token_ids"), sglang=Sent("stop_token_ids")),
    "prompt_logprobs": _nowhere(
        "It gives no log probabilities of a prompt.", vllm=Sent("prompt_logprobs", note="not streamed")
    ),
    "return_token_ids": _nowhere(_NO_IDS, vllm=Sent("return_token_ids")),
    "kv_transfer_params": _nowhere(
        "It moves no caches by such parameters.", vllm=Sent("kv_transfer_params", note="not streamed")
    ),
    "cache_salt": _each(
        Kept("it has no such thing: all who use it share its cache"),
        vllm=Sent("cache_salt"),
        sglang=Sent("cache_salt"),
        openai=Kept("its caches belong to an organisation; see `prompt_cache_key` for tenants"),
    ),
    "prompt_cache_key": _each(
        Kept("nothing to tell: it finds common prefixes by itself"),
        openai=Sent("prompt_cache_key", note="a digest of it and the tenant, where there are tenants"),
    ),
    "priority": _nowhere("It knows no priorities.", vllm=Sent("priority"), sglang=Sent("priority")),
    "request_id": _nowhere("It takes no names of requests.", vllm=Sent("request_id"), sglang=Sent("rid")),
    "mm_processor_kwargs": _nowhere("It takes no settings of what reads images.", vllm=Sent("mm_processor_kwargs")),
    "tools": _everywhere("tools"),
    "tool_choice": _everywhere("tool_choice", ollama=Kept(_CHOICE)),
    "parallel_tool_calls": _everywhere(
        "parallel_tool_calls",
        ovms=Kept("calls after the first are dropped by Antiphon"),
        ollama=Kept("calls after the first are dropped by Antiphon"),
    ),
    "reasoning items": _everywhere(
        "reasoning_content",
        ollama=Sent("reasoning"),
        openai=Kept("the API takes no thoughts"),
    ),
    "input_image": {engine: Sent("messages", note="`image_url` parts with data URLs") for engine in NAMES},
}


def column(engine: str) -> Column:
    return {field: cells[engine] for field, cells in TABLE.items()}


def honoured(fields: Column) -> frozenset[str]:
    """Names of request fields, as Capabilities wants them."""
    names = {field for field, cell in fields.items() if not isinstance(cell, Lacking)} - _unsalted(fields)
    return frozenset(names | {"logprobs"} if "top_logprobs" in names else names)


def lacking(fields: Column) -> dict[str, str]:
    """Of each field that the engine lacks, why."""
    lacks = {field: cell.reason for field, cell in fields.items() if isinstance(cell, Lacking)}
    return lacks | dict.fromkeys(_unsalted(fields), "Its cache cannot be divided.")


def _unsalted(fields: Column) -> set[str]:
    """A tenant's salt is left out where there is no use for it; a client that asks for one is told so."""
    return {"cache_salt"} if isinstance(fields.get("cache_salt"), Kept) else set()


_SAID = Kept("the chat template says it")
_RAW: Final[Column] = {
    "max_output_tokens": Sent("max_tokens"),
    "top_logprobs": Sent("logprobs"),
    "reasoning.effort": _SAID,
    "chat_template_kwargs": _SAID,
    "reasoning items": _SAID,
    "tools": Kept("the model's chat template tells of them, and Antiphon reads the calls"),
    "tool_choice": Kept("Antiphon sees to it"),
    "parallel_tool_calls": Kept("calls after the first are dropped by Antiphon"),
    "input_image": Lacking("Images are seen at chat level only."),
    "mm_processor_kwargs": Lacking("Images are seen at chat level only."),
}
_NO_FORMATS = Lacking("It formats the answers of chats only.")


def _text(constraint: JsonObject | JsonSchema) -> str:
    schema = constraint.schema if isinstance(constraint, JsonSchema) else {"type": "object"}
    return msgspec.json.encode(schema).decode()


def _tag(constraint: StructuralTag) -> str:
    return msgspec.json.encode(response_format(constraint)).decode()


def _nested(*names: str, **others: str) -> Column:
    """Within SGLang's `sampling_params`, under the same name or another."""
    named = {**{name: name for name in names}, **others}
    return {field: Sent(f"sampling_params.{name}") for field, name in named.items()}


def _param(name: str, change: Callable[[Any], Any]) -> Cell:
    return Sent(f"sampling_params.{name}", change)


_BY_ENGINE: Final[dict[str, Column]] = {
    "vllm": {},
    "sglang": {
        **_nested(
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
            "stop", "ignore_eos", "skip_special_tokens", "logit_bias", "stop_token_ids",
            max_output_tokens="max_new_tokens", seed="sampling_seed", include_stop_str_in_output="no_stop_trim",
            min_tokens="min_new_tokens",
        ),
        "top_logprobs": Sent("top_logprobs_num", also={"return_logprob": True, "return_text_in_logprobs": True}),
        "text.format": _param("json_schema", _text),
        "structural_tag": _param("structural_tag", _tag),
        "grammar.regex": _param("regex", lambda grammar: grammar.definition),
        "grammar.gbnf": _param("ebnf", lambda grammar: grammar.definition),
        "return_token_ids": Sent("return_prompt_token_ids", note="of the prompt; those of the answer always come"),
    },
    "ovms": {
        "text.format": _NO_FORMATS,
        "structural_tag": _NO_FORMATS,
        "grammar.regex": _NO_FORMATS,
        "grammar.gbnf": _NO_FORMATS,
        "top_logprobs": column("ovms")["top_logprobs"],
    },
    "llamacpp-server": {
        "max_output_tokens": Sent("n_predict"),
        "include_stop_str_in_output": Kept("Antiphon adds it"),
        "top_logprobs": Sent("n_probs", lambda value: max(value, 1), "at least 1"),
        "text.format": Sent("json_schema", lambda constraint: guided(constraint).schema, "without white space"),
        "stop_token_ids": Kept("Antiphon ends the answer there"),
        "return_token_ids": Kept("they always come"),
    },
    "ollama": {"text.format": _NO_FORMATS},
    "openai": {"text.format": _NO_FORMATS},
}  # fmt: skip


def raw_column(engine: str) -> Column:
    return {**column(engine), **_RAW, **_BY_ENGINE[engine]}
