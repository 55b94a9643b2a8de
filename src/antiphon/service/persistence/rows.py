"""Rows of a response: its stored form, and the new row at its start.

A request is stored without the parts that its Response echoes: the input with ids of this server, the names of the
fields that were sent, and the values of those that are not echoed. Together with the Response they restore the request
for a process that takes the run over.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from antiphon.admission import DEFAULT_RANK, RANKS
from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.emitter.fold import ECHOED_FIELDS
from antiphon.errors import NotFound
from antiphon.ids import quote_id
from antiphon.protocol.decoding.codec import DecodedRequest, encode
from antiphon.protocol.types.items import CompactionTrigger, InputItem, OutputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response, ResponseStatus
from antiphon.service.access.charges import charged_key
from antiphon.stores.base import RUNNING_STATUSES, ItemRow, NewResponse, StoredResponse
from antiphon.stores.sql.store import Store

_STORED_FIELDS = frozenset(CreateResponse.__struct_fields__) - {"client_metadata"}  # for the client only
_ECHOED_FIELDS = ECHOED_FIELDS | {"model"}

T = TypeVar("T")
Log = Sequence[Sequence[LogEntry]]

_MAX_INLINE_ITEMS = 500
_APPENDED_STATUSES = ("completed", "incomplete")  # final statuses whose items are appended to the conversation


class _StoredRecord(Struct):
    sent: list[str]
    asked: CreateResponse  # without the fields that the Response echoes


class _StoredInput(Struct, Generic[T]):
    input: list[T] = []


class _InputRecord(Struct, Generic[T]):
    asked: _StoredInput[T]


class _ItemHead(Struct):
    type: str
    id: str


class _Output(Struct):
    output: list[OutputItem] = []


class _Status(Struct):
    status: ResponseStatus


decode_response = msgspec.json.Decoder(Response).decode
_records = msgspec.json.Decoder(_StoredRecord)
_inputs = msgspec.json.Decoder(_InputRecord[InputItem])
_raw_inputs = msgspec.json.Decoder(_InputRecord[Raw])
_heads = msgspec.json.Decoder(_ItemHead)
_outputs = msgspec.json.Decoder(_Output)
_statuses = msgspec.json.Decoder(_Status)


async def load_row(store: Store, tenant: str, response_id: str, with_request: bool = True) -> StoredResponse:
    """Return the row of a response, as `Store.get` does. Raises NotFound."""
    if (row := await store.get(tenant, response_id, with_request)) is None:
        raise unknown_response_error(response_id)
    return row


def unknown_response_error(response_id: str) -> NotFound:
    return NotFound(f"There is no response {quote_id(response_id)}.", param="response_id")


def encode_request(decoded: DecodedRequest) -> bytes:
    """Encode a request whose input items have ids."""
    request, fields = decoded.request, _STORED_FIELDS & decoded.sent
    return encode({"sent": fields, "asked": {name: getattr(request, name) for name in fields - _ECHOED_FIELDS}})


def restore_request(row: StoredResponse) -> DecodedRequest:
    """Restore the request of a row, with its references as they were resolved originally."""
    record, response = _records.decode(row.request), decode_response(row.response)
    sent = frozenset(record.sent)
    for name in sent & _ECHOED_FIELDS:
        setattr(record.asked, name, getattr(response, name))
    return DecodedRequest(record.asked, sent, [])


def decode_input(request: bytes) -> list[InputItem]:
    """Return the input of a stored request, in the order in which it was sent."""
    return drop_trigger(_inputs.decode(request).asked.input)


def split_input(request: bytes) -> list[tuple[str, Raw]]:
    """Return the ids and the JSON of the items that `decode_input` returns, without copying what may be large."""
    heads = [(_heads.decode(item), item) for item in _raw_inputs.decode(request).asked.input]
    trigger = CompactionTrigger.__struct_config__.tag
    return [(head.id, item) for head, item in heads if head.type != trigger]


def drop_trigger(items: list[InputItem]) -> list[InputItem]:
    """Remove a trailing compaction_trigger, which is never returned to clients."""
    return items[:-1] if items and type(items[-1]) is CompactionTrigger else items


def decode_items(row: tuple[bytes, bytes]) -> tuple[InputItem, ...]:
    """Return the input of a stored request, followed by the output of its response."""
    request, response = row
    return (*decode_input(request), *_outputs.decode(response).output)


def render_response(row: StoredResponse) -> bytes:
    """Return the JSON of a row's Response: the final one, or the initial one with the current status."""
    if row.status not in RUNNING_STATUSES:
        return row.response
    response = decode_response(row.response)
    response.status = row.status
    return encode(response)


def decode_status(response: bytes) -> ResponseStatus:
    return _statuses.decode(response).status


def is_slow_to_encode(decoded: DecodedRequest) -> bool:
    """Return whether encoding the request belongs in a thread."""
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
        rank=RANKS.get(response.service_tier, DEFAULT_RANK),
        charged_key=charged_key() if response.background else "",
        created=created,
        deadline=created + timeout if response.background and timeout is not None else None,
        previous=response.previous_response_id,
        conversation=None if response.conversation is None else response.conversation.id,
        request=request,
        response=body,
        model=response.model,
    )


def list_conversation_items(request: DecodedRequest | bytes, response: Response) -> list[ItemRow]:
    """Return the items to append to the conversation at the end: the input as it was stored, then the output."""
    if response.conversation is None or response.status not in _APPENDED_STATUSES:
        return []
    sent = drop_trigger(request.request.input) if isinstance(request, DecodedRequest) else decode_input(request)
    return [ItemRow(str(item.id), encode(item)) for item in (*sent, *response.output)]
