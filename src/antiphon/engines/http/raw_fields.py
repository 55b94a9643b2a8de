"""What differs from the table of fields where a raw prompt is completed: a text, or the ids of its tokens.

vLLM, OVMS, Ollama and OpenAI have `completions` for it; SGLang's own `/generate` and llama.cpp's own `/completion` tell
more, so they are asked there. What a chat template says, such as whether to think, is in the prompt by then.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from antiphon.core.prompt import JsonObject, JsonSchema, StructuralTag
from antiphon.engines.http.fields import Cell, Column, Kept, Lacking, Sent, column, response_format
from antiphon.engines.llamacpp.guide import guided

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
