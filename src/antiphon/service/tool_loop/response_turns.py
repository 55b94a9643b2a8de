"""The course of one response: its tools, what a client allowed, what it waits for, and the request as it goes on.

Each turn is the same request, further along: its input is followed by the output so far, and what a demand asked for is
asked for once.

Several who change what a model says on its way out, one after the other.

What tools said, made shorter: a result that does not fit the model's context is told in part, and says so.

The items keep all of it; only what the model is told is less.

Whether a response may go on beyond one turn, and by what course: tools that run here, what a client has allowed, a
conversation that has to be compacted first, outputs that are waited for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.model_call import Plan
from antiphon.agent.turn_policy import ClientCall, ClientOutput, Floor, Sofar, Step
from antiphon.core.deltas import Delta, Opened, Ran, Said
from antiphon.errors import AntiphonError, ContextTooLong, InvalidValue
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.builtin_items import McpListedTool
from antiphon.protocol.types.items import (
    AdditionalTools,
    CompactionTrigger,
    InputItem,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    OutputItem,
    ToolSearchOutput,
)
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import AllowedTools, CustomTool, FunctionTool, McpTool, NamespaceTool, ToolChoice
from antiphon.render.tools.client_tools import ClientTool
from antiphon.service.prompting.prepare import Prepared
from antiphon.service.tool_loop.approvals import Approved, Deed
from antiphon.service.tool_loop.compaction_step import CompactionStep
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.tools.base import Rewriter, Tool, Use
from antiphon.tools.mcp.response_tools import McpTools

STEPS: Final = (None, 65_536, 16_384, 4_096, 1_024)  # characters of each result; None: all


def abridged(output: Sequence[OutputItem], said: Mapping[str, Said], most: int | None) -> Mapping[str, Said]:
    """What the model is told of each, by the items' ids."""
    if most is None:
        return said
    whole = {str(item.id): item.output for item in output if isinstance(item, McpCall) and item.output}
    return {name: _cut(text, most) if isinstance(text, str) else text for name, text in {**whole, **said}.items()}


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most:,} more characters are left out: they do not fit the context.]"


def joined(rewriters: Sequence[Rewriter]) -> Rewriter | None:
    if not rewriters:
        return None
    return rewriters[0] if len(rewriters) == 1 else _Joined(rewriters)


class _Joined:
    def __init__(self, rewriters: Sequence[Rewriter]) -> None:
        self._rewriters = rewriters

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        for rewriter in self._rewriters:
            deltas = rewriter.feed(deltas)
        return [*deltas]

    def finish(self) -> list[Delta]:
        rest: list[Delta] = []
        for rewriter in self._rewriters:
            rest = rewriter.feed(rest) + rewriter.finish()
        return rest


log = logging.getLogger(__name__)

Replan = Callable[[Decoded, Mapping[str, Said]], Awaitable[Plan]]  # with a place at the model, for which it waits

_CLIENTS = (FunctionTool, CustomTool, NamespaceTool, *get_args(ClientTool))


class Going(Struct, frozen=True, kw_only=True):
    """What is settled of a response."""

    tenant: str
    id: str
    decoded: Decoded
    earlier: Sequence[InputItem]
    waits: bool = False  # for what the client's tools give


