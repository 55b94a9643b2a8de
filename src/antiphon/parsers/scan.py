"""Finds markers in text that arrives in pieces: linear time, no regular expressions, any cut.

Of several markers the one that begins first counts. What may still become a marker is held back.
"""


class Scan:
    def __init__(self, *markers: str) -> None:
        """No marker may be the beginning of another: what follows would decide, and it may come late."""
        if any(one != other and other.startswith(one) for one in markers for other in markers) or "" in markers:
            raise ValueError(f"ambiguous markers: {markers}")
        self._markers = markers
        self._firsts = "".join({marker[0] for marker in markers})
        self._beginnings = frozenset(marker[:end] for marker in markers for end in range(1, len(marker)))
        self._longest = max(map(len, markers))
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Pairs of text and the marker after it, which is empty in the last pair."""
        if not self._held and not any(first in text for first in self._firsts):
            return [(text, "")] if text else []
        buffer = self._held + text
        if buffer in self._beginnings:
            self._held = buffer
            return []
        return self._feed(buffer)

    def _feed(self, buffer: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        position = 0
        unfinished = self._unfinished(buffer)
        ahead = {marker: buffer.find(marker) for marker in self._markers}
        while True:
            at, marker = self._next(buffer, position, ahead)
            while unfinished and unfinished[0] < position:
                unfinished.pop(0)
            hold = unfinished[0] if unfinished else len(buffer)
            if not marker or at > hold:
                break
            found.append((buffer[position:at], marker))
            position = at + len(marker)
        self._held = buffer[hold:]
        if hold > position:
            found.append((buffer[position:hold], ""))
        return found

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _next(self, buffer: str, position: int, ahead: dict[str, int]) -> tuple[int, str]:
        """The first marker at or after the position; each is searched for only past where it was found last."""
        first = len(buffer), ""
        for marker, at in ahead.items():
            if -1 < at < position:
                ahead[marker] = at = buffer.find(marker, position)
            if -1 < at < first[0]:
                first = at, marker
        return first

    def _unfinished(self, buffer: str) -> list[int]:
        """Where at the end of the buffer a marker may have begun."""
        end = len(buffer)
        return [at for at in range(max(0, end - self._longest + 1), end) if buffer[at:] in self._beginnings]
