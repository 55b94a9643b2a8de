"""A request as it is kept beside its Response: only what the Response does not say itself.

That is the input, with our ids, the names of the fields that were sent, and the values of those that are not echoed.
From it and the Response the request is made again, for whoever takes the work over.
"""

from functools import lru_cache

import msgspec
from msgspec import Struct

from antiphon.core.opening import ECHOED
from antiphon.protocol.codec import Decoded, encode
from antiphon.protocol.items import CompactionTrigger, InputItem, OutputItem
from antiphon.protocol.request import CreateResponse
from antiphon.protocol.response import Response, ResponseStatus
from antiphon.stores.base import RUNNING, StoredResponse

_KEPT = frozenset(CreateResponse.__struct_fields__) - {"client_metadata"}  # a client's own notes
_ECHOED = ECHOED | {"model"}
_COMBINATIONS = 256  # of fields, that are remembered


class _Record(Struct):
    sent: list[str]
    asked: CreateResponse  # without what the Response echoes


class _Asked(Struct):
    input: list[InputItem] = []


class _Input(Struct):
    asked: _Asked


class _Output(Struct):
    output: list[OutputItem] = []


class _Status(Struct):
    status: ResponseStatus


_records = msgspec.json.Decoder(_Record)
_inputs = msgspec.json.Decoder(_Input)
_responses = msgspec.json.Decoder(Response)
_outputs = msgspec.json.Decoder(_Output)
_statuses = msgspec.json.Decoder(_Status)


def stored_request(decoded: Decoded) -> bytes:
    """The items of its input have their ids already."""
    request, sent = decoded.request, _KEPT & decoded.sent
    return encode({"sent": sent, "asked": {name: getattr(request, name) for name in _told(sent)}})


@lru_cache(_COMBINATIONS)
def _told(sent: frozenset[str]) -> tuple[str, ...]:
    """Whose values are kept, of fields that were sent."""
    return tuple(sent - _ECHOED)


def restored(row: StoredResponse) -> Decoded:
    """The request that a row was made for, its references resolved as they were then."""
    record, response = _records.decode(row.request), response_of(row.response)
    sent = frozenset(record.sent)
    for name in sent & _ECHOED:
        setattr(record.asked, name, getattr(response, name))
    return Decoded(record.asked, sent, [])


def input_items(request: bytes) -> list[InputItem]:
    """Of a row's request, in the order in which they were sent. A trigger is none that anybody gets back."""
    items = _inputs.decode(request).asked.input
    if items and type(items[-1]) is CompactionTrigger:
        items.pop()
    return items


def all_items(row: tuple[bytes, bytes]) -> tuple[InputItem, ...]:
    """Of a request and its response: the input, then the output."""
    request, response = row
    return (*input_items(request), *_outputs.decode(response).output)


def shown(row: StoredResponse) -> bytes:
    """The JSON of a row's Response: as it ended, or as it began with the status that it has by now."""
    if row.status not in RUNNING:
        return row.response
    response = response_of(row.response)
    response.status = row.status
    return encode(response)


def response_of(response: bytes) -> Response:
    return _responses.decode(response)


def status_of(response: bytes) -> ResponseStatus:
    return _statuses.decode(response).status