class ResponseCourse:
    def __init__(self, going: Going, toolkit: Toolkit, replan: Replan) -> None:
        self._going = going
        self._toolkit = toolkit
        self._replan = replan
        self._tools: dict[str, Tool] = {}
        self._mcp: McpTools | None = None
        self.steps: list[Step] = []
        self.approved: list[Use] = []
        self.answered = False  # what was asked for is done when the steps are
        self._compaction: CompactionStep | None = None
        self.fence = 0  # of its row
        self._open()

    def compact(self, step: CompactionStep) -> None:
        """Before anything else."""
        self.steps.append(step)
        self._compaction, self.answered = step, step.ends

    def list_tools(self, unlisted: Sequence[str]) -> None:
        """Of these servers nobody knows yet what they offer; of others it may be known that they offer other things."""
        if self._mcp is None or self.answered:
            return
        if labels := [*unlisted, *self._outdated(self._mcp)]:
            self.steps.append(Listing(self._mcp, labels))

    def run_approved(self, approved: Sequence[Approved]) -> None:
        self.approved += [
            Use(
                key=0,
                id="",
                name=each.request.name,
                namespace=each.request.server_label,
                arguments=each.request.arguments,
                approval=each.request_id,
            )
            for each in approved
        ]

    def tool(self, kind: str) -> Tool:
        return self._tools[kind]

    def recall(self, item: OutputItem, said: Said) -> None:
        kind = str(item.__struct_config__.tag).removesuffix("_call")
        if kind in self._tools:
            self._tools[kind].recall(said)

    async def allow(self, use: Use) -> None:
        assert self._mcp is not None
        assert self._toolkit.approvals is not None
        assert use.approval is not None
        definition = await self._mcp.definition(use.namespace or "", use.name)
        await self._toolkit.approvals.use(self._going.tenant, use.approval, self._deed(use, definition))

    async def ask(self, use: Use, output: Sequence[OutputItem]) -> None:
        """What the client allows is what the model was shown."""
        assert self._toolkit.approvals is not None
        shown = _shown([*self._going.earlier, *self._going.decoded.request.input, *output], use)
        await self._toolkit.approvals.ask(self._going.tenant, use.id, self._deed(use, shown))

    async def outputs(self, calls: Sequence[ClientCall]) -> Sequence[ClientOutput] | None:
        going, outputs = self._going, self._toolkit.outputs
        if not going.waits or outputs is None or not self.fence:
            return None
        return await outputs.wait(going.tenant, going.id, self.fence, calls)

    async def next(self, sofar: Sofar) -> Plan | None:
        request = self._going.decoded.request
        spent = sum([turn.output_tokens for turn in sofar.turns])
        spent -= 0 if self._compaction is None else self._compaction.tokens
        left = None if request.max_output_tokens is None else request.max_output_tokens - spent
        if left is not None and left <= 0:
            return None
        further = replace(
            request,
            input=[*request.input, *sofar.output],
            max_output_tokens=left,
            tools=[tool for tool in request.tools if isinstance(tool, _CLIENTS)] if sofar.spent else request.tools,
            tool_choice=_choice(request, sofar),
        )
        plan = await self._fitted(replace(self._going.decoded, request=further), sofar)
        return replace(plan, rewriter=self._rewriter())

    async def _fitted(self, decoded: Decoded, sofar: Sofar) -> Plan:
        """With as much of what tools said as the context has room for."""
        for most in STEPS[:-1]:
            try:
                return await self._replan(decoded, abridged(sofar.output, sofar.said, most))
            except ContextTooLong:
                log.info("%s: what its tools said is too long, and is told in part", self._going.id)
        return await self._replan(decoded, abridged(sofar.output, sofar.said, STEPS[-1]))

    async def close(self) -> None:
        for tool in self._tools.values():
            await tool.close()

    def _open(self) -> None:
        request, tenant = self._going.decoded.request, self._going.tenant
        servers = [tool for tool in request.tools if isinstance(tool, McpTool)]
        if servers and self._toolkit.mcp is not None:
            self._mcp = self._tools["mcp"] = self._toolkit.mcp.begin(tenant, servers)
        for kind, (serving, declared) in self._toolkit.served(request, self._going.earlier).items():
            self._tools[kind] = serving.begin(declared, tenant, frozenset(request.include))

    def _outdated(self, mcp: McpTools) -> list[str]:
        items = [*self._going.earlier, *self._going.decoded.request.input]
        last = {item.server_label: item for item in items if isinstance(item, McpListTools)}
        return [label for label, item in last.items() if mcp.outdated(item)]

    def _rewriter(self) -> Rewriter | None:
        return joined([rewriter for tool in self._tools.values() if (rewriter := tool.rewriter()) is not None])

    def _deed(self, use: Use, definition: McpListedTool | None) -> Deed:
        assert self._mcp is not None
        label = use.namespace or ""
        place = self._mcp.place(label)
        return Deed(label=label, server=place, name=use.name, arguments=use.arguments, definition=definition)


