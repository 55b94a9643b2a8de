"""Fields of chat completions and completions that a CreateResponse does not have.

They are validated here and applied by `service/planning/apply_extensions.py`. Fields that no engine supports are
rejected by name.
"""

from typing import Any, Final

from msgspec import Struct

from antiphon.core.prompt import Grammar, Json
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.types.chat.sampling import CompletionFields

# Per field: the values that have no effect, and the hint in the error for any other value.
UNSUPPORTED_FIELDS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "use_beam_search": ((False,), "Send `best_of` instead: it is the width of a beam search where the engine has one."),
    "truncate_prompt_tokens": ((), "Prompts that are too long are rejected, not truncated."),
    "allowed_token_ids": (([],), "Use `logit_bias` instead."),
    "bad_words": (([],), "Use `logit_bias` instead."),
    "logits_processors": (([],), "Requests cannot contain code."),
    "thinking_token_budget": ((), "Use `reasoning_effort` instead."),
    "repetition_detection": ((), "No engine behind this server supports it."),
    "request_id": ((), "Send the header x-request-id instead."),
}
_MAX_ID_DIGITS = 10  # of a token id


class ChatExtensions(Struct, frozen=True, kw_only=True):
    """Validated values of these fields."""

    choices: int = 1
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    priority: int | None = None
    cache_salt: str | None = None
    kv_transfer_params: Json | None = None
    grammar: Grammar | None = None
    grammar_param: str = ""


def read_extensions(
    request: CompletionFields, grammar: Grammar | None, grammar_param: str, limits: Limits
) -> ChatExtensions:
    """Validate the extension fields of a request. Raises InvalidValue."""
    _check_choices(request, limits)
    _check_min_tokens(request, limits)
    _check_bias(request.logit_bias or {}, limits)
    return ChatExtensions(
        choices=request.n or 1,
        logit_bias=request.logit_bias or None,
        min_tokens=request.min_tokens or None,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        prompt_logprobs=request.prompt_logprobs,
        return_token_ids=bool(request.return_token_ids),
        priority=request.priority or None,
        cache_salt=request.cache_salt,
        kv_transfer_params=request.kv_transfer_params,
        grammar=grammar,
        grammar_param=grammar_param,
    )


def reject_unsupported(
    request: CompletionFields, sent: frozenset[str], unsupported: dict[str, tuple[tuple[Any, ...], str]]
) -> None:
    """Raise UnsupportedParameter for a field that was sent with a value other than its neutral ones."""
    for name in sorted(unsupported.keys() & sent):  # sorted: the same request always gets the same error
        neutral, reason = unsupported[name]
        if getattr(request, name) not in neutral:
            raise UnsupportedParameter(f"'{name}' is not supported. {reason}", param=name)


def _check_choices(request: CompletionFields, limits: Limits) -> None:
    for name, value in (("n", request.n), ("best_of", request.best_of)):
        if value is not None and value > limits.choices:
            raise _invalid(name, f"at most {limits.choices} are allowed")
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise _invalid("best_of", "it must not be less than 'n'")


def _check_min_tokens(request: CompletionFields, limits: Limits) -> None:
    max_tokens = request.max_tokens if request.max_tokens is not None else limits.output_tokens
    if (request.min_tokens or 0) > min(max_tokens, limits.output_tokens):
        raise _invalid("min_tokens", f"at most {min(max_tokens, limits.output_tokens)} are allowed here")


def _check_bias(biases: dict[str, float], limits: Limits) -> None:
    if len(biases) > limits.parts:
        raise _invalid("logit_bias", f"at most {limits.parts} tokens are allowed")
    if not all(name.isdecimal() and name.isascii() and len(name) <= _MAX_ID_DIGITS for name in biases):
        raise _invalid("logit_bias", "keys must be token ids")


def _invalid(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)
