"""Rows of a response: the new row at its start, and its end.

Encoding that takes long is done in a thread, so that the event loop is not blocked.
"""

from collections.abc import Sequence
from time import time

from msgspec import Struct

from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.replay import pack
from antiphon.protocol.decoding.codec import DecodedRequest, encode
from antiphon.protocol.types.response import Response
from antiphon.service.access.charges import charged_key
from antiphon.service.access.service_tiers import get_rank
from antiphon.service.persistence.stored_request import decode_input, drop_trigger, encode_request
from antiphon.stores.base import ItemRow, NewResponse, ResponseEnd

Log = Sequence[Sequence[LogEntry]]

_MAX_INLINE_ITEMS = 500
_MAX_INLINE_LISTS = 5_000
_MAX_INLINE_BYTES = 256 * 1024
_MAX_INLINE_RESPONSE = 64 * 1024  # bytes; about 3 ms to compress its log
_APPENDED_STATUSES = ("completed", "incomplete")  # final statuses whose items are appended to the conversation


class FinishedResponse(Struct, frozen=True):
    """A response at its end, ready to be written."""

    response: Response
    body: bytes  # JSON
    request: DecodedRequest | bytes  # bytes: as stored, for a response that was adopted
    request_size: int  # bytes of the stored request; 0: not stored yet
    fence: int  # 0: not stored yet
    created: float
    ttl: float
    replaces_end: bool = False  # an end with another status may have been written

    def is_slow(self, log: Log) -> bool:
        """Whether encoding the request and its end belongs in a thread."""
        if len(log) > _MAX_INLINE_LISTS or len(self.body) > _MAX_INLINE_RESPONSE:
            return True
        if self.fence:
            return self.response.conversation is not None and self.request_size > _MAX_INLINE_BYTES
        request = self.request
        return type(request) is DecodedRequest and len(request.request.input) > _MAX_INLINE_ITEMS


def is_slow_to_encode(decoded: DecodedRequest) -> bool:
    """Whether encoding the request belongs in a thread."""
    return len(decoded.request.input) > _MAX_INLINE_ITEMS


def make_row(
    response: Response, body: bytes, request: bytes, created: float, timeout: float | None = None
) -> NewResponse:
    """Build a new row. `created` is more precise than the Response's time: queues are ordered by it.

    `timeout`: seconds after `created` within which a background response must have ended.
    """
    return NewResponse(
        id=response.id,
        status=response.status,
        background=response.background,
        rank=get_rank(response),
        charged_key=charged_key() if response.background else "",
        created=created,
        deadline=created + timeout if response.background and timeout is not None else None,
        previous=response.previous_response_id,
        conversation=None if response.conversation is None else response.conversation.id,
        request=request,
        response=body,
    )


def make_end(finished: FinishedResponse, log: Log) -> ResponseEnd:
    response, request, now = finished.response, finished.request, time()
    new = None
    if not finished.fence:
        assert type(request) is DecodedRequest
        new = make_row(response, finished.body, encode_request(request), finished.created)
    conversation = response.conversation if response.status in _APPENDED_STATUSES else None
    return ResponseEnd(
        id=response.id,
        fence=finished.fence,
        status=response.status,
        response=finished.body,
        packed_log=pack(log, response, finished.body),
        ended=now,
        expires=now + finished.ttl,
        new=new,
        conversation=None if conversation is None else conversation.id,
        items=() if conversation is None else _conversation_items(request, response),
        replaces_unconfirmed=finished.replaces_end,
    )


def _conversation_items(request: DecodedRequest | bytes, response: Response) -> list[ItemRow]:
    """Return the rows for the conversation: the input as it was stored, then the output."""
    sent = drop_trigger(request.request.input) if isinstance(request, DecodedRequest) else decode_input(request)
    return [ItemRow(str(item.id), encode(item)) for item in (*sent, *response.output)]
