"""Log probabilities in the shape of completions: four lists, an entry for each token, with its place in the text."""

from collections.abc import Iterable
from typing import Any

from antiphon.errors import EngineFailed
from antiphon.protocol.completions import LegacyLogprobs
from antiphon.protocol.parts import Logprob


def legacy(logprobs: Iterable[Logprob], offset: int, top: int) -> LegacyLogprobs:
    """`offset`: where the first token begins; `top`: how many alternatives were asked for."""
    out = _empty(top)
    for said in logprobs:
        alternatives = {said.token: said.logprob, **{each.token: each.logprob for each in said.top_logprobs}}
        _add(out, said.token, said.logprob, alternatives, offset)
        offset += len(said.token)
    return out


def of_prompt(given: Any, text: str, top: int) -> LegacyLogprobs:
    """From vLLM's shape: for each token of the prompt but the first the likeliest ones by id, itself before all others.

    The first token follows nothing, so it has none; its text is what the others leave.
    """
    try:
        rest = [_likeliest(entry) for entry in given[1:]]
    except (TypeError, KeyError, AttributeError, StopIteration, ValueError):
        raise EngineFailed("The engine gave no log probabilities of the prompt.") from None
    first = text[: max(0, len(text) - sum([len(next(iter(each))) for each in rest]))]
    out, offset = _empty(top), len(first)
    _add(out, first, None, None, 0)
    for each in rest:
        token, logprob = next(iter(each.items()))
        _add(out, token, logprob, each, offset)
        offset += len(token)
    return out


def joined(one: LegacyLogprobs | None, other: LegacyLogprobs) -> LegacyLogprobs:
    """The other after the one, which is changed."""
    if one is None:
        return other
    one.text_offset += other.text_offset
    one.token_logprobs += other.token_logprobs
    one.tokens += other.tokens
    if one.top_logprobs is not None:
        one.top_logprobs += other.top_logprobs or ()
    return one


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


def _likeliest(entry: Any) -> dict[str, float]:
    found = {str(each["decoded_token"]): float(each["logprob"]) for each in entry.values()}
    if not found:
        raise ValueError("a token without itself")
    return found
