"""How a response goes on beyond one call of its model: what is done before, what runs its calls, and what comes next.

The service makes one for each response that may take more than one turn; a run without one has a single turn.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.agent.model_call import Plan
from antiphon.core.deltas import Delta, Said
from antiphon.core.prompt import Counts
from antiphon.protocol.types.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    OutputItem,
)
from antiphon.tools.base import Tool, Use

ClientCall = FunctionCall | CustomToolCall
ClientOutput = FunctionCallOutput | CustomToolCallOutput


class Floor(Protocol):
    """Where something is done for a response: what is fed is told, in its order."""

    def key(self) -> int:
        """For something new."""

    async def feed(self, *deltas: Delta) -> None: ...

    async def durable(self) -> None:
        """All that was fed is known to whoever takes this response over. Before anything that has an effect."""

    def count(self, counts: Counts) -> None:
        """A model was called for it."""


class Step(Protocol):
    """Something to be done before the model is called: list tools, compact the context."""

    async def take(self, floor: Floor) -> None:
        """What it raises ends the response."""


class Sofar(Struct, frozen=True, kw_only=True):
    """What the next call of the model is to know."""

    output: Sequence[OutputItem]  # of this response, all of it done
    said: Mapping[str, Said]  # what tools said that their items do not say, by the items' ids
    turns: Sequence[Counts]
    first: bool = False  # it has not been called yet
    spent: bool = False  # the server may run no more calls
    last: bool = False  # nothing may be called any more


class Course(Protocol):
    fence: int  # of the response's row; 0 if it has none before its end

    @property
    def steps(self) -> Sequence[Step]: ...

    @property
    def approved(self) -> Sequence[Use]:
        """Calls that a client allowed: they are run before the model is called. Their ids are not made yet."""

    @property
    def answered(self) -> bool:
        """What was asked for is done by the steps: the model has nothing to answer."""

    def tool(self, kind: str) -> Tool:
        """Who runs calls of this kind."""

    def recall(self, item: OutputItem, said: Said) -> None:
        """Another server had run this for the response, and the model was told so."""

    async def allow(self, use: Use) -> None:
        """The last word on a call that was approved: once. Raises what the client is told if it may not be run."""

    async def ask(self, use: Use, output: Sequence[OutputItem]) -> None:
        """An approval is about to be asked for: remember what for. Its id is that of the request; `output`: of this
        response so far."""

    async def outputs(self, calls: Sequence[ClientCall]) -> Sequence[ClientOutput] | None:
        """What the client's tools gave, once it is all there; None if nobody waits for that here."""

    async def next(self, sofar: Sofar) -> Plan | None:
        """The next call of the model, with a place at it; None if no tokens are left for an answer."""

    async def close(self) -> None:
        """The response has ended, whatever became of it."""
