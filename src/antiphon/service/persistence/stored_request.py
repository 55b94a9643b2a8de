"""A request as it is kept beside its Response: only what the Response does not say itself.

That is the input, with our ids, the names of the fields that were sent, and the values of those that are not echoed.
From it and the Response the request is made again, for whoever takes the work over.
"""

import msgspec
from msgspec import Struct

from antiphon.core.emitter.fold import ECHOED
from antiphon.protocol.decoding.codec import Decoded, encode
from antiphon.protocol.types.items import CompactionTrigger, InputItem, OutputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response, ResponseStatus
from antiphon.stores.base import RUNNING, StoredResponse

_KEPT = frozenset(CreateResponse.__struct_fields__) - {"client_metadata"}  # a client's own notes
_ECHOED = ECHOED | {"model"}
_GAP = msgspec.Raw(b"\0")  # for the input; does not occur in JSON


class _Record(Struct):
    sent: list[str]
    asked: CreateResponse  # without what the Response echoes


class _Frame(Struct, frozen=True):
    """What is kept of a request around its input."""

    sent: frozenset[str]
    tier: str | None  # the one of its values that is settled later than its kind
    before: bytes
    after: bytes
    around: bool  # False: it has no input, and all of it stands before


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
    """The items of its input have their ids already. All but these is written once for all requests of a kind."""
    request, sent, kind = decoded.request, decoded.sent, decoded.kind
    frame: _Frame | None = None if kind is None else kind.record
    if frame is None or frame.sent is not sent or frame.tier != request.service_tier:
        frame = _frame(request, sent)
        if kind is not None:
            kind.record = frame
    return frame.before + encode(request.input) + frame.after if frame.around else frame.before


def _frame(request: CreateResponse, sent: frozenset[str]) -> _Frame:
    kept = _KEPT & sent
    asked = {name: _GAP if name == "input" else getattr(request, name) for name in kept - _ECHOED}
    before, gap, after = encode({"sent": kept, "asked": asked}).partition(bytes(_GAP))
    return _Frame(sent, request.service_tier, before, after, bool(gap))


def restored(row: StoredResponse) -> Decoded:
    """The request that a row was made for, its references resolved as they were then."""
    record, response = _records.decode(row.request), response_of(row.response)
    sent = frozenset(record.sent)
    for name in sent & _ECHOED:
        setattr(record.asked, name, getattr(response, name))
    return Decoded(record.asked, sent, [])


def input_items(request: bytes) -> list[InputItem]:
    """Of a row's request, in the order in which they were sent."""
    return sent_items(_inputs.decode(request).asked.input)


def sent_items(items: list[InputItem]) -> list[InputItem]:
    """A trigger is none that anybody gets back."""
    return items[:-1] if items and type(items[-1]) is CompactionTrigger else items


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
