"""Model → tools → model, until the model has answered, the client has to act, or a limit is reached.

    steps ─▶ turn ─▶ server tool calls, concurrently ─▶ turn ─▶ … ─▶ end
                └──▶ a call that the client runs or has to approve: end, or pause until its output is there

Exceptions of a tool are caught here and become an item with an error; the run continues. A call is durable before it is
run, so that a server that takes over the response finds it; a call whose outcome is unknown is never run again.

The service creates one policy for each response that may take more than one turn; a run without one has a single turn.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.model_call_run import Sink
from antiphon.agent.recovery import Checkpoint, abandon_item
from antiphon.agent.run_tracer import RunTracer
from antiphon.agent.tool_resolver import ServerToolCall
from antiphon.core import deltas as dl
from antiphon.core.code_approvals import CODE_KINDS, CODE_LABELS, to_request_arguments
from antiphon.core.deltas import Delta, ToolOutputContent
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.response_views import list_unanswered
from antiphon.core.prompt import TokenCounts
from antiphon.errors import AntiphonError, EngineFailed, Internal, ToolCallLimitReached
from antiphon.protocol.types import items as it
from antiphon.protocol.types.events import Event
from antiphon.render.tools.client_tools import HOSTED_SHELL
from antiphon.tools.base import ModelToolCall, ResponseTool, Rewriter, ToolResult

log = logging.getLogger(__name__)

ClientCall = it.FunctionCall | it.CustomToolCall
ClientOutput = it.FunctionCallOutput | it.CustomToolCallOutput
ToolOutcome = Literal["completed", "failed", "late", "not_run"]

TOO_MANY_CALLS = "This was not run: the response has made as many tool calls as max_tool_calls allows."
INTERRUPTED = (
    "The server was restarted while this ran. It is not known whether it took effect, and it is not run again."
)


def find_tool_kind(item: it.OutputItem) -> str:
    """Return the kind of the built-in tool that an item of the server is from."""
    if isinstance(item, it.ShellCall | it.ShellCallOutput):
        return HOSTED_SHELL
    return str(item.__struct_config__.tag).removesuffix("_call")


class ToolLoopLimits(Struct, frozen=True, kw_only=True):
    """Limits of the operator and of the request."""

    max_turns: int = 32  # turns with tools; in the next one the model has to answer
    max_parallel: int = 8  # tool calls that run concurrently
    max_calls: int | None = None  # max_tool_calls of the request; None: unlimited


# Work before the first model call: list tools, compact the context. Exceptions end the response.
PreludeStep = Callable[["ToolLoop"], Awaitable[None]]


class TurnState(Struct, frozen=True, kw_only=True):
    """Input for planning the next model call."""

    output: Sequence[it.OutputItem]  # items of this response, all done
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

    def recall(self, item: it.OutputItem, result: ToolOutputContent) -> None:
        """Restore the result of a call that another server ran for this response and that the model has seen."""

    async def recover(self, output: Sequence[it.OutputItem]) -> Mapping[str, str]:
        """Let the tools continue a response that another server began, after its results were recalled.

        Returns what the model is told about interrupted calls, by the kind of their tool.
        """

    def make_rewriters(self) -> tuple[Rewriter, ...]:
        """Return what rewrites the output of the next turn."""

    async def consume_approval(self, call: ModelToolCall) -> None:
        """Consume the approval of a call, once, just before it runs. Raises the client's error if it may not run."""

    async def record_approval_request(self, call: ModelToolCall, output: Sequence[it.OutputItem]) -> None:
        """Store what an approval is about to be requested for.

        The id of `call` is the id of the request; `output` holds the items of this response so far.
        """

    async def wait_for_outputs(self, calls: Sequence[ClientCall]) -> Sequence[ClientOutput] | None:
        """Wait for the outputs of the client's tools. Returns None if this response does not wait for them."""

    async def plan_turn(self, state: TurnState) -> ModelCall | None:
        """Return the next model call with its ticket, or None if no tokens remain for an answer."""

    async def close(self) -> None:
        """Release resources after the response has ended, however it ended."""


