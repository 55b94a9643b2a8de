"""The first of several marks in a text, from any place on: each stretch of text is searched once for each mark.

What may be the beginning of a mark at the end of the text is not given away: more may come.
"""


class Finder:
    def __init__(self, *marks: str) -> None:
        """No mark may be the beginning of another: what follows would decide, and it may come late."""
        if any(one != other and other.startswith(one) for one in marks for other in marks) or "" in marks:
            raise ValueError(f"ambiguous marks: {marks}")
        self._marks = marks
        self._longest = max(map(len, marks), default=0)
        self.firsts = frozenset(mark[0] for mark in marks)
        self.beginnings = frozenset(mark[:end] for mark in marks for end in range(1, len(mark)))
        self.shortest = min(map(len, marks), default=0)

    def may_be_in(self, text: str) -> bool:
        """Whether a mark, or the beginning of one, may be in it: quickly told."""
        return not self.firsts.isdisjoint(text)

    def over(self, text: str) -> "Search":
        if self.firsts.isdisjoint(text):
            return Search(text, (), len(text))
        return Search(text, self._marks, self.open_end(text))

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

    def __init__(self, text: str, marks: tuple[str, ...], open_end: int) -> None:
        self._text = text
        self._ahead = {mark: text.find(mark) for mark in marks}
        self._open_end = open_end

    def next(self, at: int) -> tuple[int, str]:
        """Where the next mark is and which; without one, where what may become one begins, and nothing."""
        first, found = len(self._text), ""
        for mark, place in self._ahead.items():
            if -1 < place < at:
                self._ahead[mark] = place = self._text.find(mark, at)
            if -1 < place < first:
                first, found = place, mark
        return (first, found) if found else (max(at, self._open_end), "")
