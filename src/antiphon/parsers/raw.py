"""Raw output of a model: first its thoughts are split off, then its calls; what is left is the answer.

Space that only stands between calls, or between a thought and a call, is nobody's. Once nothing is looked for any more
a chunk passes as it is.
"""

from collections import deque
from collections.abc import Sequence

from antiphon.core.deltas import CallDelta, Delta, Text, Thought
from antiphon.core.prompt import Chunk, Prompt
from antiphon.parsers.base import PLAIN, Reading
from antiphon.parsers.calls.base import CallFormat, Piece, Said
from antiphon.parsers.calls.registry import load_format
from antiphon.parsers.logprob_alignment import Ledger
from antiphon.parsers.reasoning.formats import THOUGHTS, opens
from antiphon.parsers.reasoning.splitter import Splitter


class RawParser:
    def __init__(self, prompt: Prompt, reading: Reading = PLAIN) -> None:
        self._calls = load_format(reading.calls)(reading.tools) if reading.calls else None
        self._thoughts = _splitter(prompt, reading, self._calls)
        self._passes = self._calls is None and self._thoughts is None
        only_calls = self._calls is not None and self._thoughts is None  # are looked for
        self._alone = self._calls.feed if only_calls and self._calls is not None else None
        self._ledger: Ledger | None = None
        self._heard = 0  # characters of the output
        self._fed = 0  # characters of it that the calls' format was fed
        self._more = 0  # characters that were heard before, and not fed
        self._jumps = deque([(0, 0)])  # from where on in these, how many more these were
        self._blank: list[Text] = []  # space that counts only if text follows, or nothing was said at all
        self._spoke = False
        self._called = False
        self.reasoning_tokens = 0

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        text = chunk.text
        if self._passes:
            return (Text(text, chunk.logprobs),) if text or chunk.logprobs else ()
        if self._alone is not None and not chunk.logprobs:  # as for most tokens
            self._heard += len(text)
            pieces = self._alone(text)
            if len(pieces) == 1:
                piece = pieces[0]
                if type(piece) is CallDelta:  # of a call that has started, after which nothing is left to note
                    return (piece,)
                if type(piece) is Said and self._spoke:
                    return (Text(piece.text),)
            return self._told(pieces) if pieces else ()
        return self._look(chunk, text)

    def _look(self, chunk: Chunk, text: str) -> Sequence[Delta]:
        """With thoughts, or log probabilities."""
        if chunk.logprobs or self._ledger is not None:
            self._note(chunk)
        self._heard += len(text)
        out: list[Delta] = []
        if self._thoughts is not None:
            parts = self._thoughts.feed(text)
            if len(parts) == 1 and type(parts[0]) is Said:
                self._answer(parts[0].text, parts[0].end, out)
            else:
                self._split(parts, out)
            if chunk.tokens:
                self.reasoning_tokens += _thought_tokens(chunk, out)
            if self._thoughts.answering:
                self._thoughts = None
                self._note_jump(self._heard - self._fed)
                if self._calls is not None and self._ledger is None:
                    self._alone = self._calls.feed
        elif text:
            self._answer(text, self._heard, out)
        if self._calls is None and self._thoughts is None:
            self._passes = not self._blank and (self._ledger is None or self._ledger.empty)
        return out

    def finish(self) -> Sequence[Delta]:
        out: list[Delta] = []
        if self._thoughts is not None:
            self._split(self._thoughts.finish(), out)
        if self._calls is not None:
            self._pieces(self._calls.finish(), out)
        if not (self._spoke or self._called):
            out += self._blank
        self._blank.clear()
        return out

    def _told(self, pieces: Sequence[Piece]) -> Sequence[Delta]:
        out: list[Delta] = []
        self._pieces(pieces, out)
        return out

    def _note(self, chunk: Chunk) -> None:
        if self._alone is not None:
            self._fed = self._heard - self._more
            self._alone = None
        self._ledger = self._ledger or Ledger(self._heard)
        self._ledger.note(chunk)

    def _split(self, parts: Sequence[Thought | Said], out: list[Delta]) -> None:
        for part in parts:
            if type(part) is Said:
                self._answer(part.text, part.end, out)
            else:
                if self._ledger is not None:
                    self._ledger.part()
                out.append(part)  # type: ignore[arg-type]  # a thought

    def _answer(self, text: str, end: int, out: list[Delta]) -> None:
        """Text of the answer, which ended there in what was heard."""
        self._note_jump(end - len(text) - self._fed)
        self._fed += len(text)
        pieces: Sequence[Piece] = (Said(text, self._fed),) if self._calls is None else self._calls.feed(text)
        if self._spoke and self._ledger is None and len(pieces) == 1 and type(pieces[0]) is Said:
            out.append(Text(pieces[0].text))  # as it nearly always is
        else:
            self._pieces(pieces, out)

    def _note_jump(self, more: int) -> None:
        if more != self._more:
            self._more = more
            self._jumps.append((self._fed, more))

    def _pieces(self, pieces: Sequence[Piece], out: list[Delta]) -> None:
        for piece in pieces:
            if type(piece) is Said:
                self._say(piece.text, piece.end, out)
            else:
                if self._ledger is not None:
                    self._ledger.part()
                self._called = True
                self._blank.clear()
                self._spoke = False  # space after the call is nobody's again
                out.append(piece)  # type: ignore[arg-type]  # all others are deltas

    def _say(self, text: str, end: int, out: list[Delta]) -> None:
        said = Text(text) if self._ledger is None else Text(text, self._ledger.take(*self._place(text, end)))
        if self._spoke:
            out.append(said)
        elif text.isspace():
            self._blank.append(said)
        else:
            out += self._blank
            out.append(said)
            self._blank.clear()
            self._spoke = True

    def _place(self, text: str, end: int) -> tuple[int, int]:
        """From where to where it is in what was heard."""
        begin = end - len(text)
        while len(self._jumps) > 1 and self._jumps[1][0] <= begin:
            self._jumps.popleft()
        last = next(more for start, more in reversed(self._jumps) if start < end)
        return begin + self._jumps[0][1], end + last


def _splitter(prompt: Prompt, reading: Reading, calls: CallFormat | None) -> Splitter | None:
    if reading.thoughts is None:
        return None
    marks = THOUGHTS[reading.thoughts]
    opened = opens(prompt, marks) or (reading.unseen and marks.implicit)
    made = Splitter(marks, opened, calls.openings, calls.controls) if calls else Splitter(marks, opened)
    made.brackets = reading.brackets
    return made


def _thought_tokens(chunk: Chunk, said: Sequence[Delta]) -> int:
    """Of the chunk's tokens those that were thought; by its length, where a chunk is more than a thought."""
    if len(said) == 1:
        return len(chunk.tokens) if type(said[0]) is Thought else 0
    thought = sum([len(delta.text) for delta in said if type(delta) is Thought])
    if thought and len(said) > sum([type(delta) is Thought for delta in said]):
        return round(len(chunk.tokens) * min(1, thought / max(1, len(chunk.text))))
    return len(chunk.tokens) if thought else 0
