"""Dialects: other APIs' output formats for the same deltas (chat completions, completions, messages). Ids and time are
passed in.

    begin ─▶ ( note* feed* end ) for each choice, interleaved ─▶ close
       └───────────────────────── or, at any moment ───────────▶ fail

`agent/completion_run.py` calls these methods in this order and sends the returned events; the transport frames them.
The events of `begin` are sent only together with the first output, so that an earlier failure is a plain error
response. No events follow `close` or `fail`. The JSON body is the fold of the events: every list is passed to
`fold_events`, then `result` returns the body. A stream does not fold.

`PlainTextEmitter` is the dialect for model calls of the server itself, which are not sent to any client.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any, Protocol, get_args

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import Delta, Text
from antiphon.core.prompt import Chunk, EngineExtras, FinishKind, TokenCounts
from antiphon.errors import AntiphonError
from antiphon.protocol.types.chat import response as wire
from antiphon.protocol.types.chat.response import ChatModeration
from antiphon.protocol.types.completions import Completion
from antiphon.protocol.types.events import ErrorBody

WireEvents = list[Struct]


class CompletionHeader(Struct, frozen=True, kw_only=True):
    """Fields that every chunk of a chat completion or a completion repeats."""

    id: str
    created: int
    model: str
    service_tier: str | None = None  # the effective service tier, if it is to be reported


class Dialect(Protocol):
    """The output format of one run. Choices are numbered from 0: a request for several answers has several."""

    moderation: ChatModeration | UnsetType = UNSET  # set before `close`, for a run that is moderated

    def begin(self) -> WireEvents:
        """Return the events before the first output of any choice."""
        return []

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        """Store the extras and requested token ids of a chunk; called before the deltas of that chunk are fed."""

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> WireEvents:
        """Convert deltas to events. This is the token path."""

    def end(self, finish: FinishKind, counts: TokenCounts, choice: int = 0) -> WireEvents:
        """End one choice, with its token counts."""

    def close(self, counts: TokenCounts) -> WireEvents:
        """End all output, with the total token counts."""

    def fail(self, error: AntiphonError) -> WireEvents:
        """Return the last events of a run that failed after events were sent."""
        return []

    def fold_events(self, events: WireEvents) -> None:
        """Add sent events to the JSON body."""

    def result(self) -> Struct:
        """Return the JSON body after all events were folded."""


_TIERS: dict[str, wire.Tier] = {tier: tier for tier in get_args(wire.Tier)}


class CompletionDialect(Dialect):
    """Base class of chat completions and completions: usage, the fold, and the extras and token ids of the engine,
    which are stored per choice until they can be sent.
    """

    def __init__(self, header: CompletionHeader, choices: int, include_usage: bool, usage_base: int | None) -> None:
        """`usage_base`: prompt tokens; if set, every chunk has the usage so far."""
        self._id, self._created, self._model = header.id, header.created, header.model
        self._usage: UnsetType | None = None if include_usage else UNSET  # in chunks before the last
        self._usage_base = usage_base
        self._output_chunks = 0
        self._extras = [EngineExtras() for _ in range(choices)]
        self._tokens: list[list[int]] = [[] for _ in range(choices)]  # not sent yet
        self._tier: wire.Tier | UnsetType = _TIERS.get(header.service_tier or "", UNSET)
        self._fingerprint: str | None = None
        self._folded: list[list[Any]] = [[] for _ in range(choices)]  # pieces of each choice
        self._last: Any = None  # the last chunk that was folded: it has the usage and the fields of the engine

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        self._tokens[choice] += chunk.tokens
        if (new := chunk.extras) is not None:
            forward_fields(new, self._extras[choice], *EngineExtras.__struct_fields__)
            self._fingerprint = new.system_fingerprint or self._fingerprint
            self._tier = _TIERS.get(new.service_tier or "", self._tier)  # the engine's tier takes precedence

    def fail(self, error: AntiphonError) -> WireEvents:
        body = ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code)
        return [wire.StreamFault(error=body, retry_after=UNSET if error.retry_after is None else error.retry_after)]

    def fold_events(self, events: WireEvents) -> None:
        for chunk in events:
            if not isinstance(chunk, wire.StreamFault):  # after an error there is no result
                self._last = chunk
                for choice in chunk.choices:  # type: ignore[attr-defined]  # a chunk of the subclass
                    self._folded[choice.index].append(choice)

    def _fold_tokens(self, choice: int) -> list[int] | UnsetType:
        return [*chain.from_iterable([piece.token_ids or () for piece in self._folded[choice]])] or UNSET

    def _take_tokens(self, choice: int) -> list[int] | UnsetType:
        taken, self._tokens[choice] = self._tokens[choice], []
        return taken or UNSET

    def _add_engine_fields(self, chunk: wire.ChatChunk | Completion) -> None:
        chunk.service_tier = self._tier
        if self._fingerprint is not None:
            chunk.system_fingerprint = self._fingerprint

    def _count_chunk(self, is_last: bool) -> wire.CompletionUsage:
        """Return the usage so far. An engine reports it at the end; until then every chunk counts as one token."""
        self._output_chunks += not is_last
        return completion_usage(TokenCounts(input_tokens=self._usage_base or 0, output_tokens=self._output_chunks))


def forward_fields(source: EngineExtras, target: Struct, *names: str) -> None:
    for name in names:
        if (value := getattr(source, name)) is not None:
            setattr(target, name, value)


def completion_usage(counts: TokenCounts) -> wire.CompletionUsage:
    return wire.CompletionUsage(
        prompt_tokens=counts.input_tokens,
        completion_tokens=counts.output_tokens,
        total_tokens=counts.input_tokens + counts.output_tokens,
        prompt_tokens_details=wire.PromptTokensDetails(cached_tokens=counts.cached_tokens),
        completion_tokens_details=wire.CompletionTokensDetails(reasoning_tokens=counts.reasoning_tokens),
    )


class PlainTextResult(Struct, frozen=True, kw_only=True):
    """The complete text and its token counts."""

    text: str
    counts: TokenCounts
    truncated: bool  # the token limit was reached


class PlainTextEmitter(Dialect):
    """Collects text; reasoning, calls and refusals are ignored."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._counts = TokenCounts()
        self._finish: FinishKind = "stop"

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        pass

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> WireEvents:
        return [delta for delta in deltas if type(delta) is Text]

    def end(self, finish: FinishKind, counts: TokenCounts, choice: int = 0) -> WireEvents:
        self._finish = finish
        return []

    def close(self, counts: TokenCounts) -> WireEvents:
        self._counts = counts
        return []

    def fold_events(self, events: WireEvents) -> None:
        self._pieces += [event.text for event in events if isinstance(event, Text)]

    def result(self) -> PlainTextResult:
        return PlainTextResult(text="".join(self._pieces), counts=self._counts, truncated=self._finish == "length")
