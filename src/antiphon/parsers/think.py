"""Models that think between <think> and </think> before they answer; another family is a class with other marks.

    start ──open──▶ thought ──close──▶ gap ──text──▶ answer
      └──────────────any other text─────────────────▶ answer

A prompt that ends with the opening mark puts the model into the thought already. After the
answer has begun a mark is text. Space around the marks is nobody's; all else is kept.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import ClassVar

from antiphon.core.deltas import Delta, Text, Thought
from antiphon.core.prompt import Chunk, Prompt, TextPrompt
from antiphon.parsers.scan import Scan
from antiphon.protocol.response import Logprob


class Phase(Enum):
    START = auto()
    THOUGHT = auto()
    GAP = auto()
    ANSWER = auto()


class ThinkParser:
    marks: ClassVar[tuple[str, str]] = ("<think>", "</think>")

    def __init__(self, prompt: Prompt) -> None:
        opening, closing = self.marks
        self._opened = isinstance(prompt, TextPrompt) and _tail(prompt).endswith(opening)
        self._phase = Phase.START
        self._answering = False  # the last phase, where time counts
        self._begin = ""  # what may become the opening mark
        self._close = Scan(closing)
        self._blank: list[str] = []  # space that counts only if something follows it
        self._thinking = False  # a thought has begun, not only its mark
        self._received = 0
        self._tokens: list[tuple[int, Logprob]] = []  # by where they end; some may be the answer's

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        if self._answering:
            return (Text(chunk.text, chunk.logprobs),) if chunk.text or chunk.logprobs else ()
        out: list[Delta] = []
        self._note(chunk)
        self._go(chunk.text, out)
        return out

    def finish(self) -> Sequence[Delta]:
        out: list[Delta] = []
        if self._phase is Phase.START:
            self._leave_start(out)
        if self._phase is Phase.THOUGHT:
            self._think(self._close.finish(), out)
            if blank := "".join(self._blank):
                out.append(Thought(blank))
        self._phase, self._answering = Phase.ANSWER, True
        return out

    def _note(self, chunk: Chunk) -> None:
        """Where each token ends. What came before this chunk is wanted only while nothing is decided."""
        if self._phase is not Phase.START:
            self._tokens.clear()
        end = self._received
        for logprob in chunk.logprobs:
            end += len(logprob.token)
            self._tokens.append((end, logprob))
        self._received += len(chunk.text)

    def _go(self, text: str, out: list[Delta]) -> None:
        match self._phase:
            case Phase.START:
                self._start(text, out)
            case Phase.THOUGHT:
                self._scan(text, out)
            case Phase.GAP | Phase.ANSWER:
                self._answer(text.lstrip(), out)

    def _start(self, text: str, out: list[Delta]) -> None:
        opening = self.marks[0]
        if not self._begin:
            begun = text.lstrip()
            self._blank.append(text[: len(text) - len(begun)])
            text = begun
        self._begin += text
        if self._begin.startswith(opening):
            self._enter_thought(self._begin[len(opening) :], out)
        elif not opening.startswith(self._begin):
            self._leave_start(out)

    def _leave_start(self, out: list[Delta]) -> None:
        """There was no opening mark: this is the answer, or the prompt had the mark already."""
        if self._opened:
            self._enter_thought(self._begin, out)
        else:
            self._answer("".join(self._blank) + self._begin, out)

    def _enter_thought(self, text: str, out: list[Delta]) -> None:
        self._phase = Phase.THOUGHT
        self._blank.clear()
        self._scan(text, out)

    def _scan(self, text: str, out: list[Delta]) -> None:
        pieces = self._close.feed(text)
        for number, (thought, mark) in enumerate(pieces, start=1):
            self._think(thought, out)
            if mark:
                self._phase = Phase.GAP
                self._go("".join([text + mark for text, mark in pieces[number:]]) + self._close.finish(), out)
                return

    def _think(self, text: str, out: list[Delta]) -> None:
        if not self._thinking:
            text = text.lstrip()
        if body := text.rstrip():
            out.append(Thought("".join(self._blank) + body))
            self._blank.clear()
            self._thinking = True
        self._blank.append(text[len(body) :])

    def _answer(self, text: str, out: list[Delta]) -> None:
        """The text reaches to the end of what was received, so its tokens are those that end in it."""
        if text:
            self._phase, self._answering = Phase.ANSWER, True
            begin = self._received - len(text)
            out.append(Text(text, tuple([logprob for end, logprob in self._tokens if end > begin])))


def _tail(prompt: TextPrompt) -> str:
    """The end of the prompt, if the template wrote it: what a client wrote opens nothing."""
    last = prompt.segments[-1:]
    return last[0].text.rstrip() if last and last[0].control else ""
