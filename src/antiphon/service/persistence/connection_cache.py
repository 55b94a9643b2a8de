"""Connection cache: the unstored responses of one connection, with all items before them.

It holds the last response of each lane and a few others, within a byte limit. Stored responses are in the store, where
every connection finds them.
"""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.response import Response

MAX_BYTES = 32 * 1024 * 1024
MAX_OTHERS = 16  # besides the last response of each lane

_CONTINUABLE = frozenset({"completed", "incomplete"})


class CachedResponse(Struct, frozen=True, eq=False):
    lane: str | None
    items: tuple[InputItem, ...]  # the complete conversation up to its end
    size: int  # bytes of the items; shared items count for each entry


class ConnectionCache:
    def __init__(self, max_bytes: int = MAX_BYTES, max_others: int = MAX_OTHERS) -> None:
        self._max_bytes = max_bytes
        self._max_others = max_others
        self._bytes = 0
        self._entries: OrderedDict[str, CachedResponse] = OrderedDict()
        self._last: dict[str | None, str] = {}  # response id by lane

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._entries

    def find_items(self, response_id: str) -> tuple[InputItem, ...] | None:
        """Return the items that a continuation of the response starts with, or None if it is not cached."""
        entry = self._entries.get(response_id)
        return None if entry is None else entry.items

    def remember(self, lane: str | None, response: Response, history: Sequence[InputItem], request_bytes: int) -> None:
        """Cache a response. `history`: items before its output. `request_bytes`: size of the request.

        Responses that cannot be continued or that are too large are not cached.
        """
        if response.status not in _CONTINUABLE:
            return
        parent = self._entries.get(response.previous_response_id or "")
        size = request_bytes + len(encode(response.output)) + (0 if parent is None else parent.size)
        if size > self._max_bytes:  # too large to cache; evict nothing for it
            return
        self._entries[response.id] = CachedResponse(lane, (*history, *response.output), size)
        self._last[lane] = response.id
        self._bytes += size
        self._trim()

    def drop_failed_parent(self, lane: str | None, previous: str | None) -> None:
        """Drop the response that a failed run was to continue, if it is on the same lane.

        Its state may differ from the client's, so it must not be continued.
        """
        entry = self._entries.get(previous or "")
        if entry is not None and previous is not None and entry.lane == lane:
            self._drop(previous)

    def _trim(self) -> None:
        last = {*self._last.values()}
        for response_id in [each for each in self._entries if each not in last]:
            if len(self._entries) - len(last) <= self._max_others and self._bytes <= self._max_bytes:
                return
            self._drop(response_id)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, response_id: str) -> None:
        entry = self._entries.pop(response_id)
        self._bytes -= entry.size
        if self._last.get(entry.lane) == response_id:
            del self._last[entry.lane]
