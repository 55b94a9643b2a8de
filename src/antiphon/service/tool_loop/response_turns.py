"""The turns of one response: its tools, approved calls, awaited outputs, and the request of each further turn.

Each turn repeats the request with the output so far appended to its input; a forced tool choice applies to the first
turn only. Tool results that do not fit the model's context are shortened for the model, with a note; the items keep the
full result. `build_turns` decides whether a response needs more than one turn: tools that run here, approved calls,
a conversation to be compacted first, or outputs to wait for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.tool_loop import ClientCall, ClientOutput, PreludeStep, ToolLoop, TurnState, find_tool_kind
from antiphon.core.code_approvals import CODE_KINDS, CODE_LABELS, to_call_arguments, to_request_arguments
from antiphon.core.deltas import ServerItemDone, ServerItemStarted, ToolOutputContent
from antiphon.errors import AntiphonError, ContextTooLong, InvalidValue
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types import items as it
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tool_choice import AllowedTools, ToolChoice
from antiphon.protocol.types.tools import CustomTool, FunctionTool, McpTool, NamespaceTool, ShellTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.render.tools.client_tools import ClientTool
from antiphon.service.prompting.prepared_request import PreparedPrompt
from antiphon.service.tool_loop.approvals import ApprovalSubject, ApprovedRequest
from antiphon.service.tool_loop.compaction import CompactionStep
from antiphon.service.tool_loop.toolkit import Toolkit
from antiphon.tools.base import ModelToolCall, ResponseTool, Rewriter, WaitStep
from antiphon.tools.code_interpreter.response_container import share_container
from antiphon.tools.mcp.response_tools import McpTools
from antiphon.tools.tool_server.server import find_session

log = logging.getLogger(__name__)

RESULT_LIMITS: Final = (None, 65_536, 16_384, 4_096, 1_024)  # characters per tool result, tried in order
# returns a model call whose ticket waits for a slot of the model
PlanTurn = Callable[[DecodedRequest, Mapping[str, ToolOutputContent]], Awaitable[ModelCall]]
_CLIENT_TOOLS = (FunctionTool, CustomTool, NamespaceTool, *get_args(ClientTool))


def shorten_results(
    output: Sequence[it.OutputItem], results: Mapping[str, ToolOutputContent], limit: int | None
) -> Mapping[str, ToolOutputContent]:
    """Return the tool results for the model, each cut to `limit` characters, by item id."""
    if limit is None:
        return results
    full = {str(item.id): item.output for item in output if isinstance(item, it.McpCall) and item.output}
    return {name: _cut(text, limit) if isinstance(text, str) else text for name, text in {**full, **results}.items()}


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit:,} more characters are left out: they do not fit the context.]"


class TurnContext(Struct, frozen=True):
    """The response whose turns are planned."""

    tenant: str
    id: str
    decoded: DecodedRequest
    earlier: Sequence[it.InputItem]
    waits_for_outputs: bool = False  # wait for the outputs of the client's tools
    is_resumed: bool = False  # another server started the response


class ResponseTurns:
    def __init__(self, context: TurnContext, toolkit: Toolkit, plan_turn: PlanTurn) -> None:
        self._context = context
        self._toolkit = toolkit
        self._plan_turn = plan_turn
        self._tools: dict[str, ResponseTool] = {}
        self._params: dict[str, str] = {}  # where the request declares each built-in tool
        self._mcp: McpTools | None = None
        self.steps: list[PreludeStep] = []
        self.approved: list[ModelToolCall] = []
        self.answered = False  # the steps produce the complete output
        self._compaction: CompactionStep | None = None
        self.fence = 0  # fencing token of its row
        self._open_tools()

    def add_compaction(self, step: CompactionStep) -> None:
        self.steps.append(step.take)
        self._compaction, self.answered = step, step.ends_response

    def add_listing(self, unlisted: Sequence[str]) -> None:
        """Add a step that lists the tools of these MCP servers, and of those whose last listing may be outdated."""
        if self._mcp is None or self.answered:
            return
        if labels := [*unlisted, *self._find_outdated(self._mcp)]:
            self.steps.append(partial(_list_tools, self._mcp, labels))

    async def prepare_tools(self) -> None:
        """Check the built-in tools, and add a step for each that has to wait. One that is not called need not wait.

        What a resumed response declares was valid when it began. If it is gone since, calls fail, not the response.
        """
        request = self._context.decoded.request
        history = [*self._context.earlier, *request.input]
        for kind, param in self._params.items():
            try:
                wait = await self._tools[kind].prepare(param, history)
            except AntiphonError:
                if not self._context.is_resumed:
                    raise
                continue
            if wait is not None and request.tool_choice != "none" and not self.answered:
                self.steps.append(partial(_wait, wait))

    def add_approved(self, approved: Sequence[ApprovedRequest]) -> None:
        for each in approved:
            request, label, arguments = each.request, each.request.server_label, each.request.arguments
            call = ModelToolCall(key=0, id="", name=request.name, namespace=label, arguments=arguments)
            if self._is_code(label):
                arguments = to_call_arguments(CODE_KINDS[label], arguments)
                call = replace(call, name=label, namespace=None, arguments=arguments)
            self.approved.append(replace(call, approval_id=each.request_id))

    def get_tool(self, kind: str) -> ResponseTool:
        return self._tools[kind]

    def recall(self, item: it.OutputItem, result: ToolOutputContent) -> None:
        if (tool := self._tools.get(find_tool_kind(item))) is not None:
            tool.restore_output(result)

    async def recover(self, output: Sequence[it.OutputItem]) -> Mapping[str, str]:
        return {kind: await tool.recover(output) for kind, tool in self._tools.items()}

    async def consume_approval(self, call: ModelToolCall) -> None:
        assert self._toolkit.approvals is not None
        assert call.approval_id is not None
        definition = None
        if call.namespace is None:
            arguments = to_request_arguments(CODE_KINDS[call.name], call.arguments)
            call = replace(call, namespace=call.name, arguments=arguments)
        else:
            assert self._mcp is not None
            definition = await self._mcp.get_definition(call.namespace, call.name)
        await self._toolkit.approvals.consume(
            self._context.tenant, str(call.approval_id), self._make_subject(call, definition)
        )

    async def record_approval_request(self, call: ModelToolCall, output: Sequence[it.OutputItem]) -> None:
        """Store the approval request with the tool definition that the model was shown."""
        assert self._toolkit.approvals is not None
        items = [*self._context.earlier, *self._context.decoded.request.input, *output]
        definition = None if self._is_code(call.namespace or "") else _find_listed(items, call)
        await self._toolkit.approvals.record_request(
            self._context.tenant, call.id, self._make_subject(call, definition)
        )

    async def wait_for_outputs(self, calls: Sequence[ClientCall]) -> Sequence[ClientOutput] | None:
        context, outputs = self._context, self._toolkit.outputs
        if not context.waits_for_outputs or outputs is None or not self.fence:
            return None
        return await outputs.wait(context.tenant, context.id, self.fence, calls)

    async def plan_turn(self, state: TurnState) -> ModelCall | None:
        request = self._context.decoded.request
        used_tokens = sum([turn.output_tokens for turn in state.turn_counts])
        used_tokens -= 0 if self._compaction is None else self._compaction.tokens
        remaining = None if request.max_output_tokens is None else request.max_output_tokens - used_tokens
        if remaining is not None and remaining <= 0:
            return None
        next_request = replace(
            request,
            input=[*request.input, *state.output],
            max_output_tokens=remaining,
            tools=[tool for tool in request.tools if _is_run_by_client(tool)]
            if state.calls_exhausted
            else request.tools,
            tool_choice=_select_tool_choice(request, state),
        )
        return await self._plan_fitting(replace(self._context.decoded, request=next_request), state)

    def make_rewriters(self) -> tuple[Rewriter, ...]:
        rewriters: tuple[Rewriter, ...] = ()
        for tool in reversed(self._tools.values()):
            is_last = not any(later.reads_marks for later in rewriters)
            if (rewriter := tool.make_rewriter(is_last)) is not None:
                rewriters = (rewriter, *rewriters)
        return rewriters

    async def _plan_fitting(self, decoded: DecodedRequest, state: TurnState) -> ModelCall:
        """Plan the turn with as much of the tool results as the context has room for."""
        for limit in RESULT_LIMITS[:-1]:
            try:
                return await self._plan_turn(decoded, shorten_results(state.output, state.results, limit))
            except ContextTooLong:
                log.info("%s: the tool results exceed the context and are shortened", self._context.id)
        return await self._plan_turn(decoded, shorten_results(state.output, state.results, RESULT_LIMITS[-1]))

    async def close(self) -> None:
        for tool in self._tools.values():
            await tool.close()

    def _open_tools(self) -> None:
        request, tenant = self._context.decoded.request, self._context.tenant
        declared = [tool for tool in request.tools if isinstance(tool, McpTool)]
        served = [self._toolkit.find_tool_server(tool) for tool in declared]
        servers = [tool for tool, by in zip(declared, served, strict=True) if by is None]
        credentials = {by.kind: tool.credentials for tool, by in zip(declared, served, strict=True) if by is not None}
        if servers and self._toolkit.mcp is not None:
            self._mcp = self._tools["mcp"] = self._toolkit.mcp.begin(tenant, servers)
        for kind, (built_in, declaration) in self._toolkit.find_declared(request, self._context.earlier).items():
            tool = self._tools[kind] = built_in.begin(declaration, tenant, frozenset(request.include))
            if kind in credentials:
                find_session(tool).credentials = credentials[kind]
            self._params[kind] = _find_param(declaration, request)
        share_container(self._tools.values())

    def _find_outdated(self, mcp: McpTools) -> list[str]:
        items = [*self._context.earlier, *self._context.decoded.request.input]
        last = {item.server_label: item for item in items if isinstance(item, it.McpListTools)}
        return [label for label, item in last.items() if mcp.is_outdated(item)]

    def _is_code(self, label: str) -> bool:
        """Return whether an approval with this label is one of code; a declared MCP server may have the label too."""
        return label in CODE_KINDS and label not in self._toolkit.list_labels(self._context.decoded.request)

    def _make_subject(self, call: ModelToolCall, definition: it.McpListedTool | None) -> ApprovalSubject:
        label = call.namespace or ""
        server = "" if self._mcp is None or self._is_code(label) else self._mcp.get_server_address(label)
        return ApprovalSubject(
            label=label, server=server, name=call.name, arguments=call.arguments, definition=definition
        )


def _is_run_by_client(tool: Declaration) -> bool:
    return isinstance(tool, _CLIENT_TOOLS) and not (isinstance(tool, ShellTool) and tool.is_hosted)


async def _wait(step: WaitStep, context: ToolLoop) -> None:
    await step()


def _find_param(declaration: Declaration, request: CreateResponse) -> str:
    """Return the position of a declaration in the request; it may also be in an item."""
    return next((f"tools[{index}]" for index, tool in enumerate(request.tools) if tool is declaration), "input")


async def _list_tools(mcp: McpTools, labels: Sequence[str], context: ToolLoop) -> None:
    """List the tools of MCP servers concurrently. A server that fails offers none; its item has the error."""

    async def list_server(key: int, label: str) -> None:
        try:
            item = await mcp.list_tools(label)
        except AntiphonError as error:
            item = it.McpListTools(server_label=label, tools=[], error=error.message)
        await context.feed(ServerItemDone(key, item))

    keys = {label: context.new_key() for label in labels}
    started = [ServerItemStarted(key, it.McpListTools(server_label=label, tools=[])) for label, key in keys.items()]
    await context.feed(*started)
    async with asyncio.TaskGroup() as group:
        for label, key in keys.items():
            group.create_task(list_server(key, label))


def _find_listed(items: Sequence[it.InputItem], call: ModelToolCall) -> it.McpListedTool | None:
    """Return the tool as its server listed it last."""
    lists = [item for item in items if isinstance(item, it.McpListTools) and item.server_label == call.namespace]
    tools = lists[-1].tools if lists else []
    return next((tool for tool in tools if tool.name == call.name), None)


def _select_tool_choice(request: CreateResponse, state: TurnState) -> ToolChoice:
    """Return the tool choice of a turn. A forced choice applies to the first turn; later the model may answer."""
    if state.is_last:
        return "none"
    if state.is_first or request.tool_choice in ("none", "auto"):
        return request.tool_choice
    if isinstance(request.tool_choice, AllowedTools):
        return replace(request.tool_choice, mode="auto")
    return "auto"


async def build_turns(
    toolkit: Toolkit, context: TurnContext, prepared: PreparedPrompt, plan_turn: PlanTurn, step: CompactionStep | None
) -> ResponseTurns | None:
    """Return the turn policy of a response, or None if it takes one turn."""
    approved = await _load_approved(toolkit, context)
    runs_tools = toolkit.runs_tools(context.decoded.request, context.earlier)
    if not (step or approved or context.waits_for_outputs or runs_tools):
        return None
    turns = ResponseTurns(context, toolkit, plan_turn)
    if step is not None:
        turns.add_compaction(step)
    await turns.prepare_tools()
    turns.add_listing(prepared.unlisted_servers)
    turns.add_approved(approved)
    return turns


async def _load_approved(toolkit: Toolkit, context: TurnContext) -> list[ApprovedRequest]:
    request, approvals = context.decoded.request, toolkit.approvals
    if approvals is None or it.McpApprovalResponse not in map(type, chain(context.earlier, request.input)):
        return []
    approved = await approvals.find_pending(context.tenant, context.earlier, request.input, context.is_resumed)
    kinds = toolkit.find_declared(request, context.earlier)
    labels = toolkit.list_labels(request) | {CODE_LABELS[kind] for kind in kinds if kind in CODE_LABELS}
    for each in approved:
        if each.is_new and each.request.server_label not in labels:
            raise InvalidValue(
                f"A call of the MCP server {each.request.server_label!r} was approved, but it is not declared.",
                param="tools",
            )
    return [each for each in approved if each.request.server_label in labels]
