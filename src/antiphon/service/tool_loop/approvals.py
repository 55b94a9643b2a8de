"""Approvals: a call that requires the client's approval runs at most once, and only as the client saw it.

A digest of the call is stored with the request: its server, the tool as listed, and the arguments. The client's answer
is checked against it, so only requested calls can be approved and only approved calls run.

    record_request ──▶ the client is notified ──▶ find_pending (checks the answer) ──▶ consume (once, before the call)
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from time import time

import msgspec
from msgspec import UNSET, Struct

from antiphon.core.code_approvals import list_run_requests
from antiphon.errors import ApprovalMismatch, ApprovalUsed, InvalidValue, UnknownApproval
from antiphon.ids import quote_id
from antiphon.protocol.types.items import InputItem, McpApprovalRequest, McpApprovalResponse, McpCall, McpListedTool
from antiphon.stores.sql.store import Store

_CALL_DIGEST_BYTES = 32  # first bytes of a digest, over the call; the remaining ones are over its server and tool

_canonical = msgspec.json.Encoder(order="sorted")


class ApprovalSubject(Struct, frozen=True, kw_only=True):
    """A call of an MCP tool with everything that the client's approval is bound to."""

    label: str
    server: str  # URL of the server, or the operator's name for it
    name: str
    arguments: str
    definition: McpListedTool | None  # None: the server does not list the tool

    def digest(self) -> bytes:
        definition = self.definition
        listed = None if definition is None else [definition.input_schema, definition.description or None]
        return _digest_call(self.label, self.name, self.arguments) + _digest(self.server, listed)


class ApprovedRequest(Struct, frozen=True):
    request: McpApprovalRequest
    request_id: str
    is_new: bool  # approved by this request, not by an earlier one


class Approvals:
    """Stores approval requests and checks the client's answers."""

    def __init__(self, store: Store, ttl: float, clock: Callable[[], float] = time) -> None:
        self._store = store
        self._ttl = ttl
        self._clock = clock

    async def record_request(self, tenant: str, request_id: str, subject: ApprovalSubject) -> None:
        """Store the request. Call it before the client is notified."""
        await self._store.ask_approval(tenant, request_id, subject.digest(), self._clock() + self._ttl)

    async def find_pending(
        self, tenant: str, earlier: Sequence[InputItem], new_items: Sequence[InputItem], is_resumed: bool = False
    ) -> list[ApprovedRequest]:
        """Return the approved calls that have not run yet, in the order of the answers.

        An invalid answer in `new_items`, the input of the request itself, raises an error with the name of its field.
        Answers in `earlier` were accepted before: those that can no longer be carried out are skipped. If `is_resumed`,
        a server took the response over, and this applies to all answers.
        """
        items = [*earlier, *new_items]
        executed = {item.approval_request_id for item in items if type(item) is McpCall} | list_run_requests(items)
        requests = {item.id: item for item in items if type(item) is McpApprovalRequest}
        answers = _collect_answers(items, len(items) if is_resumed else len(earlier))
        found = []
        for request_id, (index, answer) in answers.items():
            trusted = is_resumed or index < len(earlier)
            if request_id in executed or (trusted and not answer.approve):
                continue
            try:
                request = await self._load_request(tenant, request_id, requests.get(request_id))
            except (UnknownApproval, ApprovalUsed, ApprovalMismatch) as error:
                if trusted:
                    continue
                error.param = f"input[{index - len(earlier)}].approval_request_id"
                raise
            if answer.approve:
                found.append(ApprovedRequest(request, request_id, not trusted))
            else:
                await self._store.deny_approval(tenant, request_id)
        return found

    async def consume(self, tenant: str, request_id: str, subject: ApprovalSubject) -> None:
        """Consume the approval just before the call, exactly once. Raises an error for the client if it may not run."""
        match await self._store.use_approval(tenant, request_id, subject.digest()):
            case "unknown":
                raise _unknown_error(request_id)
            case "used":
                raise _used_error(request_id)
            case "changed":
                stored = await self._store.approval(tenant, request_id)
                raise _mismatch_error(
                    request_id,
                    stored is not None and stored.digest[_CALL_DIGEST_BYTES:] != subject.digest()[_CALL_DIGEST_BYTES:],
                )

    async def _load_request(
        self, tenant: str, request_id: str, request: McpApprovalRequest | None
    ) -> McpApprovalRequest:
        if (stored := await self._store.approval(tenant, request_id)) is None:
            raise _unknown_error(request_id)
        if stored.used:
            raise _used_error(request_id)
        if request is None:
            raise UnknownApproval(
                f"The approval request {quote_id(request_id)} is not part of this conversation: "
                "continue the response "
                "that asked for it (`previous_response_id`), or send the mcp_approval_request item before the answer."
            )
        if stored.digest[:_CALL_DIGEST_BYTES] != _digest_call(request.server_label, request.name, request.arguments):
            raise _mismatch_error(request_id, is_tool=False)
        return request


def _collect_answers(items: Iterable[InputItem], trusted: int) -> dict[str, tuple[int, McpApprovalResponse]]:
    """Map request ids to their answers. A second answer is rejected unless it is among the first `trusted` items."""
    answers: dict[str, tuple[int, McpApprovalResponse]] = {}
    for index, item in enumerate(items):
        if type(item) is not McpApprovalResponse:
            continue
        request_id = item.approval_request_id
        if request_id in answers and index >= trusted:
            raise InvalidValue(
                f"The approval request {quote_id(request_id)} is answered twice: it can be answered once.",
                param=f"input[{index - trusted}].approval_request_id",
            )
        answers.setdefault(request_id, (index, item))
    return answers


def _digest_call(label: str, name: str, arguments: str) -> bytes:
    """Digest a call. Arguments with equal JSON values are equal, however they are formatted."""
    try:
        return _digest(label, name, msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError):
        return _digest(label, name, UNSET, arguments)


def _digest(*values: object) -> bytes:
    return sha256(_canonical.encode([None if value is UNSET else value for value in values])).digest()


def _unknown_error(request_id: str) -> UnknownApproval:
    return UnknownApproval(f"There is no approval request {quote_id(request_id)}, or it has expired.")


def _used_error(request_id: str) -> ApprovalUsed:
    return ApprovalUsed(
        f"The approval of {quote_id(request_id)} was used already: the call may have taken effect and is not repeated."
    )


def _mismatch_error(request_id: str, is_tool: bool) -> ApprovalMismatch:
    changed = (
        "the server's address, or the tool's schema or description, has" if is_tool else "the call's arguments have"
    )
    return ApprovalMismatch(
        f"The approval of {quote_id(request_id)} is not for this call: {changed} changed since it was requested."
    )
