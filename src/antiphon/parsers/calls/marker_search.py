"""The first of several marks in a text, from any place on: each stretch of text is searched once for each mark.

What may be the beginning of a mark at the end of the text is not given away: more may come. In a short text all marks
are looked for at once wherever one of them may begin.
"""

from typing import Final

_SHORT: Final = 256
_NONE: Final[dict[str, int]] = {}


class Finder:
    def __init__(self, *marks: str) -> None:
        """No mark may be the beginning of another: what follows would decide, and it may come late."""
        if any(one != other and other.startswith(one) for one in marks for other in marks) or "" in marks:
            raise ValueError(f"ambiguous marks: {marks}")
        self._marks = marks
        self._longest = max(map(len, marks), default=0)
        self.firsts = frozenset(mark[0] for mark in marks)
        self.beginnings = frozenset(mark[:end] for mark in marks for end in range(1, len(mark)))
        self.beginnings_and_marks = self.beginnings.union(marks)
        self.shortest = min(map(len, marks), default=0)
        alike = len(self.firsts) == 1 and all(mark.rfind(mark[0]) == 0 for mark in marks)  # and none is within another
        self._first = marks[0][0] if alike else ""

    def may_be_in(self, text: str) -> bool:
        """Whether a mark, or the beginning of one, may be in it: quickly told."""
        return not self.firsts.isdisjoint(text)

    def over(self, text: str) -> "Search":
        if self._first and len(text) < _SHORT:
            return Search(self, text, _NONE, -1)
        return Search(self, text, {mark: text.find(mark) for mark in self._marks}, self.open_end(text))

    def near(self, text: str, at: int) -> tuple[int, str]:
        """What a search of it finds next, if it is short."""
        place = text.find(self._first, at)
        while place >= 0:
            if text.startswith(self._marks, place):
                for mark in self._marks:
                    if text.startswith(mark, place):
                        return place, mark
            if text[place:] in self.beginnings:
                return place, ""
            place = text.find(self._first, place + 1)
        return len(text), ""

    def begins(self, text: str, at: int) -> bool:
        """Whether all that is left of the text may be the beginning of a mark."""
        return len(text) - at < self._longest and text[at:] in self.beginnings

    def open_end(self, text: str) -> int:
        """From where on the text may be the beginning of a mark; its end if nowhere."""
        begin = max(0, len(text) - self._longest + 1)
        tail = text[begin:]
        if not self.firsts.isdisjoint(tail):
            for at, char in enumerate(tail):
                if char in self.firsts and tail[at:] in self.beginnings:
                    return begin + at
        return len(text)


class Search:
    """Of one text, from the front to the end."""

    def __init__(self, finder: Finder, text: str, ahead: dict[str, int], open_end: int) -> None:
        """`ahead`: where each mark is, from a place on that was left behind; `open_end`: -1 if the text is short."""
        self._finder = finder
        self._text = text
        self._ahead = ahead
        self._open_end = open_end

    def next(self, at: int) -> tuple[int, str]:
        """Where the next mark is and which; without one, where what may become one begins, and nothing."""
        if self._open_end < 0:
            return self._finder.near(self._text, at)
        first, found = len(self._text), ""
        for mark, place in self._ahead.items():
            if -1 < place < at:
                self._ahead[mark] = place = self._text.find(mark, at)
            if -1 < place < first:
                first, found = place, mark
        return (first, found) if found else (max(at, self._open_end), "")
