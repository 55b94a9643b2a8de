"""What the header of a Harmony message says, however badly it is written; and whom the message is for.

    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>
             role              channel      recipient                 type

Its words may stand in any order and be glued together. A header that never came to its <|message|> ends at the first
word that is none of a header's; what follows is the message.
"""

from collections.abc import Container, Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct, field

from antiphon.core.harmony import CHANNEL, CHANNELS, CONSTRAIN, FUNCTIONS, START, Channel
from antiphon.protocol.types.items import Phase

ROLES: Final = ("assistant", "user", "system", "developer", "tool")
TYPES: Final = ("json", "code", "text", "python", "markdown")
LONGEST_TYPE: Final = max(map(len, TYPES))
TO: Final = "to="
PREFIXES: Final = (f"{FUNCTIONS}.", "function.", f"{FUNCTIONS}/", f"{FUNCTIONS}:")
NOBODY: Final = frozenset({"", "all", "user"})  # a message to these is to everybody

_ENDS_NAME: Final = frozenset(" \t\r\n<{[(\"'`=,;")


class Part(Struct):
    """Text of a header, and the control token before it; 0: none was."""

    control: int
    text: str = ""


class Header(Struct):
    role: str = ""
    channel: Channel | None = None
    recipient: str = ""
    odd: list[str] = field(default_factory=list)  # words that are none of a header's
    rest: str = ""  # of one that never ended: where the message begins


class Address(Struct, frozen=True, kw_only=True):
    """What a message is: text and thoughts, a call, or nobody knows."""

    kind: Literal["text", "thought", "call", "unknown"]
    name: str = ""  # of what is called
    phase: Phase | None = None
    analysis: bool = False


def read_header(parts: Sequence[Part], ended: bool) -> Header:
    """`ended`: by its <|message|>, so that all of it is header."""
    header = Header()
    for number, part in enumerate(parts):
        scan = _Scan(part, header, ended)
        at = scan.go()
        if at < len(part.text):
            header.rest = "".join([part.text[at:], *[later.text for later in parts[number + 1 :]]])
            if header.rest and _is_begun(part.control, header.rest):
                header.rest = ""
            return header
    if not ended and parts and parts[-1].control == 0 and parts[-1].text.isspace():
        header.rest = parts[-1].text
    return header


def address(header: Header, tools: Container[str]) -> Address:
    if header.role not in ("", "assistant"):
        return Address(kind="thought")  # somebody else's words: the model made them up
    odd = header.odd if header.channel == "commentary" else []
    for name in (header.recipient, *odd):
        if tool := called(name, tools):
            return Address(kind="call", name=tool)
    if header.recipient not in NOBODY and not (header.recipient == "assistant" and header.channel == "final"):
        return Address(kind="thought")
    match header.channel:
        case "analysis":
            return Address(kind="thought", analysis=True)
        case "commentary":
            return Address(kind="text", phase="commentary")
        case "final":
            return Address(kind="text", phase="final_answer")
        case None:
            return Address(kind="unknown")


def called(recipient: str, tools: Container[str]) -> str:
    """The offered name of the tool; "" if it was not offered. `browser` in the tools offers all of browser.*"""
    for name in _spellings(recipient):
        if name in tools:
            return name
        space, dot, _ = name.partition(".")
        if dot and space in tools:
            return name
    return ""


def _spellings(recipient: str) -> Iterator[str]:
    bare = recipient
    yield bare
    while prefix := _at(PREFIXES, bare, 0):
        bare = bare[len(prefix) :]
        yield bare
    yield bare.replace(".", "__").replace("/", "__")
    for kind in TYPES:
        if bare.endswith(kind):
            yield bare[: -len(kind)]


class _Scan:
    """Reads one part, word for word."""

    def __init__(self, part: Part, header: Header, ended: bool) -> None:
        self._part = part
        self._text = part.text
        self._header = header
        self._ended = ended
        self._glued = part.control != 0  # a word may follow without space

    def go(self) -> int:
        """Where the header's words are over. Space before anything belongs to what follows."""
        text = self._text
        first = at = _after_space(text, 0)
        while at < len(text):
            after = self._word(at)
            if after == at:
                if not self._ended:
                    return at if at > first else 0
                after = _name_end(text, at + 1)
                self._header.odd.append(text[at:after].strip(".?!,:–-"))
            at = _after_space(text, after)
        return at

    def _word(self, at: int) -> int:
        """The end of the header's word here; the same place if there is none."""
        text, header = self._text, self._header
        if text.startswith(TO, at):
            begin = _after_space(text, at + len(TO))
            end = _name_end(text, begin)
            header.recipient = text[begin:end].rstrip(".?!:–-")
            return end
        if role := _at(ROLES, text, at):
            if self._is_role(at + len(role)):
                header.role = header.role or role
                self._glued = True
                return at + len(role)
        elif channel := _at(CHANNELS, text, at):
            if self._is_channel(at + len(channel)):
                header.channel = channel  # type: ignore[assignment]  # one of CHANNELS
                return at + len(channel)
        elif self._part.control == START and not header.role and (end := self._stranger(at)):
            header.role = text[at:end]
            return end
        elif kind := _at(TYPES, text[at : at + LONGEST_TYPE].lower(), 0):
            end = at + len(kind)
            return at if text[end : end + 1].isalpha() else end
        return at

    def _is_role(self, end: int) -> bool:
        return (
            self._part.control != 0 or end == len(self._text) or bool(_at((*CHANNELS, *ROLES, " to="), self._text, end))
        )

    def _is_channel(self, end: int) -> bool:
        """Text that no control token led to may begin with such a word, and be no header at all."""
        after = self._text[end : end + 1]
        return self._glued or not after or after.isupper() or after == "{" or self._text.startswith(" to=", end)

    def _stranger(self, at: int) -> int:
        """The end of a role that is the name of a tool; 0 if it is no name."""
        end = _name_end(self._text, at)
        return end if self._ended or "." in self._text[at : end - 1] else 0


def _at(words: tuple[str, ...], text: str, at: int) -> str:
    return next((word for word in words if text.startswith(word, at)), "")


def _is_begun(control: int, text: str) -> bool:
    """Whether it was cut within a word of a header."""
    words = {START: ROLES, CHANNEL: (*CHANNELS, TO), CONSTRAIN: TYPES}.get(control, (TO,))
    return any(word.startswith(text) for word in words)


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _name_end(text: str, at: int) -> int:
    while at < len(text) and text[at] not in _ENDS_NAME:
        at += 1
    return at
