"""Server-sent events out of bytes that arrive cut anywhere: the data of each, in order, without `[DONE]`.

What engines send is one `data:` line for an event; everything else the format allows is read too, only slower.
"""

from antiphon.errors import EngineFailed

MAX_EVENT_BYTES = 4 * 1024 * 1024
DONE = b"[DONE]"


class EventSplitter:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        if b"\r" in data:  # in line ends alone: JSON has it escaped
            data = data.replace(b"\r", b"")
        *whole, self._rest = (self._rest + data if self._rest else data).split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineFailed("The engine sent an event without an end.")
        return [found for block in whole if (found := _data(block)) and found != DONE]

    def finish(self) -> list[bytes]:
        """A last event without the empty line that should end it."""
        return self.feed(b"\n\n")


def _data(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:] for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line[1:] if line.startswith(b" ") else line for line in lines)
