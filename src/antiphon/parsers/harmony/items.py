"""Messages of a Harmony answer → deltas: what was said in each, and what becomes of words that nobody addressed.

Such words are held until it is known what they are: the answer, if nothing else was said that could be one, and
otherwise thoughts. Nothing is lost but space.

Ends a Harmony answer at a client's stop string.

Engines look for such strings in all that a model says, its thoughts and headers included. Here they are looked for in
the answer alone, which is all that a client can mean.
"""

from collections.abc import Sequence
from json import dumps
from typing import Final

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Delta, Text, Thought
from antiphon.core.prompt import Chunk, Json
from antiphon.core.stop_strings import StopCut
from antiphon.parsers.base import Reading
from antiphon.parsers.harmony.header import Address
from antiphon.parsers.json.repair import JsonMend
from antiphon.parsers.logprob_alignment import Ledger
from antiphon.protocol.types.response import Logprob


class Stopping:
    """Of one message. `keeps`: the string is a part of the answer."""

    def __init__(self, stops: Sequence[str], keeps: bool) -> None:
        self._cut = StopCut(stops)
        self._keeps = keeps
        self._ledger: Ledger | None = None
        self._heard = self._told = 0  # characters

    @property
    def found(self) -> str:
        """The string that ended it; "" while none has."""
        return self._cut.found

    def say(self, text: str, logprobs: Sequence[Logprob], out: list[Delta]) -> None:
        if logprobs or self._ledger is not None:
            self._ledger = self._ledger or Ledger(self._heard)
            self._ledger.note(Chunk(text=text, logprobs=tuple(logprobs)))
        self._heard += len(text)
        told = self._cut.feed(text)
        self._tell(told + self._cut.found if self._keeps else told, out)

    def finish(self, out: list[Delta]) -> None:
        """What was held back was none."""
        self._tell(self._cut.finish(), out)

    def _tell(self, text: str, out: list[Delta]) -> None:
        if text:
            begin, self._told = self._told, self._told + len(text)
            out.append(Text(text, () if self._ledger is None else self._ledger.take(begin, self._told)))


NOTHING: Final = "{}"

Kind = type[Text] | type[Thought] | type[CallDelta]
_KINDS: Final[dict[str, Kind]] = {"text": Text, "thought": Thought, "call": CallDelta}


