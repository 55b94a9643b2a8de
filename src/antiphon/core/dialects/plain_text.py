"""What a model says to the server itself, as plain text: a dialect whose answer nobody else hears."""

from collections.abc import Iterable

from msgspec import Struct

from antiphon.core.deltas import Delta, Text
from antiphon.core.dialects.dialect import Told
from antiphon.core.prompt import Chunk, Counts, Finish
from antiphon.errors import AntiphonError


class Words(Struct, frozen=True):
    text: str


class Gist(Struct, frozen=True, kw_only=True):
    text: str
    counts: Counts
    cut: bool  # it had more to say


class GistEmitter:
    """Thoughts, calls and refusals are passed over."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._counts = Counts()
        self._finish: Finish = "stop"

    def begin(self) -> Told:
        return []

    def note(self, chunk: Chunk, choice: int = 0) -> None:
        pass

    def feed(self, deltas: Iterable[Delta], choice: int = 0) -> Told:
        return [Words(delta.text) for delta in deltas if type(delta) is Text]

    def end(self, finish: Finish, counts: Counts, choice: int = 0) -> Told:
        self._finish = finish
        return []

    def close(self, counts: Counts) -> Told:
        self._counts = counts
        return []

    def fault(self, error: AntiphonError) -> Told:
        return []

    def fold(self, told: Told) -> None:
        self._pieces += [words.text for words in told if isinstance(words, Words)]

    def result(self) -> Gist:
        return Gist(text="".join(self._pieces), counts=self._counts, cut=self._finish == "length")
