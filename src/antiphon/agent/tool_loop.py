"""Model → tools → model, until the model has answered, wants something of the client, or a limit is reached.

    steps ─▶ turn ─▶ the server's calls, side by side ─▶ turn ─▶ … ─▶ the end
                └──▶ a client's call, or one that a client has to allow: the end, or a pause until it is answered

What a tool raises is caught here and becomes an item with an error; the run goes on. A call is known to whoever takes
the response over before it is run, and a call of which nobody knows what came of it is never run again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.model_call import Plan
from antiphon.agent.recovery import Remains, given_up
from antiphon.agent.run_tracer import Witness
from antiphon.agent.tool_resolver import Wish
from antiphon.agent.turn_policy import ClientCall, Course, Sofar
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ClientItem, Delta, Opened, Put, Ran, Said, Turned
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.prompt import Counts
from antiphon.errors import AntiphonError
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpApprovalRequest,
    McpListTools,
)
from antiphon.tools.base import Use, Used

log = logging.getLogger(__name__)

Outcome = Literal["completed", "failed", "late", "not_run"]
Tell = Callable[[list[Event]], Awaitable[None] | None]

TOO_MANY = "This was not run: the response has made as many tool calls as max_tool_calls allows."
INTERRUPTED = (
    "The server was restarted while this ran. It is not known whether it took effect, and it is not run again."
)


class Bounds(Struct, frozen=True, kw_only=True):
    """The operator's word, and the client's."""

    turns: int = 32  # with tools; then the model has to answer
    at_once: int = 8  # calls that run side by side
    calls: int | None = None  # max_tool_calls


class Deed(Struct, frozen=True):
    """Something for the server to run, and who runs it."""

    kind: str
    use: Use


class Loop:
    """Over all turns of one response. It is the Floor on which steps and tools say what they do."""

    def __init__(self, course: Course, bounds: Bounds, emitter: Emitter, turns: list[Counts]) -> None:
        """`turns`: of the run, which goes on counting."""
        self._course = course
        self._bounds = bounds
        self._emitter = emitter
        self._turns = turns
        self._tell: Tell = _nobody
        self._written: Callable[[], Awaitable[None]] | None = None
        self._one_by_one = asyncio.Lock()
        self._room = asyncio.Semaphore(bounds.at_once)
        self._said: dict[str, Said] = {}
        self._keys = 0
        self._calls = 0
        self._taken = 0  # turns
        self.out_of_tokens = False
        self.ran: list[tuple[str, Outcome, float]] = []  # kinds of what was called, what came of it, seconds
        self.witness: Witness | None = None

    def tell_to(self, tell: Tell, written: Callable[[], Awaitable[None]] | None) -> None:
        """Before anything else. `written`: until all that was fed is durable; None if nobody could take it over."""
        self._tell, self._written = tell, written

    # ---- the Floor

    def key(self) -> int:
        self._keys += 1
        return self._keys - 1

    async def feed(self, *deltas: Delta) -> None:
        async with self._one_by_one:
            events = self._emitter.feed([*deltas])
            # What makes no event is news only to those who keep the log.
            if (events or self._written is not None) and (telling := self._tell(events)) is not None:
                await telling

    async def durable(self) -> None:
        if self._written is not None:
            await self._written()

    def count(self, counts: Counts) -> None:
        self._turns.append(counts)

    # ---- the turns

    @property
    def prelude(self) -> bool:
        """Is there anything to be done before the first turn?"""
        return bool(self._course.steps or self._course.approved)

    async def begin(self, first: Plan) -> Plan | None:
        """What comes before the model is called; then the plan of the first turn."""
        if not self.prelude:
            return self._prepared(first)
        for step in self._course.steps:
            await step.take(self)
        return await self._first()

    async def resume(self, remains: Remains) -> Plan | None:
        """Where another server left off, between two turns: what it was running is given up, and the model is told."""
        self._keys, self._calls = remains.keys, remains.calls
        self._turns += remains.turns
        self._taken = len(remains.turns)
        self._said |= {self._emitter.item_id(key): said for key, said in remains.said.items()}
        for done in self._emitter.response.output:
            if (said := self._said.get(str(done.id))) is not None:
                self._course.recall(done, said)
        for key, item in remains.open.items():
            await self._end(key, given_up(item, INTERRUPTED))
        if any(isinstance(item, McpListTools) for item in remains.open.values()):
            for step in self._course.steps:
                await step.take(self)  # to list has no effect
        if not remains.turns:
            return await (self._next() if remains.allowed else self._first())
        return await self._go_on(ran=True, asked=remains.asked)

    async def _first(self) -> Plan | None:
        """What a client has allowed, and then the first turn."""
        if approved := self._course.approved:
            await self._run([await self._called(use) for use in approved])
        return await self._next()

    async def after(self, plan: Plan) -> Plan | None:
        """What the calls of a turn lead to: the plan of the next; None: that was the last."""
        declared = plan.declared
        self._keys = max(self._keys, declared.next_key)
        wishes = declared.wishes
        if not wishes and not declared.clients:
            return None
        await self.feed(Turned(self._turns[-1] if self._turns else None))
        await self._run([await self._opened(wish) for wish in wishes if not wish.offer.approval])
        asked = [wish for wish in wishes if wish.offer.approval]
        for wish in asked:
            await self._ask(wish)
        return await self._go_on(bool(wishes), bool(asked))

    async def close(self) -> None:
        await self._course.close()

    async def _go_on(self, ran: bool, asked: bool) -> Plan | None:
        """The client has the word if it is asked something, or if it has calls to run and nobody waits for that. An
        output that is more than a text is not waited for."""
        if asked or any(isinstance(item, ClientItem) for item in self._emitter.response.output):
            return None
        if calls := self._unanswered():
            await self.durable()
            outputs = await self._course.outputs(calls)
            if outputs is None:
                return None
            await self.feed(*map(Put, outputs))
        elif not ran:
            return None
        return await self._next()

    def _unanswered(self) -> list[ClientCall]:
        output = self._emitter.response.output
        answered = {item.call_id for item in output if isinstance(item, FunctionCallOutput | CustomToolCallOutput)}
        calls = [item for item in output if isinstance(item, FunctionCall | CustomToolCall)]
        return [call for call in calls if call.call_id not in answered]

    async def _next(self) -> Plan | None:
        if self._course.answered:
            return None
        sofar = Sofar(
            output=self._emitter.response.output,
            said=self._said,
            turns=self._turns,
            first=not self._taken,
            spent=self._bounds.calls is not None and self._calls >= self._bounds.calls,
            last=self._taken >= self._bounds.turns,
        )
        plan = await self._course.next(sofar)
        self.out_of_tokens = plan is None
        return None if plan is None else self._prepared(plan)

    def _prepared(self, plan: Plan) -> Plan:
        plan.declared.first = self._keys
        self._taken += 1
        return plan

    # ---- what the server runs

    async def _called(self, use: Use) -> Deed:
        """One that was approved: it is told like one that the model makes now."""
        key = self.key()
        started = CallStarted(key, use.name, "mcp", use.namespace, use.approval)
        await self.feed(started, CallDelta(key, use.arguments), CallDone(key))
        return Deed("mcp", replace(use, key=key, id=self._emitter.item_id(key)))

    async def _opened(self, wish: Wish) -> Deed:
        offer = wish.offer
        use = Use(key=wish.key, id="", name=offer.name, namespace=offer.namespace, arguments=wish.arguments)
        if (item := self._course.tool(offer.kind).opened(use)) is not None:
            await self.feed(Opened(wish.key, item))
        return Deed(offer.kind, replace(use, id=self._emitter.item_id(wish.key)))

    async def _run(self, deeds: Sequence[Deed]) -> None:
        if not deeds:
            return
        await self.durable()
        most = self._bounds.calls
        allowed = len(deeds) if most is None else max(0, most - self._calls)
        self._calls += min(len(deeds), allowed)
        async with asyncio.TaskGroup() as group:
            for deed in deeds[:allowed]:
                group.create_task(self._one(deed))
            for deed in deeds[allowed:]:
                group.create_task(self._end(deed.use.key, self._unrun(deed, "not_run", TOO_MANY)))

    async def _one(self, deed: Deed) -> None:
        async with self._room:
            if self.witness is None:
                used = await self._tried(deed)
            else:
                with self.witness.tool(deed.kind, deed.use) as seen:
                    used = await self._tried(deed)
                    seen.outcome = self.ran[-1][1]
        await self._end(deed.use.key, used)

    async def _tried(self, deed: Deed) -> Used:
        """Whatever a tool does, it ends here."""
        use, tool, began = deed.use, self._course.tool(deed.kind), monotonic()
        try:
            async with asyncio.timeout(tool.longest):
                if use.approval is not None:
                    await self._course.allow(use)
                used = await tool.run(use, self.feed)
        except TimeoutError:
            why = f"This took longer than the {tool.longest:g} seconds that a tool may take."
            return self._unrun(deed, "late", why, began)
        except AntiphonError as error:
            return self._unrun(deed, "failed", error.message, began)
        except Exception:
            log.exception("%s failed by a defect in the tool %s", use.id, deed.kind)
            return self._unrun(deed, "failed", "The server made a mistake while it ran this.", began)
        outcome: Outcome = "failed" if getattr(used.item, "status", "") == "failed" else "completed"
        self.ran.append((deed.kind, outcome, monotonic() - began))
        return used

    def _unrun(self, deed: Deed, outcome: Outcome, why: str, began: float | None = None) -> Used:
        """`began`: when it was tried; None: it was not."""
        self.ran.append((deed.kind, outcome, 0.0 if began is None else monotonic() - began))
        return self._course.tool(deed.kind).unrun(deed.use, why)

    async def _end(self, key: int, used: Used) -> None:
        if used.said:
            self._said[self._emitter.item_id(key)] = used.said
        await self.feed(Ran(key, used.item, used.said))

    async def _ask(self, wish: Wish) -> None:
        """Remembered before anybody is told, or an answer could come too early."""
        offer, label = wish.offer, wish.offer.namespace or ""
        item = McpApprovalRequest(server_label=label, name=offer.name, arguments=wish.arguments)
        async with self._one_by_one:
            events = self._emitter.feed([Put(item)])
            asked = self._emitter.response.output[-1]
            use = Use(key=wish.key, id=str(asked.id), name=offer.name, namespace=label, arguments=wish.arguments)
            await self._course.ask(use, self._emitter.response.output)
            if (telling := self._tell(events)) is not None:
                await telling


def _nobody(events: list[Event]) -> None:
    """Is told, and does not listen."""
