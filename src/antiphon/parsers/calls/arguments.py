"""The arguments of one call as JSON while they arrive; also those that were written as a string of JSON.

None, null and an empty string are no arguments: {}. A string of anything else stays a string.
"""

from typing import Final, Protocol

from antiphon.parsers.json.repair import MOST_ESCAPES, JsonMend
from antiphon.parsers.json.skip import WHITE
from antiphon.parsers.json.string import JsonString, Unquoted

NOTHING: Final = "{}"


class Flow(Protocol):
    """What arguments can be fed to once they have begun."""

    @property
    def over(self) -> bool: ...

    @property
    def done(self) -> bool: ...

    @property
    def waits(self) -> bool:
        """Whether what comes can wait until something is closed."""

    def flows(self, text: str) -> bool:
        """Whether it is all in the middle of a string, and passes as it is."""

    def feed(self, text: str, at: int = 0) -> tuple[str, int]: ...


class Arguments:
    def __init__(self) -> None:
        self._value: JsonMend | _Quoted | None = None
        self._said = False
        self.flow: Flow | None = None  # once they have begun: all that it says is theirs

    @property
    def done(self) -> bool:
        return self._value is not None and self._value.done

    @property
    def broken(self) -> bool:
        return self._value is not None and self._value.broken

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """What there is of them by this, and where the reading stopped: at the end, after them, or where it broke."""
        if self._value is None:
            self._value = _Quoted(text[at]) if text[at] in "\"'" else JsonMend()
            at += isinstance(self._value, _Quoted)
        said, at = self._value.feed(text, at)
        if not self._said:
            said = self._first(said)
        return said, at

    def finish(self) -> str:
        """What is missing to make them whole."""
        return self._first(self._value.finish()) if self._value is not None else NOTHING

    def give_up(self) -> str:
        return self._value.give_up() if self._value is not None else ""

    def _first(self, said: str) -> str:
        if said == "null" or not (said or self._said or not self.done):
            said = NOTHING
        self._said = self._said or bool(said)
        if self._said:
            self.flow = self._value
        return said


class _Quoted:
    """A string, from after its quote on: the JSON that is in it, or itself."""

    def __init__(self, quote: str) -> None:
        self._string = JsonString()
        self._string.quote = quote
        self._text = Unquoted()
        self._raw: list[str] = []  # until it is told what it is: nothing but space so far
        self._mend: JsonMend | None = None
        self._verbatim = False  # what is in it cannot be mended
        self._plain = False
        self.done = False

    @property
    def broken(self) -> bool:
        return self._string.mends > MOST_ESCAPES

    @property
    def over(self) -> bool:
        return self.done or self.broken

    @property
    def waits(self) -> bool:
        return self._mend is not None and self._mend.waits and not self._verbatim

    def flows(self, text: str) -> bool:
        """What passes in a string passes in a string within a string."""
        if self._mend is None or self._verbatim or self._text.waits or not self._string.is_plain:
            return False
        return self._mend.flows(text)

    def feed(self, text: str, at: int = 0) -> tuple[str, int]:
        if self.done:
            return "", at
        inside: list[str] = []
        string, end = self._string, len(text)
        while at < end and string.quote and not self.broken:
            at = string.feed(text, at, inside)
        if string.quote:
            return self._take("".join(inside)), at
        inside.pop()  # the quote
        self.done = True
        return self._take("".join(inside)) + self._last(), at

    def finish(self) -> str:
        self.done = True
        return self._last()

    def give_up(self) -> str:
        self.done = True
        return "".join(self._raw)

    def _take(self, inside: str) -> str:
        if self._plain or not inside:
            return inside
        text = self._text.feed(inside)
        if self._mend is not None:
            return self._mended(self._mend, text)
        self._raw.append(inside)
        if not (begun := text.lstrip(WHITE)):
            return ""
        raw = "".join(self._raw)
        self._raw.clear()
        if begun[0] == "{":
            self._mend = JsonMend()
            return self._mended(self._mend, begun)
        self._plain = True
        return '"' + raw

    def _mended(self, mend: JsonMend, text: str) -> str:
        if self._verbatim:
            return text
        said, at = mend.feed(text)
        if mend.broken:
            self._verbatim = True
            said += mend.give_up() + text[at:]
        return said

    def _last(self) -> str:
        if self._plain:
            return '"'
        return self._mend.finish() if self._mend is not None and not self._verbatim else ""
