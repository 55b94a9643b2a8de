"""Server-sent events out of bytes that arrive cut anywhere: the data of each, in order, up to `[DONE]`.

What engines send is one `data: ` line for an event, and many of them are cut in one go. Everything else the format
allows is read too, only slower. An event that calls itself `error` becomes an object with the one key
"error", as other engines send it.
"""

from collections.abc import Iterable

import msgspec

from antiphon.errors import EngineFailed

MAX_EVENT_BYTES = 4 * 1024 * 1024
DONE = b"[DONE]"
_ERRORS = frozenset({b"event: error", b"event:error"})


class EventSplitter:
    def __init__(self) -> None:
        self._rest = b""
        self.done = False  # `[DONE]` has come: what follows it is nothing to anybody

    def feed(self, data: bytes) -> list[bytes]:
        if self.done:
            return []
        if b"\r" in data:  # in line ends alone: JSON has it escaped
            data = data.replace(b"\r", b"")
        if self._rest:
            data = self._rest + data
        end = data.rfind(b"\n\n")
        if end < 0:
            self._keep(data)
            return []
        self._keep(data[end + 2 :])
        if data.startswith(b"data: "):
            events = data[6:end].split(b"\n\ndata: ")
            if data.count(b"\n", 0, end) == 2 * len(events) - 2 and DONE not in events and b"" not in events:
                return events
        return self._events(data[:end].split(b"\n\n"))

    def finish(self) -> list[bytes]:
        """A last event without the empty line that should end it."""
        return self.feed(b"\n\n")

    def _keep(self, rest: bytes) -> None:
        self._rest = rest
        if len(rest) > MAX_EVENT_BYTES:
            raise EngineFailed("The engine sent an event without an end.")

    def _events(self, blocks: Iterable[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for block in blocks:
            data = _data(block)
            if data == DONE:
                self.done = True
                break
            if data:
                events.append(data)
        return events


def _data(block: bytes) -> bytes:
    lines = block.split(b"\n")
    said = [line[5:] for line in lines if line.startswith(b"data:")]
    data = b"\n".join(line[1:] if line.startswith(b" ") else line for line in said)
    return data if _ERRORS.isdisjoint(lines) else _error(data)


def _error(data: bytes) -> bytes:
    try:
        said = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = data.decode(errors="replace")
    return data if isinstance(said, dict) and "error" in said else msgspec.json.encode({"error": said})
