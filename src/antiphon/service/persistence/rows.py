"""What is written of a response: its row at its beginning, and how it ended.

What takes long to make ready is for a thread, so that others need not wait for it.
"""

from collections.abc import Sequence
from time import time

from msgspec import Struct

from antiphon.core.emitter.event_log import Entry
from antiphon.core.replay.packed_log import pack
from antiphon.protocol.decoding.codec import Decoded, encode
from antiphon.protocol.types.response import Response
from antiphon.service.access.rate_limits import bearer
from antiphon.service.access.service_tiers import rank
from antiphon.service.persistence.stored_request import input_items, sent_items, stored_request
from antiphon.stores.base import End, ItemRow, NewResponse

Log = Sequence[Sequence[Entry]]

_ITEMS_AT_ONCE = 500
_LISTS_AT_ONCE = 5_000
_BYTES_AT_ONCE = 256 * 1024
_APPENDED = ("completed", "incomplete")  # how a response ends whose items join its conversation


class Finished(Struct, frozen=True):
    """A response at its end."""

    response: Response
    body: bytes  # its JSON
    asked: Decoded | bytes  # bytes: as it is in the store, if nobody here has asked it
    size: int  # of what was asked, in the store; 0: nothing is there yet
    fence: int  # 0: likewise
    created: float
    ttl: float
    instead: bool = False  # of one that may have been written

    def takes_long(self, log: Log) -> bool:
        """To write down what was asked, and how it ended."""
        if len(log) > _LISTS_AT_ONCE:
            return True
        if self.fence:
            return self.response.conversation is not None and self.size > _BYTES_AT_ONCE
        asked = self.asked
        return type(asked) is Decoded and len(asked.request.input) > _ITEMS_AT_ONCE


def takes_long(decoded: Decoded) -> bool:
    """To write down what was asked."""
    return len(decoded.request.input) > _ITEMS_AT_ONCE


def new_row(
    response: Response, body: bytes, request: bytes, created: float, timeout: float | None = None
) -> NewResponse:
    """`created` is more exact than what the Response says: it is by this that a queue has its order.

    `timeout`: seconds from then in which one for the background must have ended.
    """
    return NewResponse(
        id=response.id,
        status=response.status,
        background=response.background,
        rank=rank(response),
        bearer=bearer() if response.background else "",
        created=created,
        deadline=created + timeout if response.background and timeout is not None else None,
        previous=response.previous_response_id,
        conversation=None if response.conversation is None else response.conversation.id,
        request=request,
        response=body,
    )


def end_row(ended: Finished, log: Log) -> End:
    response, asked, now = ended.response, ended.asked, time()
    new = None
    if not ended.fence:
        assert type(asked) is Decoded
        new = new_row(response, ended.body, stored_request(asked), ended.created)
    conversation = response.conversation if response.status in _APPENDED else None
    return End(
        id=response.id,
        fence=ended.fence,
        status=response.status,
        response=ended.body,
        tape=pack(log, response),
        ended=now,
        expires=now + ended.ttl,
        new=new,
        conversation=None if conversation is None else conversation.id,
        items=() if conversation is None else _items(asked, response),
        instead=ended.instead,
    )


def _items(asked: Decoded | bytes, response: Response) -> list[ItemRow]:
    """What a conversation gets: the input as it was kept, and the output."""
    given = sent_items(asked.request.input) if isinstance(asked, Decoded) else input_items(asked)
    return [ItemRow(str(item.id), encode(item)) for item in (*given, *response.output)]