class Items:
    def __init__(self, reading: Reading) -> None:
        self._tools = reading.tools
        self._reading = reading
        self._stopping: Stopping | None = None  # looks at the answer that is open
        self.stopped = ""  # the string that ended the answer
        self._now: Address | None = None  # the message that is open
        self._said = False  # something in it
        self._calls = 0
        self._arguments: Arguments | None = None
        self._loose: list[str] = []
        self._spoke = False  # there was a message
        self.answered = False  # there was a final message or a call

    @property
    def open(self) -> bool:
        return self._now is not None

    @property
    def kind(self) -> Kind | None:
        """What the next piece of the open message becomes, if it is as simple as that."""
        return _KINDS.get(self._now.kind) if self._now is not None and self._said else None

    def begin(self, address: Address, out: list[Delta]) -> None:
        if address.kind != "unknown":
            self._settle(False, out)
        self._now, self._said = address, False
        if address.kind == "call":
            self._calls += 1
            self._arguments = Arguments(self._tools.get(address.name))
            out.append(CallStarted(self._calls - 1, address.name))

    def say(self, text: str, logprobs: Sequence[Logprob], out: list[Delta]) -> None:
        now = self._now
        if self.stopped:
            return
        if now is None or now.kind == "unknown":
            self._loose.append(text)
            return
        if now.kind == "call":
            self._said = True
            out += self.argue(text)
            return
        if not self._said:
            self._said = self._spoke = True
            if now.phase is not None:
                out.append(Break(now.phase))
                self.answered = self.answered or now.phase == "final_answer"
            if now.phase == "final_answer" and self._reading.stop:
                self._stopping = Stopping(self._reading.stop, self._reading.keeps_stop)
        if self._stopping is not None:
            self._stopping.say(text, logprobs, out)
            self.stopped = self._stopping.found
        else:
            out.append(Text(text, tuple(logprobs)) if now.kind == "text" else Thought(text))

    def argue(self, text: str) -> Sequence[Delta]:
        """Say it in the call that is open."""
        assert self._arguments is not None
        said = self._arguments.feed(text)
        return (CallDelta(self._calls - 1, said),) if said else ()

    def end(self, out: list[Delta], last: bool = False, cut: bool = False) -> None:
        """Of the open message. `last`: it is over because all is, and `cut` if that came too soon."""
        now, self._now = self._now, None
        if now is None:
            return
        if self._stopping is not None:
            self._stopping.finish(out)
            self._stopping = None
        if now.kind == "call":
            assert self._arguments is not None
            if not cut and (text := self._arguments.finish()):
                out.append(CallDelta(self._calls - 1, text))
            out.append(CallDone(self._calls - 1))
            self.answered = True
        elif self._said and not last:
            out.append(Break())

    def over(self, out: list[Delta]) -> bool:
        """Whether all was said, now that the model says so."""
        if self.answered or self._loose:
            self.finish(out)
        return self.answered

    def finish(self, out: list[Delta]) -> None:
        self._settle(not self.answered, out)

    def _settle(self, is_answer: bool, out: list[Delta]) -> None:
        """Say what nobody knew what it was."""
        loose = "".join(self._loose)
        self._loose.clear()
        if not loose or (loose.isspace() and (self.answered or self._spoke)):
            return
        if is_answer:
            out.append(Break("final_answer"))
            self._answer(loose, out)
            self.answered = True
        else:
            out += (Thought(loose), Break())

    def _answer(self, text: str, out: list[Delta]) -> None:
        """All of one that turned out to be one."""
        stopping = Stopping(self._reading.stop, self._reading.keeps_stop)
        stopping.say(text, (), out)
        stopping.finish(out)
        self.stopped = stopping.found


class Arguments:
    """Of one call: JSON as it was said, or mended; of a tool that takes a text, a bare text too.

    A tool without a schema takes whatever comes.
    """

    def __init__(self, schema: Json | None) -> None:
        self._schema = schema
        self._blank = ""  # space before anything
        self._begun = False
        self._mend: JsonMend | None = None
        self._wraps = False

    def feed(self, text: str) -> str:
        if not self._begun:
            text = self._blank + text
            if not text or text.isspace():
                self._blank = text
                return ""
            return self._begin(text)
        if self._mend is not None:
            return self._mended(self._mend, text)
        return dumps(text, ensure_ascii=False)[1:-1] if self._wraps else text

    def _mended(self, mend: JsonMend, text: str) -> str:
        said, at = mend.feed(text)
        if mend.broken:
            self._mend = None  # it cannot be mended, and passes as it is from here on
            return said + mend.give_up() + text[at:]
        return said

    def finish(self) -> str:
        if not self._begun:
            return NOTHING if self._schema is not None else self._blank
        if self._mend is not None:
            return self._mend.finish()
        return '"}' if self._wraps else ""

    def _begin(self, text: str) -> str:
        self._begun = True
        if self._schema is None:
            return text
        if text.lstrip().startswith("{"):
            self._mend = JsonMend()
            return self._mended(self._mend, text)
        self._wraps = _takes_text(self._schema)
        return '{"input": "' + dumps(text, ensure_ascii=False)[1:-1] if self._wraps else text


def _takes_text(schema: Json) -> bool:
    """Whether it is a custom tool, which is offered as a function of one text."""
    properties = schema.get("function", {}).get("parameters", {}).get("properties", {})
    return isinstance(properties, dict) and list(properties) == ["input"]
