"""Chooses the engine for a request: the one with a warm cache for it, unless that one is overloaded.

Every member has a rank for a key, which is a hash of both (rendezvous hashing). So all servers in front of the same
engines rank them alike, and if one is removed only its own keys move. The first member in rank whose load stays within
SKEW times the mean, plus one, is chosen. The least loaded member always satisfies that, so there is always a choice.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

from msgspec import Struct

from antiphon.core.prompt import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt

SKEW = 1.25
MAX_TEXT_LENGTH = 4096  # characters of each text that go into a key
MAX_TEXTS = 32
MAX_TOKENS = 64


class LoadCandidate(Struct, frozen=True):
    """A member as the balancer sees it. `location` is the same on every server that has this engine."""

    location: str
    running: int
    slots: int | None = None


def choose(candidates: Sequence[LoadCandidate], key: bytes) -> int:
    """Return the index of the candidate for a key; there is at least one candidate."""
    if len(candidates) == 1:
        return 0
    limits = _load_limits(candidates)
    ranked = sorted(range(len(candidates)), key=lambda index: _rank(candidates[index].location, key), reverse=True)
    return next(index for index in ranked if candidates[index].running + 1 <= limits[index])


def choose_least_loaded(candidates: Sequence[LoadCandidate]) -> int:
    """Return the index of the least loaded candidate, for requests that no cache makes faster."""
    return min(range(len(candidates)), key=lambda index: _load(candidates[index]))


def affinity_key(request: GenerationRequest) -> bytes:
    """Return a key that requests with a common prefix share: the client's own affinity, else a digest of the prefix."""
    digest = blake2b(digest_size=16, person=b"antiphon-pool")
    for part in (request.model, request.salt or "", *_prefix_texts(request)):
        data = part[:MAX_TEXT_LENGTH].encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def _load_limits(candidates: Sequence[LoadCandidate]) -> list[float]:
    """Return the maximum load per candidate with this request: by slots, or equal if not all have a limit."""
    total = sum(candidate.running for candidate in candidates) + 1
    slots = [candidate.slots for candidate in candidates]
    weights = [1] * len(slots) if None in slots else [one or 1 for one in slots]
    return [SKEW * total * weight / sum(weights) + 1 for weight in weights]


def _load(candidate: LoadCandidate) -> tuple[float, str]:
    return candidate.running / (candidate.slots or 1), candidate.location


def _rank(location: str, key: bytes) -> bytes:
    return blake2b(location.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()


def _prefix_texts(request: GenerationRequest) -> list[str]:
    return [request.affinity] if request.affinity is not None else [*islice(_stable_prefix(request.prompt), MAX_TEXTS)]


def _stable_prefix(prompt: Prompt) -> Iterator[str]:
    """Yield the part that stays the same as a conversation grows: up to its first user message, or its first text."""
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
            yield ",".join(map(str, tokens[:MAX_TOKENS]))


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in order. Recursion is bounded, because the depth of the JSON was checked before."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
