"""Server-sent events out of bytes that arrive cut anywhere: the data of each, in order, up to `[DONE]`.

What engines send is one `data: ` line for an event, so that is guessed first, for many of them in one go: whoever
decodes them notices if it was wrong. Everything else the format allows is read too, only slower. An event that calls
itself `error` becomes an object with the one key "error", as other engines send it.
"""

import msgspec

from antiphon.errors import EngineFailed

MAX_EVENT_BYTES = 4 * 1024 * 1024
DONE = b"[DONE]"
_LINE, _NEXT, _END = b"data: ", b"\n\ndata: ", b"\n\n"
_LAST = _NEXT + DONE + _END
_ERRORS = frozenset({b"event: error", b"event:error"})


class EventSplitter:
    def __init__(self) -> None:
        self._rest = bytearray()  # of an event that is not whole
        self.done = False  # `[DONE]` has come: what follows it is nothing to anybody

    def feed(self, data: bytes) -> list[bytes]:
        return [] if self.done else self.split(self.cut(data))

    def finish(self) -> list[bytes]:
        """A last event without the empty line that should end it."""
        return self.feed(_END)

    def cut(self, data: bytes) -> bytes:
        """What is whole now, events and the empty lines after them, as it came. The rest is kept."""
        if self._rest and not (data := self._joined(data)):
            return b""
        if data.endswith(_END):
            return data
        if b"\r" in data:  # in line ends alone: JSON has it escaped
            data = data.replace(b"\r", b"")
        end = data.rfind(_END) + 2
        if end == 1:
            self._keep(data)
            return b""
        self._keep(data[end:])
        return data[:end]

    def _joined(self, data: bytes) -> bytes:
        """With the rest, if there is an end in it now; nothing if that has to wait."""
        data = data.replace(b"\r", b"")
        if _END not in data and not (data.startswith(b"\n") and self._rest.endswith(b"\n")):
            self._keep(data)
            return b""
        joined = bytes(self._rest) + data
        self._rest.clear()
        return joined

    def guess(self, whole: bytes) -> list[bytes]:
        """The events, if each is one line of data. If not, there is one among them that cannot be decoded, or none."""
        if not whole.startswith(_LINE):
            return []
        if whole.endswith(_LAST):
            self.done = True
            events = whole[len(_LINE) : -len(_LAST)].split(_NEXT)
            return events if whole.count(b"\n") == 2 * len(events) + 2 else []
        events = whole[len(_LINE) : -len(_END)].split(_NEXT)
        return events if whole.count(b"\n") == 2 * len(events) else []  # JSON may be broken into lines, events not

    def split(self, whole: bytes) -> list[bytes]:
        """The events, whatever they look like."""
        self.done = False
        events: list[bytes] = []
        for block in whole.replace(b"\r", b"").split(_END):
            if not block or (block.startswith(b":") and b"\n" not in block):
                continue  # a sign of life, of which there may be many
            if b"data" not in block and b"event" not in block:
                continue  # nothing, or a comment
            data = _data(block)
            if data == DONE:
                self.done = True
                break
            if data:
                events.append(data)
        return events

    def _keep(self, rest: bytes) -> None:
        self._rest += rest
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineFailed("The engine sent an event without an end.")


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
