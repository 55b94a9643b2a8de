"""What was fetched or read lately, so that the next turn of a conversation need not do it again: for a few minutes,
within a bound of bytes, and for the tenant alone who asked for it."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

LIFE_SECONDS = 300.0
MOST_BYTES = 64 * 1024 * 1024
_LARGEST = 4  # one entry may take this part of the room

Key = tuple[str, str, str]  # the tenant, what it is, and its URL or digest


class Lately:
    def __init__(
        self, most: int = MOST_BYTES, life: float = LIFE_SECONDS, clock: Callable[[], float] = monotonic
    ) -> None:
        self.bytes = 0
        self._most = most
        self._life = life
        self._clock = clock
        self._held: OrderedDict[Key, tuple[float, int, str]] = OrderedDict()  # since when, bytes, what

    def get(self, key: Key) -> str | None:
        held = self._held.get(key)
        if held is None:
            return None
        if self._clock() - held[0] > self._life:
            self._drop(key)
            return None
        self._held.move_to_end(key)
        return held[2]

    def put(self, key: Key, text: str) -> None:
        size = len(text) if text.isascii() else 4 * len(text)
        if size > self._most // _LARGEST:
            return
        self._drop(key)
        self._held[key] = (self._clock(), size, text)
        self.bytes += size
        while self.bytes > self._most:
            self._drop(next(iter(self._held)))

    def _drop(self, key: Key) -> None:
        if (held := self._held.pop(key, None)) is not None:
            self.bytes -= held[1]
