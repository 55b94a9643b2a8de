"""Approvals: a call that its client was asked about is made once, and only as the client saw it.

What is kept of a request is a digest of the call: its server, its tool as that was listed, and its arguments. Whatever
a client sends back is held against it, so nothing can be approved that was never asked for, and nothing else be run.

    ask ──▶ the client is told ──▶ pending (its answer is checked) ──▶ use (once, just before the call)
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from time import time

import msgspec
from msgspec import UNSET, Struct

from antiphon.errors import ApprovalMismatch, ApprovalUsed, InvalidValue, UnknownApproval
from antiphon.protocol.types.builtin_items import McpListedTool
from antiphon.protocol.types.items import InputItem, McpApprovalRequest, McpApprovalResponse, McpCall
from antiphon.stores.base import Store

_SHOWN = 64  # characters of an id that was sent
_HALF = 32  # bytes of a digest that are the call's; the others are its server's and its tool's

_canonical = msgspec.json.Encoder(order="sorted")


class Deed(Struct, frozen=True, kw_only=True):
    """A call of an MCP server's tool, with all that a client's consent is bound to."""

    label: str
    server: str  # its URL, or the operator's word for it
    name: str
    arguments: str
    definition: McpListedTool | None  # None: the server lists no such tool

    def digest(self) -> bytes:
        definition = self.definition
        listed = None if definition is None else [definition.input_schema, definition.description or None]
        return _call(self.label, self.name, self.arguments) + _digest(self.server, listed)


class Approved(Struct, frozen=True):
    """A request that the client said yes to."""

    request: McpApprovalRequest
    request_id: str
    given: bool  # in this very request, and not before


class Approvals:
    def __init__(self, store: Store, ttl: float, clock: Callable[[], float] = time) -> None:
        self._store = store
        self._ttl = ttl
        self._clock = clock

    async def ask(self, tenant: str, request_id: str, deed: Deed) -> None:
        """Before the client is told of the request."""
        await self._store.ask_approval(tenant, request_id, deed.digest(), self._clock() + self._ttl)

    async def pending(
        self, tenant: str, earlier: Sequence[InputItem], given: Sequence[InputItem], again: bool = False
    ) -> list[Approved]:
        """What the client allowed and nobody has done yet, in the order of its answers.

        What is wrong with an answer in `given`, the request's own input, is raised with the name of its field. An
        answer in `earlier` was accepted once: what can no longer be done of that is left out. So is all that cannot be
        done if the request is carried out `again`, by a server that took it over.
        """
        items = [*earlier, *given]
        made = {item.approval_request_id for item in items if type(item) is McpCall}
        requests = {item.id: item for item in items if type(item) is McpApprovalRequest}
        answers = _answers(items, len(items) if again else len(earlier))
        found = []
        for request_id, (index, answer) in answers.items():
            trusted = again or index < len(earlier)
            if request_id in made or (trusted and not answer.approve):
                continue
            try:
                asked = await self._asked(tenant, request_id, requests.get(request_id))
            except (UnknownApproval, ApprovalUsed, ApprovalMismatch) as error:
                if trusted:
                    continue
                error.param = f"input[{index - len(earlier)}].approval_request_id"
                raise
            if answer.approve:
                found.append(Approved(asked, request_id, not trusted))
        return found

    async def use(self, tenant: str, request_id: str, deed: Deed) -> None:
        """The call is about to be made: exactly once. Raises what the client is told if it may not be."""
        match await self._store.use_approval(tenant, request_id, deed.digest()):
            case "unknown":
                raise _unknown(request_id)
            case "used":
                raise _used(request_id)
            case "changed":
                known = await self._store.approval(tenant, request_id)
                raise _changed(request_id, known is not None and known.digest[_HALF:] != deed.digest()[_HALF:])

    async def _asked(self, tenant: str, request_id: str, request: McpApprovalRequest | None) -> McpApprovalRequest:
        known = await self._store.approval(tenant, request_id)
        if known is None:
            raise _unknown(request_id)
        if known.used:
            raise _used(request_id)
        if request is None:
            raise UnknownApproval(
                f"The approval request {request_id[:_SHOWN]!r} is not part of this conversation: continue the response "
                "that asked for it (`previous_response_id`), or send the mcp_approval_request item before the answer."
            )
        if known.digest[:_HALF] != _call(request.server_label, request.name, request.arguments):
            raise _changed(request_id, of_tool=False)
        return request


def _answers(items: Iterable[InputItem], trusted: int) -> dict[str, tuple[int, McpApprovalResponse]]:
    """By the requests that they answer. A second answer is refused, unless it is one of the first `trusted` items."""
    answers: dict[str, tuple[int, McpApprovalResponse]] = {}
    for index, item in enumerate(items):
        if type(item) is not McpApprovalResponse:
            continue
        request_id = item.approval_request_id
        if request_id in answers and index >= trusted:
            raise InvalidValue(
                f"The approval request {request_id[:_SHOWN]!r} is answered twice: it can be answered once.",
                param=f"input[{index - trusted}].approval_request_id",
            )
        answers.setdefault(request_id, (index, item))
    return answers


def _call(label: str, name: str, arguments: str) -> bytes:
    """Arguments that are the same JSON are the same, however they are written."""
    try:
        return _digest(label, name, msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError):
        return _digest(label, name, UNSET, arguments)


def _digest(*values: object) -> bytes:
    return sha256(_canonical.encode([None if value is UNSET else value for value in values])).digest()


def _unknown(request_id: str) -> UnknownApproval:
    return UnknownApproval(f"There is no approval request {request_id[:_SHOWN]!r}, or it was made too long ago.")


def _used(request_id: str) -> ApprovalUsed:
    return ApprovalUsed(
        f"The approval of {request_id[:_SHOWN]!r} was used already: the call may have taken effect and is not repeated."
    )


def _changed(request_id: str, of_tool: bool) -> ApprovalMismatch:
    what = "the server's address, or the tool's schema or description, has" if of_tool else "the call's arguments have"
    return ApprovalMismatch(
        f"The approval of {request_id[:_SHOWN]!r} is not for this call: {what} changed since it was asked for."
    )
