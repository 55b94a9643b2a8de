"""Cuts an answer at its stop string, where the engine does not, or sends the stop string along."""

from collections.abc import Sequence


class StopCut:
    """What may become a stop string is held back until it has or has not. Of several the one counts that ends first,
    and of those that end together the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.cut = False
        self.found = ""  # the one that cut it

    def feed(self, text: str) -> str:
        if self.cut or not text:
            return ""
        said = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := said.find(stop)) >= 0]
        if ends:
            end, begin = min(ends)
            self.cut, self._held, self.found = True, "", said[begin:end]
            return said[:begin]
        keep = max([_overlap(said, stop) for stop in self._stops], default=0)
        self._held = said[len(said) - keep :]
        return said[: len(said) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(said: str, stop: str) -> int:
    """The length of the longest end of the text that a stop string begins with."""
    return next((size for size in range(min(len(stop) - 1, len(said)), 0, -1) if said.endswith(stop[:size])), 0)
