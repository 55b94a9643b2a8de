"""Cuts output at a stop string, for engines that do not, or that send the stop string along."""

from collections.abc import Sequence


class StopStringCutter:
    """Text that may become a stop string is held back until that is decided.

    Of several stop strings the one that ends first wins, and of those that end at the same position the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._pending = ""
        self.stopped = False
        self.stop = ""  # the stop string that was found

    def feed(self, text: str) -> str:
        if self.stopped or not text:
            return ""
        buffered = self._pending + text
        if ends := [(at + len(stop), at) for stop in self._stops if (at := buffered.find(stop)) >= 0]:
            end, begin = min(ends)
            self.stopped, self._pending, self.stop = True, "", buffered[begin:end]
            return buffered[:begin]
        pending = max([measure_overlap(buffered, stop) for stop in self._stops], default=0)
        self._pending = buffered[len(buffered) - pending :]
        return buffered[: len(buffered) - pending]

    def finish(self) -> str:
        pending, self._pending = self._pending, ""
        return pending


def measure_overlap(text: str, tail: str) -> int:
    """Return the length of the longest prefix of `tail` that the text ends with."""
    for size in range(min(len(tail), len(text)), 0, -1):
        if text.endswith(tail[:size]):
            return size
    return 0
