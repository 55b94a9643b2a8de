"""The tokens of gpt-oss → deltas, in one pass. Whatever the model does wrong, nothing is raised and no answer lost.

    BETWEEN ──<|start|>, text──▶ HEADER ──<|message|>──▶ CONTENT ──<|end|>, <|call|>──▶ BETWEEN
                                   │ (too long, or ended without <|message|>: what it says is content)
    CONTENT ──<|channel|>──▶ HEADER (of another message, unless it turns out to be none)
    any ──<|return|>, after an answer──▶ OVER (what follows is nobody's)

The prompt's own last header is where the model takes over. Only control tokens have a meaning: text that looks like
one is text.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from antiphon.core.deltas import CallDelta, Delta
from antiphon.core.harmony import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END_OF_TEXT,
    ENDS,
    FIRST_CONTROL,
    MESSAGE,
    RETURN,
    START,
    vocabulary,
)
from antiphon.core.prompt import Chunk, Counts, Extras, Prompt, TokenPrompt
from antiphon.parsers.base import PLAIN, Enough, Reading
from antiphon.parsers.harmony.header import Address, Header, Part, address, read_header
from antiphon.parsers.harmony.items import Items, Kind
from antiphon.protocol.types.response import Logprob

LONGEST_HEADER: Final = 96  # tokens: twice what it takes with the longest name of a tool
LONGEST_HEADER_TEXT: Final = 1024  # characters, where there are no tokens
CUT: Final = ("length", "content_filter")
THOUGHT: Final = Address(kind="thought")

_Decoder = getincrementaldecoder("utf-8")


class State(IntEnum):
    BETWEEN = 0
    HEADER = 1
    CONTENT = 2
    OVER = 3


class HarmonyParser:
    def __init__(self, prompt: Prompt, reading: Reading = PLAIN) -> None:
        self._vocabulary = vocabulary()
        self._words = self._vocabulary.words
        self._tools = reading.tools
        self._items = Items(reading)
        self._stops = bool(reading.stop)  # the client named strings that end the answer
        self._heard = 0  # tokens, if it did
        self._prompt_tokens = len(prompt.tokens) if isinstance(prompt, TokenPrompt) else 0
        self._decoder = _Decoder("replace")
        self._halved = False  # the decoder holds a part of a character
        self._state = State.HEADER
        self._parts = [Part(START, "assistant"), Part(0)]  # of the header
        self._length = 0  # of the header, in tokens
        self._run: list[str] = []  # content that is not told yet
        self._run_length = 0
        self._logprobs: list[Logprob] = []  # of the run
        self._analysis = False  # the open message is of that channel
        self._kind: Kind | None = None  # what a piece of text becomes, if it is so simple
        self._numbered = False  # there were tokens
        self._cut = False
        self._owed: list[Delta] = []  # what the prompt began
        self.reasoning_tokens = 0  # those of the analysis channel
        if isinstance(prompt, TokenPrompt):
            self._take_over(prompt.tokens)

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        tokens = chunk.tokens
        if (kind := self._kind) is not None and len(tokens) == 1 and not chunk.logprobs and chunk.finish is None:
            word = self._words.get(tokens[0])
            if word:
                if kind is CallDelta:
                    return self._items.argue(word)
                if self._analysis:
                    self.reasoning_tokens += 1
                return (kind(word),)  # type: ignore[arg-type,call-arg]  # Text or Thought
        return self._feed(chunk)

    def finish(self) -> Sequence[Delta]:
        out, self._owed = self._owed, []
        if self._state is State.OVER:
            return out
        self._flush(out, ends=True)
        if self._state is State.HEADER and not (self._cut and _is_role(self._parts[-1])):
            self._give_up(END_OF_TEXT, out)
        self._items.end(out, last=True, cut=self._cut)
        self._items.finish(out)
        self._state, self._kind = State.OVER, None
        return out

    def _feed(self, chunk: Chunk) -> list[Delta]:
        if self._items.stopped:
            raise Enough(self._last(chunk))
        out, self._owed = self._owed, []
        self._cut = self._cut or chunk.finish in CUT
        if chunk.tokens:
            self._numbered = True
            self._take(chunk.tokens, chunk.logprobs, out, chunk.text)
        elif chunk.text and not self._numbered:
            self._say(chunk.text, out)
            self._flush(out)
        if self._stops:
            self._note(chunk)
            return out
        self._kind = self._items.kind if self._state is State.CONTENT and not self._halved else None
        return out

    def _note(self, chunk: Chunk) -> None:
        """Whether the answer was stopped. Why the engine ended does not count any more then."""
        self._heard += len(chunk.tokens)
        if self._items.stopped:
            self._state = State.OVER
            chunk.finish = chunk.finish and "stop"

    def _last(self, chunk: Chunk) -> Chunk:
        """The end, since the answer was stopped; told by us, if the engine does not tell it in this very chunk."""
        counts = chunk.counts or Counts(input_tokens=self._prompt_tokens, output_tokens=self._heard)
        return Chunk(finish="stop", counts=counts, extras=Extras(stop_reason=self._items.stopped))

    def _take(self, tokens: Sequence[int], logprobs: Sequence[Logprob], out: list[Delta], told: str = "") -> None:
        """`told`: what the engine takes their text to be."""
        probable = _paired(tokens, logprobs) if logprobs else None
        for number, token in enumerate(tokens):
            if token >= FIRST_CONTROL:
                self._flush(out, ends=True)
                self._control(token, out)
                continue
            if probable is not None and self._state is State.CONTENT and (logprob := probable[number]) is not None:
                self._logprobs.append(logprob)
            self._say(self._word(token, told), out)
        self._flush(out)

    def _word(self, token: int, told: str) -> str:
        word = self._words.get(token) or self._vocabulary.word(token)
        if isinstance(word, str) and not self._halved:
            return word
        if isinstance(word, bytes) and not self._halved and _completes(word, told):
            return told
        said = self._decoder.decode(word.encode() if isinstance(word, str) else word)
        self._halved = self._decoder.getstate()[0] != b""
        return said

    def _say(self, text: str, out: list[Delta]) -> None:
        if self._state is State.CONTENT:
            self._run.append(text)
            self._run_length += 1
        elif self._state is State.HEADER:
            part = self._parts[-1]
            part.text += text
            self._length += 1
            if self._length > LONGEST_HEADER or len(part.text) > LONGEST_HEADER_TEXT:
                self._give_up(None, out)
        elif self._state is State.BETWEEN and text:
            self._open(Part(0, text))

    def _flush(self, out: list[Delta], ends: bool = False) -> None:
        """Tell the run. `ends`: half a character will not become a whole one any more."""
        if ends and self._halved:
            self._halved = False
            half = self._decoder.decode(b"", True)
            self._decoder.reset()
            self._say(half, out)
        if self._run_length and ((text := "".join(self._run)) or ends):
            if text:
                self._items.say(text, self._logprobs, out)
            if self._analysis:
                self.reasoning_tokens += self._run_length
            self._run, self._run_length, self._logprobs = [], 0, []

    def _control(self, token: int, out: list[Delta]) -> None:
        if self._state is State.OVER:
            return
        if token in ENDS:
            self._end(token, out)
        elif token == START:
            self._end(token, out)
            self._open(Part(START))
        elif token == MESSAGE:
            if self._state is not State.CONTENT:
                self._begin(out)
        elif token in (CHANNEL, CONSTRAIN):
            self._go_on(Part(token), out)

    def _open(self, part: Part) -> None:
        self._state, self._parts, self._length = State.HEADER, [part], 1

    def _go_on(self, part: Part, out: list[Delta]) -> None:
        """With a header, or in a message, whose end may be missing."""
        if self._state is not State.HEADER:
            self._open(part)
            return
        self._parts.append(part)
        self._length += 1
        if self._length > LONGEST_HEADER:
            self._give_up(None, out)

    def _begin(self, out: list[Delta]) -> None:
        """The header has ended as it should."""
        header = read_header(self._parts if self._state is State.HEADER else (), True)
        to = address(header, self._tools)
        if self._items.open and header.channel is None and to.kind != "call":
            self._relapse(out)
            return
        self._items.end(out)
        self._enter(to, "", out)

    def _give_up(self, token: int | None, out: list[Delta]) -> None:
        """The header has not ended, and this token came instead; None: it is too long."""
        header = read_header(self._parts, False)
        if self._items.open and not (header.channel and header.rest):
            self._relapse(out)
            return
        self._items.end(out)
        to = self._salvaged(header, token)
        if header.rest or token is None or to.kind == "call":
            self._enter(to, header.rest, out)

    def _salvaged(self, header: Header, token: int | None) -> Address:
        """A call without its <|message|> is one if its arguments are there, or if it ends as calls do."""
        to = address(header, self._tools)
        if to.kind != "call" or header.rest.startswith("{") or (token == CALL and not header.rest):
            return to
        return THOUGHT

    def _enter(self, to: Address, text: str, out: list[Delta]) -> None:
        self._items.begin(to, out)
        self._state, self._analysis = State.CONTENT, to.analysis
        if text:
            self._items.say(text, (), out)

    def _relapse(self, out: list[Delta]) -> None:
        """That was no header: the message goes on."""
        self._state = State.CONTENT
        self._items.say("".join([part.text for part in self._parts]), (), out)

    def _end(self, token: int, out: list[Delta]) -> None:
        if self._state is State.HEADER and any(part.text for part in self._parts):
            self._give_up(token, out)
        self._items.end(out)
        self._state, self._analysis = State.BETWEEN, False
        if token in (RETURN, END_OF_TEXT) and self._items.over(out):
            self._state = State.OVER

    def _take_over(self, tokens: Sequence[int]) -> None:
        """Where the prompt ends: mostly within the header of the model's first message."""
        begin = len(tokens) - 1
        while begin >= 0 and tokens[begin] != START:
            begin -= 1
        if begin >= 0:
            self._take(tokens[begin:], (), self._owed)
            if self._state is State.HEADER and self._parts[-1].control == START:
                self._parts.append(Part(0))
            self._length = 0


def _is_role(part: Part) -> bool:
    """Whether it is one word, which would have become the name of a role or a tool."""
    return part.control == START and len(part.text.split()) < 2


def _completes(word: bytes, told: str) -> bool:
    """Whether it is the end of a character whose beginning did not come. llama.cpp tells the number of the last token
    of a character alone, with all of the text."""
    return word[0] & 0xC0 == 0x80 and told.encode("utf-8", "replace").endswith(word)


def _paired(tokens: Sequence[int], logprobs: Sequence[Logprob]) -> Sequence[Logprob | None]:
    """For each token its log probability. Engines leave out those of control tokens, or the one that ended the answer;
    where it cannot be told whose they are, they are nobody's."""
    words = [token < FIRST_CONTROL for token in tokens]
    if len(logprobs) == sum(words):
        rest = iter(logprobs)
        return [next(rest) if is_word else None for is_word in words]
    missing = len(tokens) - len(logprobs)
    return [*logprobs, None][: len(tokens)] if missing in (0, 1) else [None] * len(tokens)
