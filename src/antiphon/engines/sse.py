"""Splits a byte stream into server-sent events (WHATWG HTML, "Server-sent events") and returns their data up to
`[DONE]`.

Engines send one `data: ` line per event, so that form is tried first, for many events at once; decoding fails if the
guess was wrong. Everything else that the format allows is parsed too, only slower. An event of type `error` becomes an
object with the single key "error", as other engines send it.
"""

import msgspec

from antiphon.errors import EngineFailed

MAX_EVENT_BYTES = 4 * 1024 * 1024
DONE = b"[DONE]"
_LINE, _NEXT, _END = b"data: ", b"\n\ndata: ", b"\n\n"
_LAST = _NEXT + DONE + _END
_ERRORS = frozenset({b"event: error", b"event:error"})


class EventSplitter:
    """Incremental splitter for one response; the input may be cut anywhere."""

    def __init__(self) -> None:
        self._buffer = bytearray()  # start of an incomplete event
        self.done = False  # `[DONE]` has arrived; later data is ignored

    def feed(self, data: bytes) -> list[bytes]:
        return [] if self.done else self.split(self.take_complete(data))

    def finish(self) -> list[bytes]:
        """Return a last event that lacks its terminating empty line."""
        return self.feed(_END)

    def take_complete(self, data: bytes) -> bytes:
        """Return the complete events with their empty lines, unparsed, and buffer the rest."""
        if self._buffer and not (data := self._join_buffer(data)):
            return b""
        if data.endswith(_END):
            return data
        if b"\r" in data:  # only in line ends: JSON escapes it within strings
            data = data.replace(b"\r", b"")
        end = data.rfind(_END) + 2
        if end == 1:
            self._append(data)
            return b""
        self._append(data[end:])
        return data[:end]

    def _join_buffer(self, data: bytes) -> bytes:
        """Return the buffer and the data if they now contain the end of an event; else buffer the data and return
        nothing.
        """
        data = data.replace(b"\r", b"")
        if _END not in data and not (data.startswith(b"\n") and self._buffer.endswith(b"\n")):
            self._append(data)
            return b""
        joined = bytes(self._buffer) + data
        self._buffer.clear()
        return joined

    def split_fast(self, data: bytes) -> list[bytes]:
        """Return the events if each is one data line. Otherwise the list is empty or contains an event that is not
        JSON.
        """
        if not data.startswith(_LINE):
            return []
        if data.endswith(_LAST):
            self.done = True
            events = data[len(_LINE) : -len(_LAST)].split(_NEXT)
            return events if data.count(b"\n") == 2 * len(events) + 2 else []
        events = data[len(_LINE) : -len(_END)].split(_NEXT)
        # JSON may contain line breaks, a data line may not
        return events if data.count(b"\n") == 2 * len(events) else []

    def split(self, data: bytes) -> list[bytes]:
        """Return the events in any form that the format allows."""
        self.done = False
        events: list[bytes] = []
        for block in data.replace(b"\r", b"").split(_END):
            if not block or (block.startswith(b":") and b"\n" not in block):
                continue  # keep-alive comment, possibly one of many
            if b"data" not in block and b"event" not in block:
                continue  # no fields, or only comments
            payload = _event_data(block)
            if payload == DONE:
                self.done = True
                break
            if payload:
                events.append(payload)
        return events

    def _append(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise EngineFailed("The engine sent an event that exceeds the size limit.")


def _event_data(block: bytes) -> bytes:
    lines = block.split(b"\n")
    values = [line[5:] for line in lines if line.startswith(b"data:")]
    data = b"\n".join(line[1:] if line.startswith(b" ") else line for line in values)
    return data if _ERRORS.isdisjoint(lines) else _wrap_error(data)


def _wrap_error(data: bytes) -> bytes:
    try:
        error = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = data.decode(errors="replace")
    return data if isinstance(error, dict) and "error" in error else msgspec.json.encode({"error": error})
