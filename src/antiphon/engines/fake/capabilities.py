"""Capabilities of the fake engine at each of its levels."""

from antiphon.core.prompt import ParserChoice
from antiphon.engines.base import Capabilities, PromptLevel
from antiphon.engines.fake.harmony_loader import ARCHITECTURE
from antiphon.engines.fake.tasks import supported_tasks
from antiphon.engines.fake.tokens import TEMPLATE, Level

_NO_EFFECT_FIELDS = {
    # Sampling fields that have no effect, because no output is random.
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed",
    "logit_bias",
}  # fmt: skip
_COMMON_FIELDS = _NO_EFFECT_FIELDS | {
    "max_output_tokens", "stop", "include_stop_str_in_output", "ignore_eos", "logprobs", "top_logprobs", "n",
    "text.format", "reasoning.effort", "chat_template_kwargs", "min_tokens", "grammar.regex", "dimensions",
    "truncate_prompt_tokens",
}  # fmt: skip
_CHAT_FIELDS = {
    "tools", "tool_choice", "parallel_tool_calls", "input_image", "input_file", "input_audio", "developer",
}  # fmt: skip
_TOKEN_ID_FIELDS = {"skip_special_tokens", "stop_token_ids", "return_token_ids"}  # only at levels whose tokens have ids
# The Harmony level does not cut its output: Antiphon itself ends it at a stop string.
_UNSUPPORTED_BY_HARMONY = {
    "stop",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "grammar.regex",
    "chat_template_kwargs",
}
_SUPPORTED_FIELDS: dict[Level, frozenset[str]] = {
    "chat": frozenset(_COMMON_FIELDS | _CHAT_FIELDS),
    "text": frozenset(_COMMON_FIELDS | {"skip_special_tokens"}),
    "tokens": frozenset(_COMMON_FIELDS | _TOKEN_ID_FIELDS),
    "harmony": frozenset((_COMMON_FIELDS | _TOKEN_ID_FIELDS) - _UNSUPPORTED_BY_HARMONY),
}
_UNSUPPORTED_REASONS = {"prompt_logprobs": "The fake engine computes no logprobs for prompts."}
_PROMPT_LEVELS: frozenset[PromptLevel] = frozenset({"chat", "text", "tokens"})


def build_capabilities(
    level: Level, context: int | None, slots: int | None, parser_choice: ParserChoice
) -> Capabilities:
    prompt_level: PromptLevel = "tokens" if level == "harmony" else level
    accepted_levels = _PROMPT_LEVELS if level == "chat" else _PROMPT_LEVELS - {"chat"}
    return Capabilities(
        level=prompt_level,
        other_levels=accepted_levels - {prompt_level},
        tasks=supported_tasks(level),
        supported_fields=_SUPPORTED_FIELDS[level],
        unsupported_reasons=_UNSUPPORTED_REASONS,
        context=context,
        slots=slots,
        can_count_tokens=True,
        template=TEMPLATE if level in ("text", "tokens") else None,
        architecture=ARCHITECTURE if level == "harmony" else "fake",
        parser_choice=parser_choice,
    )
