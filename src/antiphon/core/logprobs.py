"""Log probabilities in the format of completions: four lists with one entry per token, with its offset in the text.

Their mean is the score by which several answers to one prompt are ranked.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.errors import EngineFailed
from antiphon.protocol.types.completions import LegacyLogprobs
from antiphon.protocol.types.parts import Logprob


def to_legacy_logprobs(logprobs: Iterable[Logprob], offset: int, top: int) -> LegacyLogprobs:
    """Convert log probabilities. `offset` is the position of the first token, `top` the number of alternatives
    requested.
    """
    out = _empty(top)
    for token_logprob in logprobs:
        alternatives = {
            token_logprob.token: token_logprob.logprob,
            **{each.token: each.logprob for each in token_logprob.top_logprobs},
        }
        _add(out, token_logprob.token, token_logprob.logprob, alternatives, offset)
        offset += len(token_logprob.token)
    return out


def prompt_to_legacy_logprobs(entries: Any, text: str, top: int) -> LegacyLogprobs:
    """Convert prompt log probabilities from vLLM's format: per token except the first, the likeliest tokens by id,
    beginning with the token itself.

    The first token has no predecessor and thus no log probability; its text is what the other tokens leave over.
    """
    try:
        alternatives = [_parse_alternatives(entry) for entry in entries[1:]]
    except (TypeError, KeyError, AttributeError, StopIteration, ValueError):
        raise EngineFailed("The engine returned no log probabilities of the prompt.") from None
    first = text[: max(0, len(text) - sum([len(next(iter(each))) for each in alternatives]))]
    out, offset = _empty(top), len(first)
    _add(out, first, None, None, 0)
    for each in alternatives:
        token, logprob = next(iter(each.items()))
        _add(out, token, logprob, each, offset)
        offset += len(token)
    return out


def extend_logprobs(logprobs: LegacyLogprobs | None, other: LegacyLogprobs) -> LegacyLogprobs:
    """Append `other`, modifying the first argument in place."""
    if logprobs is None:
        return other
    logprobs.text_offset += other.text_offset
    logprobs.token_logprobs += other.token_logprobs
    logprobs.tokens += other.tokens
    if logprobs.top_logprobs is not None:
        logprobs.top_logprobs += other.top_logprobs or ()
    return logprobs


def _empty(top: int) -> LegacyLogprobs:
    return LegacyLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[] if top else None)


def _add(
    out: LegacyLogprobs, token: str, logprob: float | None, alternatives: dict[str, float] | None, offset: int
) -> None:
    out.text_offset.append(offset)
    out.token_logprobs.append(logprob)
    out.tokens.append(token)
    if out.top_logprobs is not None:
        out.top_logprobs.append(alternatives)


def _parse_alternatives(entry: Any) -> dict[str, float]:
    found = {str(each["decoded_token"]): float(each["logprob"]) for each in entry.values()}
    if not found:
        raise ValueError("empty log probability entry")
    return found


def mean_logprob(logprobs: Sequence[float]) -> float:
    """Return the mean log probability per token, so that short answers are not favoured. Empty answers rank last."""
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
