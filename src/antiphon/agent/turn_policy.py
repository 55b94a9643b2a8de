"""Interface for responses with more than one turn: steps before the model call, tools, and the next call.

The service creates one policy for each response that may take more than one turn; a run without one has a single turn.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.agent.model_call import ModelCall
from antiphon.core.deltas import Delta, ToolOutputContent
from antiphon.core.prompt import TokenCounts
from antiphon.protocol.types.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    OutputItem,
)
from antiphon.tools.base import ModelToolCall, ResponseTool

ClientCall = FunctionCall | CustomToolCall
ClientOutput = FunctionCallOutput | CustomToolCallOutput


class StepContext(Protocol):
    """Sink to which steps and tools emit the deltas of a response, in order."""

    def new_key(self) -> int:
        """Return an unused key for a new item."""

    async def feed(self, *deltas: Delta) -> None: ...

    async def wait_durable(self) -> None:
        """Wait until everything fed is visible to a server that takes the response over. Call it before any side
        effect.
        """

    def add_counts(self, counts: TokenCounts) -> None:
        """Add the token counts of a model call that a step made."""


class PreludeStep(Protocol):
    """Work before the first model call: list tools, compact the context."""

    async def take(self, context: StepContext) -> None:
        """Run the step. Exceptions end the response."""


class TurnState(Struct, frozen=True, kw_only=True):
    """Input for planning the next model call."""

    output: Sequence[OutputItem]  # items of this response, all done
    results: Mapping[str, ToolOutputContent]  # tool results for the model that the items do not contain, by item id
    turn_counts: Sequence[TokenCounts]
    is_first: bool = False  # the model has not been called yet
    calls_exhausted: bool = False  # the server may run no more calls
    is_last: bool = False  # no tool may be called any more


class TurnPolicy(Protocol):
    """Controls the turns of one response."""

    fence: int  # fencing token of the response's row; 0 if it has no row before its end

    @property
    def steps(self) -> Sequence[PreludeStep]: ...

    @property
    def approved(self) -> Sequence[ModelToolCall]:
        """Calls that the client approved, to be run before the model call. Their ids are not assigned yet."""

    @property
    def answered(self) -> bool:
        """Whether the steps produce the complete output, so that no model call follows."""

    def get_tool(self, kind: str) -> ResponseTool:
        """Return the tool that runs calls of this kind."""

    def recall(self, item: OutputItem, result: ToolOutputContent) -> None:
        """Restore the result of a call that another server ran for this response and that the model has seen."""

    async def consume_approval(self, call: ModelToolCall) -> None:
        """Consume the approval of a call, once, just before it runs. Raises the error for the client if it may not
        run.
        """

    async def record_approval_request(self, call: ModelToolCall, output: Sequence[OutputItem]) -> None:
        """Store what an approval is about to be requested for.

        The id of `call` is the id of the request; `output` holds the items of this response so far.
        """

    async def wait_for_outputs(self, calls: Sequence[ClientCall]) -> Sequence[ClientOutput] | None:
        """Wait for the outputs of the client's tools. Returns None if this response does not wait for them."""

    async def plan_turn(self, state: TurnState) -> ModelCall | None:
        """Return the next model call with its ticket, or None if no tokens remain for an answer."""

    async def close(self) -> None:
        """Release resources after the response has ended, however it ended."""
