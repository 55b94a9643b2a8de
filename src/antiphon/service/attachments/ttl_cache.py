"""A cache of texts that is bounded in bytes, and whose entries expire."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from msgspec import Struct, field

TTL_SECONDS = 300.0
MAX_BYTES = 64 * 1024 * 1024
_MAX_ENTRY_FRACTION = 4  # one entry may occupy 1/4 of the cache

Key = tuple[str, str, str]  # tenant, kind, and URL or digest


class TtlCache(Struct, eq=False):
    max_bytes: int = MAX_BYTES
    ttl: float = TTL_SECONDS
    clock: Callable[[], float] = monotonic
    bytes: int = 0
    _entries: OrderedDict[Key, tuple[float, int, str]] = field(default_factory=OrderedDict)  # time, bytes, text

    def get(self, key: Key) -> str | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self.clock() - entry[0] > self.ttl:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry[2]

    def put(self, key: Key, text: str) -> None:
        size = len(text) if text.isascii() else 4 * len(text)
        if size > self.max_bytes // _MAX_ENTRY_FRACTION:
            return
        self._drop(key)
        self._entries[key] = (self.clock(), size, text)
        self.bytes += size
        while self.bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self.bytes -= entry[1]
