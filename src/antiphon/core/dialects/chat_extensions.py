"""What chat completions and completions ask for beyond a CreateResponse: checked here, granted by
service/planning/apply_extensions.py.

What no engine behind Antiphon is asked for is refused here by name.
"""

from typing import Any, Final

from msgspec import Struct

from antiphon.core.prompt import Grammar, Json
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.types.chat.sampling import Generation

# Of each the values that ask for nothing, and why any other is refused.
REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "use_beam_search": ((False,), "Send `best_of` instead: it is the width of a beam search where the engine has one."),
    "truncate_prompt_tokens": ((), "A prompt that is too long is refused, not cut."),
    "allowed_token_ids": (([],), "`logit_bias` steers which tokens are chosen."),
    "bad_words": (([],), "`logit_bias` steers which tokens are chosen."),
    "logits_processors": (([],), "A request cannot bring code along."),
    "thinking_token_budget": ((), "`reasoning_effort` says how much to think."),
    "repetition_detection": ((), "It is not sent to any engine."),
    "request_id": ((), "It is not taken from the body: send the header x-request-id."),
}
_LONGEST_ID = 10  # digits of a token's


class Wishes(Struct, frozen=True, kw_only=True):
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


def wishes(asked: Generation, grammar: Grammar | None, grammar_param: str, limits: Limits) -> Wishes:
    _check_choices(asked, limits)
    _check_least(asked, limits)
    _check_bias(asked.logit_bias or {}, limits)
    return Wishes(
        choices=asked.n or 1,
        logit_bias=asked.logit_bias or None,
        min_tokens=asked.min_tokens or None,
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        prompt_logprobs=asked.prompt_logprobs,
        return_token_ids=bool(asked.return_token_ids),
        priority=asked.priority or None,
        cache_salt=asked.cache_salt,
        kv_transfer_params=asked.kv_transfer_params,
        grammar=grammar,
        grammar_param=grammar_param,
    )


def refuse(asked: Generation, sent: frozenset[str], refused: dict[str, tuple[tuple[Any, ...], str]]) -> None:
    for name in sorted(refused.keys() & sent):  # so that the same request is always refused in the same words
        harmless, reason = refused[name]
        if getattr(asked, name) not in harmless:
            raise UnsupportedParameter(f"'{name}' is not supported. {reason}", param=name)


def _check_choices(asked: Generation, limits: Limits) -> None:
    for name, value in (("n", asked.n), ("best_of", asked.best_of)):
        if value is not None and value > limits.choices:
            raise _unfit(name, f"at most {limits.choices} are allowed")
    if asked.best_of is not None and asked.best_of < (asked.n or 1):
        raise _unfit("best_of", "it must not be less than 'n'")


def _check_least(asked: Generation, limits: Limits) -> None:
    most = asked.max_tokens if asked.max_tokens is not None else limits.output_tokens
    if (asked.min_tokens or 0) > min(most, limits.output_tokens):
        raise _unfit("min_tokens", f"at most {min(most, limits.output_tokens)} are allowed here")


def _check_bias(biases: dict[str, float], limits: Limits) -> None:
    if len(biases) > limits.parts:
        raise _unfit("logit_bias", f"at most {limits.parts} tokens are allowed")
    if not all(name.isdecimal() and name.isascii() and len(name) <= _LONGEST_ID for name in biases):
        raise _unfit("logit_bias", "tokens are named by their ids")


def _unfit(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)
