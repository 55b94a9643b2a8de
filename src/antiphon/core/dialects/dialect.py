"""Another API's words for the same deltas: chat completions, completions, messages. Ids and time are handed in.

    begin ─▶ ( note* feed* end ) for each choice, interleaved ─▶ close
       └───────────────────────── or, at any moment ───────────▶ fault

agent/completion_run.py calls these in this order and tells what they give; transport frames it. What `begin` gives
is told
only together with the first words, so that whatever fails before them is a plain error. Nothing comes after `close` or
`fault`. The JSON body is the fold of what was told: `fold` is given every list, then `result` is asked; a stream pays
for no fold.

What an engine said beside its words, kept until it can be told: extras, and the ids of tokens. For each choice.

Counts of an exchange → the usage of a chat completion or a completion, and an error → the last thing in a stream.
"""

from collections.abc import Iterable
from typing import Protocol, get_args

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import Delta
from antiphon.core.prompt import Chunk, Counts, Extras, Finish
from antiphon.errors import AntiphonError
from antiphon.protocol.types.chat.response import (
    CompletionTokensDetails,
    CompletionUsage,
    PromptTokensDetails,
    StreamFault,
    Tier,
)
from antiphon.protocol.types.events import ErrorBody

Told = list[Struct]


class Head(Struct, frozen=True, kw_only=True):
    """What every piece of a chat completion or a completion says of the whole."""

    id: str
    created: int
    model: str
    service_tier: str | None = None  # the one that it runs in, if that is to be told


class Speaker(Protocol):
    """What is said of choices, numbered from 0: a request for several answers has several."""

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        """Before the deltas of this chunk are fed, if it has extras, or ids of tokens that were asked for."""

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> Told:
        """The token path."""

    def end(self, finish: Finish, counts: Counts, choice: int = 0) -> Told:
        """One choice is over, and took so many tokens."""


class Dialect(Speaker, Protocol):
    """One for each exchange."""

    def begin(self) -> Told:
        """What comes before the first word of any choice."""

    def close(self, counts: Counts) -> Told:
        """All of it is over, and took so many tokens together."""

    def fault(self, error: AntiphonError) -> Told:
        """It failed after something was told: the last thing of all."""

    def fold(self, told: Told) -> None:
        """Take what was told into the JSON body."""

    def result(self) -> Struct:
        """The JSON body, after everything was folded."""


_TIERS: dict[str, Tier] = {tier: tier for tier in get_args(Tier)}


class PassedOn:
    def __init__(self, choices: int, tier: str | None) -> None:
        """`tier`: of service, if it is to be told; an engine that says another one knows better."""
        self.extras = [Extras() for _ in range(choices)]
        self.tokens: list[list[int]] = [[] for _ in range(choices)]  # that were not told yet
        self._tier: Tier | UnsetType = _TIERS.get(tier or "", UNSET)
        self.fingerprint: str | None = None

    def note(self, chunk: Chunk, choice: int) -> None:
        self.tokens[choice] += chunk.tokens
        if (new := chunk.extras) is None:
            return
        known = self.extras[choice]
        for name in Extras.__struct_fields__:
            if (value := getattr(new, name)) is not None:
                setattr(known, name, value)
        self.fingerprint = new.system_fingerprint or self.fingerprint
        self._tier = _TIERS.get(new.service_tier or "", self._tier)

    @property
    def tier(self) -> Tier | UnsetType:
        return self._tier

    def take_tokens(self, choice: int) -> list[int] | UnsetType:
        taken, self.tokens[choice] = self.tokens[choice], []
        return taken or UNSET


def completion_usage(counts: Counts) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=counts.input_tokens,
        completion_tokens=counts.output_tokens,
        total_tokens=counts.input_tokens + counts.output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=counts.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=counts.reasoning_tokens),
    )


def stream_fault(error: AntiphonError) -> StreamFault:
    return StreamFault(
        error=ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code),
        retry_after=UNSET if error.retry_after is None else error.retry_after,
    )
