"""What a connection remembers, and nobody else does: its responses that are not stored, with all that came before them.

The last one of each lane stays, and a few others; all of them within a bound of bytes. What is stored is in the store,
where everybody finds it.
"""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.response import Response

MOST_BYTES = 32 * 1024 * 1024
OTHERS = 16  # beside the last one of each lane

_CONTINUABLE = frozenset({"completed", "incomplete"})


class Remembered(Struct, frozen=True, eq=False):
    lane: str | None
    items: tuple[InputItem, ...]  # all that was said up to its end
    size: int  # of these in bytes; what several have in common is counted for each


class Recent:
    def __init__(self, most_bytes: int = MOST_BYTES, others: int = OTHERS) -> None:
        self._most = most_bytes
        self._others = others
        self._bytes = 0
        self._held: OrderedDict[str, Remembered] = OrderedDict()
        self._last: dict[str | None, str] = {}  # of each lane

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._held

    def items(self, response_id: str) -> tuple[InputItem, ...] | None:
        """All that a continuation of it begins with; None if it is not remembered."""
        held = self._held.get(response_id)
        return None if held is None else held.items

    def remember(self, lane: str | None, response: Response, past: Sequence[InputItem], sent: int) -> None:
        """`past`: what came before its output; `sent`: bytes of the request. What cannot be continued is left out, and
        so is what is too large."""
        if response.status not in _CONTINUABLE:
            return
        before = self._held.get(response.previous_response_id or "")
        size = sent + len(encode(response.output)) + (0 if before is None else before.size)
        if size > self._most:  # and is no reason to forget the others
            return
        self._held[response.id] = Remembered(lane, (*past, *response.output), size)
        self._last[lane] = response.id
        self._bytes += size
        self._trim()

    def failed(self, lane: str | None, previous: str | None) -> None:
        """What was to continue this one has failed; on its own lane it is then forgotten, so that nobody goes on from
        what may be out of step with the client."""
        held = self._held.get(previous or "")
        if held is not None and previous is not None and held.lane == lane:
            self._drop(previous)

    def _trim(self) -> None:
        last = {*self._last.values()}
        for response_id in [each for each in self._held if each not in last]:
            if len(self._held) - len(last) <= self._others and self._bytes <= self._most:
                return
            self._drop(response_id)
        while self._bytes > self._most:
            self._drop(next(iter(self._held)))

    def _drop(self, response_id: str) -> None:
        held = self._held.pop(response_id)
        self._bytes -= held.size
        if self._last.get(held.lane) == response_id:
            del self._last[held.lane]
