"""Which of several engines gets a work: the one whose caches are warm for it, unless that has too much to do.

Every member has a rank for a key, made by hashing both (rendezvous hashing), so each server in front of the same
engines ranks them alike, and when one goes only its own keys move. The first in rank that keeps its share of the
load within SKEW times the mean, and one more, gets the work; the least loaded always does, so somebody is chosen.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, Prompt, TextPrompt, TokenPrompt, Work

SKEW = 1.25
MOST_LETTERS = 4096  # of each text that a key is made of
MOST_TEXTS = 32
MOST_TOKENS = 64


class Candidate(Struct, frozen=True):
    """`place` is the same wherever this engine is configured."""

    place: str
    running: int
    slots: int | None = None


def choose(candidates: Sequence[Candidate], key: bytes) -> int:
    """Its number. There is at least one."""
    if len(candidates) == 1:
        return 0
    bounds = _bounds(candidates)
    ranked = sorted(range(len(candidates)), key=lambda number: _rank(candidates[number].place, key), reverse=True)
    return next(number for number in ranked if candidates[number].running + 1 <= bounds[number])


def least(candidates: Sequence[Candidate]) -> int:
    """The number of the one that has least to do, for what no cache makes faster."""
    return min(range(len(candidates)), key=lambda number: _load(candidates[number]))


def affinity(work: Work) -> bytes:
    """What works with a common beginning have in common: what the client says, else the beginning itself."""
    digest = blake2b(digest_size=16, person=b"antiphon-pool")
    for part in (work.model, work.salt or "", *_beginning(work)):
        data = part[:MOST_LETTERS].encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def _bounds(candidates: Sequence[Candidate]) -> list[float]:
    """How much each may have with this work: its share by slots, or the same for all where not all have a bound."""
    total = sum(candidate.running for candidate in candidates) + 1
    slots = [candidate.slots for candidate in candidates]
    weights = [1] * len(slots) if None in slots else [one or 1 for one in slots]
    return [SKEW * total * weight / sum(weights) + 1 for weight in weights]


def _load(candidate: Candidate) -> tuple[float, str]:
    return candidate.running / (candidate.slots or 1), candidate.place


def _rank(place: str, key: bytes) -> bytes:
    return blake2b(place.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()


def _beginning(work: Work) -> list[str]:
    return [work.affinity] if work.affinity is not None else [*islice(_root(work.prompt), MOST_TEXTS)]


def _root(prompt: Prompt) -> Iterator[str]:
    """What stays the same as a conversation grows: all up to its first user message, or its first text."""
    match prompt:
        case ChatPrompt(messages=messages):
            for message in messages:
                yield from _texts(message)
                if message.get("role") == "user":
                    return
        case TextPrompt(segments=segments):
            for segment in segments:
                yield segment.text
                if not segment.control:
                    return
        case TokenPrompt(tokens=tokens):
            yield ",".join(map(str, tokens[:MOST_TOKENS]))


def _texts(value: Any) -> Iterator[str]:
    """All of them, in order; JSON that was vetted is not deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