class ToolLoop(Struct, eq=False):
    """All turns of one response. Steps and tools emit deltas through it, in order."""

    _policy: TurnPolicy
    _limits: ToolLoopLimits
    _emitter: Emitter
    _emit: Sink[Event]
    _turn_counts: list[TokenCounts]  # of the run, shared with it
    # waits until everything fed is durable; None if no other server could take the response over
    _wait_written: Callable[[], Awaitable[None]] | None
    _tracer: RunTracer | None
    _call_slots: asyncio.Semaphore
    _emit_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _results: dict[str, ToolOutputContent] = {}
    _next_key: int = 0
    _call_count: int = 0
    _turns_started: int = 0
    out_of_tokens: bool = False
    tool_outcomes: list[tuple[str, ToolOutcome, float]] = []  # kind, outcome and seconds of each tool call

    # ---- for steps and tools

    def new_key(self) -> int:
        """Return an unused key for a new item."""
        self._next_key += 1
        return self._next_key - 1

    async def feed(self, *deltas: Delta) -> None:
        async with self._emit_lock:
            events = self._emitter.feed([*deltas])
            # Deltas without events still matter to the writer of the log.
            if (events or self._wait_written is not None) and (pending := self._emit(events)) is not None:
                await pending

    async def wait_durable(self) -> None:
        """Wait until all that was fed is visible to a server that takes over. Call it before any side effect."""
        if self._wait_written is not None:
            await self._wait_written()

    def add_counts(self, counts: TokenCounts) -> None:
        """Add the token counts of a model call that a step made."""
        self._turn_counts.append(counts)

    # ---- turns

    @property
    def has_prelude(self) -> bool:
        """Whether there are steps or approved calls before the first turn."""
        return bool(self._policy.steps or self._policy.approved)

    async def begin(self, first_call: ModelCall) -> ModelCall | None:
        """Run the steps, then return the model call of the first turn."""
        if not self.has_prelude:
            return self._start_turn(first_call)
        for step in self._policy.steps:
            await step(self)
        return await self._plan_first_turn()

    async def resume(self, checkpoint: Checkpoint) -> ModelCall | None:
        """Continue where another server stopped between two turns. Calls that were running end as interrupted."""
        self._next_key, self._call_count = checkpoint.next_key, checkpoint.call_count
        self._turn_counts += checkpoint.turn_counts
        self._turns_started = len(checkpoint.turn_counts)
        self._results |= {self._emitter.get_item_id(key): result for key, result in checkpoint.results.items()}
        for output_item in self._emitter.response.output:
            if (result := self._results.get(str(output_item.id))) is not None:
                self._policy.recall(output_item, result)
        notes = await self._policy.recover(self._emitter.response.output)
        for key, item in checkpoint.open_items.items():
            reason = f"{INTERRUPTED} {notes.get(find_tool_kind(item), '')}".rstrip()
            await self._finish_item(key, abandon_item(item, reason))
        if any(isinstance(item, it.McpListTools) for item in checkpoint.open_items.values()):
            for step in self._policy.steps:
                await step(self)  # listing tools has no side effects
        if not checkpoint.turn_counts:
            return await (self._plan_turn() if checkpoint.approved_started else self._plan_first_turn())
        return await self._plan_or_stop(ran_calls=True, approval_requested=checkpoint.approval_requested)

    async def _plan_first_turn(self) -> ModelCall | None:
        """Run the calls that the client approved, then plan the first turn."""
        if approved := self._policy.approved:
            await self._run_all([await self._announce_approved(call) for call in approved])
        return await self._plan_turn()

    async def finish_turn(self, call: ModelCall) -> ModelCall | None:
        """Run the calls of a turn. Returns the next model call, or None after the last turn."""
        resolver = call.resolver
        self._next_key = max(self._next_key, resolver.next_key)
        server_calls = resolver.server_calls
        if not server_calls and not resolver.client_call_count:
            return None
        await self.feed(dl.TurnEnded(self._turn_counts[-1] if self._turn_counts else None))
        await self._run_all(
            [await self._announce_call(server_call) for server_call in server_calls if not server_call.offer.approval]
        )
        unapproved = [server_call for server_call in server_calls if server_call.offer.approval]
        for server_call in unapproved:
            await self._request_approval(server_call)
        return await self._plan_or_stop(bool(server_calls), bool(unapproved))

    async def close(self) -> None:
        await self._policy.close()

    async def _plan_or_stop(self, ran_calls: bool, approval_requested: bool) -> ModelCall | None:
        """Plan the next turn, or return None if the client has to act.

        The client acts if an approval was requested, if it has to run a call whose output is not awaited here, or for
        calls of its own tools such as a shell: outputs that are more than a text are never awaited.
        """
        output = self._emitter.response.output
        if approval_requested or any(isinstance(item, dl.ClientItem) for item in list_unanswered(output)):
            return None
        if calls := [item for item in list_unanswered(output) if isinstance(item, ClientCall)]:
            await self.wait_durable()
            if (outputs := await self._policy.wait_for_outputs(calls)) is None:
                return None
            await self.feed(*map(dl.ItemAdded, outputs))
        elif not ran_calls:
            return None
        return await self._plan_turn()

    async def _plan_turn(self) -> ModelCall | None:
        if self._policy.answered:
            return None
        state = TurnState(
            output=self._emitter.response.output,
            results=self._results,
            turn_counts=self._turn_counts,
            is_first=not self._turns_started,
            calls_exhausted=self._limits.max_calls is not None and self._call_count >= self._limits.max_calls,
            is_last=self._turns_started >= self._limits.max_turns,
        )
        call = await self._policy.plan_turn(state)
        self.out_of_tokens = call is None
        return None if call is None else self._start_turn(call)

    def _start_turn(self, call: ModelCall) -> ModelCall:
        call.resolver.first_key = self._next_key
        self._turns_started += 1
        return replace(call, rewriters=self._policy.make_rewriters())

    # ---- server tool calls

    async def _announce_approved(self, call: ModelToolCall) -> tuple[str, ModelToolCall]:
        """Emit the deltas of an approved call as if the model had just made it. A call of code has no namespace."""
        key, kind = self.new_key(), "mcp" if call.namespace is not None else CODE_KINDS[call.name]
        if (item := self._policy.get_tool(kind).start_item(call)) is not None:
            await self.feed(dl.ServerItemStarted(key, item))
        else:
            streamed: dl.CallKind = "mcp" if kind == "mcp" else "code_interpreter"
            started = dl.CallStarted(key, call.name, streamed, call.namespace, call.approval_id)
            deltas: list[Delta] = [started, dl.CallDelta(key, call.arguments), dl.CallDone(key)]
            for rewriter in self._policy.make_rewriters():  # it names the container
                deltas = [*rewriter.feed(deltas), *rewriter.finish()]
            await self.feed(*deltas)
        return kind, replace(call, key=key, id=self._emitter.get_item_id(key))

    async def _announce_call(self, server_call: ServerToolCall) -> tuple[str, ModelToolCall]:
        offer = server_call.offer
        if (item := self._policy.get_tool(offer.kind).start_item(server_call.to_model_call())) is not None:
            await self.feed(dl.ServerItemStarted(server_call.key, item))
        return offer.kind, server_call.to_model_call(self._emitter.get_item_id(server_call.key))

    async def _run_all(self, invocations: Sequence[tuple[str, ModelToolCall]]) -> None:
        if not invocations:
            return
        await self.wait_durable()
        limit = self._limits.max_calls
        allowed = len(invocations) if limit is None else max(0, limit - self._call_count)
        self._call_count += min(len(invocations), allowed)
        async with asyncio.TaskGroup() as group:
            for kind, call in invocations[:allowed]:
                group.create_task(self._run_one(kind, call))
            for kind, call in invocations[allowed:]:
                failure = ToolCallLimitReached(TOO_MANY_CALLS, param="max_tool_calls")
                group.create_task(self._finish_item(call.key, self._record_failure(kind, call, "not_run", failure)))

    async def _run_one(self, kind: str, call: ModelToolCall) -> None:
        async with self._call_slots:
            if self._tracer is None:
                result = await self._execute(kind, call)
            else:
                with self._tracer.start_tool(kind, call) as trace:
                    result = await self._execute(kind, call)
                    trace.outcome = self.tool_outcomes[-1][1]
        await self._finish_item(call.key, result)

    async def _execute(self, kind: str, call: ModelToolCall) -> ToolResult:
        """Run the call under its timeout. Every failure becomes a result."""
        tool, started = self._policy.get_tool(kind), monotonic()
        try:
            async with asyncio.timeout(tool.max_seconds):
                if call.approval_id is not None:
                    await self._policy.consume_approval(call)
                result = await tool.run(call, self.feed)
        except TimeoutError:
            late = EngineFailed(f"This took longer than the {tool.max_seconds:g} seconds that a tool may take.")
            return self._record_failure(kind, call, "late", late, started)
        except AntiphonError as error:
            return self._record_failure(kind, call, "failed", error, started)
        except Exception:
            log.exception("%s failed with an unexpected exception in the tool %s", call.id, kind)
            defect = Internal("The server made a mistake while it ran this.")
            return self._record_failure(kind, call, "failed", defect, started)
        outcome: ToolOutcome = "failed" if getattr(result.item, "status", "") == "failed" else "completed"
        self.tool_outcomes.append((kind, outcome, monotonic() - started))
        return result

    def _record_failure(
        self, kind: str, call: ModelToolCall, outcome: ToolOutcome, failure: AntiphonError, started: float | None = None
    ) -> ToolResult:
        """Return the result of a call that failed. `started` is None if the call was not attempted."""
        self.tool_outcomes.append((kind, outcome, 0.0 if started is None else monotonic() - started))
        return self._policy.get_tool(kind).make_failed_result(call, failure)

    async def _finish_item(self, key: int, result: ToolResult) -> None:
        if result.model_output:
            self._results[self._emitter.get_item_id(key)] = result.model_output
        await self.feed(dl.ServerItemDone(key, result.item, result.model_output))

    async def _request_approval(self, server_call: ServerToolCall) -> None:
        """Request an approval from the client. It is stored before its event, or the answer could come too early."""
        offer, call = server_call.offer, server_call.to_model_call()
        label = CODE_LABELS.get(offer.kind)
        item = it.McpApprovalRequest(
            server_label=label or offer.namespace or "",
            name=label or offer.name,
            arguments=to_request_arguments(offer.kind, call.arguments),
        )
        async with self._emit_lock:
            events = self._emitter.feed([dl.ItemAdded(item)])
            output = self._emitter.response.output
            with ExitStack() as cleanup:
                cleanup.callback(self._emitter.send_with_end, events)  # if it fails: their numbers are used
                call = replace(
                    call, id=str(output[-1].id), name=item.name, namespace=item.server_label, arguments=item.arguments
                )
                await self._policy.record_approval_request(call, output)
                cleanup.pop_all()
            if (pending := self._emit(events)) is not None:
                await pending
