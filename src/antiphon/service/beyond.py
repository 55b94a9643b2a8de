"""Whether a response may go on beyond one turn, and by what course: tools that run here, what a client has allowed, a
conversation that has to be compacted first, outputs that are waited for."""

from collections.abc import Iterable
from itertools import chain

from antiphon.errors import InvalidValue
from antiphon.protocol.types.items import (
    AdditionalTools,
    CompactionTrigger,
    InputItem,
    McpApprovalResponse,
    ToolSearchOutput,
)
from antiphon.protocol.types.tools import McpTool
from antiphon.service.approvals import Approved
from antiphon.service.compaction_step import CompactionStep
from antiphon.service.course import Going, Replan, ResponseCourse
from antiphon.service.prepare import Prepared
from antiphon.service.toolkit import Toolkit

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