class Listing:
    """Asks MCP servers what they offer, side by side. One that does not say offers nothing: its item has the reason."""

    def __init__(self, tools: McpTools, labels: Sequence[str]) -> None:
        self._tools = tools
        self._labels = labels

    async def take(self, floor: Floor) -> None:
        keys = [floor.key() for _ in self._labels]
        await floor.feed(
            *[
                Opened(key, McpListTools(server_label=label, tools=[]))
                for key, label in zip(keys, self._labels, strict=True)
            ]
        )
        async with asyncio.TaskGroup() as group:
            for key, label in zip(keys, self._labels, strict=True):
                group.create_task(self._list(floor, key, label))

    async def _list(self, floor: Floor, key: int, label: str) -> None:
        try:
            item = await self._tools.list(label)
        except AntiphonError as error:
            item = McpListTools(server_label=label, tools=[], error=error.message)
        await floor.feed(Ran(key, item))


def _shown(items: Sequence[InputItem], use: Use) -> McpListedTool | None:
    """The tool as its server listed it last."""
    lists = [item for item in items if isinstance(item, McpListTools) and item.server_label == use.namespace]
    tools = lists[-1].tools if lists else []
    return next((tool for tool in tools if tool.name == use.name), None)


def _choice(request: CreateResponse, sofar: Sofar) -> ToolChoice:
    """A demand is for the first turn: a model that has called what it must may answer."""
    if sofar.last:
        return "none"
    if sofar.first or request.tool_choice in ("none", "auto"):
        return request.tool_choice
    if isinstance(request.tool_choice, AllowedTools):
        return replace(request.tool_choice, mode="auto")
    return "auto"


# Items that let a response go on beyond one turn though its request declares nothing for that.
_GOING_ON = frozenset({AdditionalTools, CompactionTrigger, McpApprovalResponse, ToolSearchOutput})


def goes_on(items: Iterable[InputItem]) -> bool:
    """Do they let a response take a step before its turn, or more than one, though its request asks for none?"""
    return not _GOING_ON.isdisjoint(map(type, items))


class Ahead:
    """What lies before a response, if anything does."""

    def __init__(self, toolkit: Toolkit, going: Going, again: bool) -> None:
        """`again`: another server had begun it."""
        self._toolkit = toolkit
        self._going = going
        self._again = again

    async def course(self, prepared: Prepared, replan: Replan, step: CompactionStep | None) -> ResponseCourse | None:
        """None: it takes one turn."""
        going = self._going
        approved = await self._approved()
        if not (step or approved or going.waits or self._toolkit.runs(going.decoded.request, going.earlier)):
            return None
        course = ResponseCourse(going, self._toolkit, replan)
        if step is not None:
            course.compact(step)
        course.list_tools(prepared.unlisted)
        course.run_approved(approved)
        return course

    async def _approved(self) -> list[Approved]:
        going, approvals = self._going, self._toolkit.approvals
        request = going.decoded.request
        if approvals is None or McpApprovalResponse not in map(type, chain(going.earlier, request.input)):
            return []
        approved = await approvals.pending(going.tenant, going.earlier, request.input, self._again)
        labels = {tool.server_label for tool in request.tools if isinstance(tool, McpTool)}
        for each in approved:
            if each.given and each.request.server_label not in labels:
                raise InvalidValue(
                    f"A call of the MCP server {each.request.server_label!r} was approved, but it is not declared.",
                    param="tools",
                )
        return [each for each in approved if each.request.server_label in labels]
