"""Calls that a client was asked about, as a model is told of them: as calls like any other, and what came of them.

A model that reads how it asked in words would ask in words again.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from antiphon.protocol.types.items import InputItem, McpApprovalRequest, McpApprovalResponse, McpCall

UNDECIDED: Final = "[This call was not run: nobody has allowed it yet.]"
ALLOWED: Final = "[The user has allowed this call. What came of it is not known.]"


class Asked:
    """What a history says about all of them."""

    def __init__(self, items: Iterable[InputItem]) -> None:
        self._answers: dict[str, McpApprovalResponse] = {}
        self._ran: set[str] = set()
        for item in items:
            if type(item) is McpApprovalResponse:
                self._answers[item.approval_request_id] = item
            elif type(item) is McpCall and item.approval_request_id:
                self._ran.add(item.approval_request_id)

    def outcome(self, request: McpApprovalRequest) -> str | None:
        """None: it was run, and is told where that is told."""
        name = "" if request.id is UNSET else request.id
        if name in self._ran:
            return None
        answer = self._answers.get(name)
        if answer is None:
            return UNDECIDED
        if answer.approve:
            return ALLOWED
        return f"[The user did not allow this call{f': {answer.reason}' if answer.reason else '.'}]"
