"""Parses the header of a Harmony message, also a malformed one, and determines the target of the message.

    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>
             role              channel      recipient                 type

The keywords may appear in any order and without separators. A header without its <|message|> ends at the first string
that is no header keyword; the text from there on is the message.
"""

import re
from collections.abc import Container, Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct, field

from antiphon.core.harmony import CALL, CHANNEL, CHANNELS, CONSTRAIN, FUNCTIONS_NAMESPACE, START, Channel
from antiphon.parsers.json_repair import match_end, skip_space
from antiphon.protocol.types.items import Phase

ROLES: Final = ("assistant", "user", "system", "developer", "tool")
TYPES: Final = ("json", "code", "text", "python", "markdown")
MAX_TYPE_LENGTH: Final = max(map(len, TYPES))
RECIPIENT_PREFIX: Final = "to="
FUNCTION_PREFIXES: Final = (
    f"{FUNCTIONS_NAMESPACE}.",
    "function.",
    f"{FUNCTIONS_NAMESPACE}/",
    f"{FUNCTIONS_NAMESPACE}:",
)
BROADCAST_RECIPIENTS: Final = frozenset({"", "all", "user"})  # a message to these has no specific recipient

_NAME: Final = re.compile(r"""[^ \t\r\n<{\[("'`=,;]*""")


class HeaderPart(Struct):
    """Text of a header and the control token before it; 0: no control token."""

    control: int
    text: str = ""

    @property
    def is_single_word(self) -> bool:
        """Whether the part is a single word, the beginning of a role or tool name."""
        return self.control == START and len(self.text.split()) < 2


class HarmonyHeader(Struct):
    """Fields of a parsed header."""

    role: str = ""
    channel: Channel | None = None
    recipient: str = ""
    unrecognised: list[str] = field(default_factory=list)  # text that is no header keyword
    content: str = ""  # beginning of the message, if the header never ended


class MessageTarget(Struct, frozen=True, kw_only=True):
    """Classification of a message by its content: text, reasoning, a call, or unknown."""

    kind: Literal["text", "thought", "call", "unknown"]
    name: str = ""  # name of the called tool
    phase: Phase | None = None
    analysis: bool = False


def read_header(parts: Sequence[HeaderPart], ended: bool) -> HarmonyHeader:
    """Parse the parts of a header. `ended`: <|message|> ended it, so all of the text is header."""
    header = HarmonyHeader()
    for number, part in enumerate(parts):
        scanner = _HeaderScanner(part, header, ended)
        at = scanner.scan()
        if at < len(part.text):
            header.content = "".join([part.text[at:], *[later.text for later in parts[number + 1 :]]])
            if header.content and _is_cut_keyword(part.control, header.content):
                header.content = ""
            return header
    if not ended and parts and parts[-1].control == 0 and parts[-1].text.isspace():
        header.content = parts[-1].text
    return header


def resolve_target(header: HarmonyHeader, tools: Container[str]) -> MessageTarget:
    """Determine the target of a message from its header."""
    if header.role not in ("", "assistant"):
        return MessageTarget(kind="thought")  # a message in another role, which the model made up
    unrecognised = header.unrecognised if header.channel == "commentary" else []
    for name in (header.recipient, *unrecognised):
        if tool := find_called_tool(name, tools):
            return MessageTarget(kind="call", name=tool)
    if header.recipient not in BROADCAST_RECIPIENTS and not (
        header.recipient == "assistant" and header.channel == "final"
    ):
        return MessageTarget(kind="thought")
    match header.channel:
        case "analysis":
            return MessageTarget(kind="thought", analysis=True)
        case "commentary":
            return MessageTarget(kind="text", phase="commentary")
        case "final":
            return MessageTarget(kind="text", phase="final_answer")
        case None:
            return MessageTarget(kind="unknown")


def salvage_target(header: HarmonyHeader, token: int | None, tools: Container[str]) -> MessageTarget:
    """Determine the target of a header without <|message|>; `token` came instead, or None: the header is too long.

    A call without <|message|> counts if its arguments are there, or if it ends with <|call|>.
    """
    target = resolve_target(header, tools)
    if target.kind != "call" or header.content.startswith("{") or (token == CALL and not header.content):
        return target
    return MessageTarget(kind="thought")


def find_called_tool(recipient: str, tools: Container[str]) -> str:
    """Return the offered name of the tool, or "" if it was not offered. `browser` in `tools` offers all of browser.*"""
    for name in _name_variants(recipient):
        if name in tools:
            return name
        namespace, dot, _ = name.partition(".")
        if dot and namespace in tools:
            return name
    return ""


def _name_variants(recipient: str) -> Iterator[str]:
    name = recipient
    yield name
    while prefix := _match_at(FUNCTION_PREFIXES, name, 0):
        name = name[len(prefix) :]
        yield name
    yield name.replace(".", "__").replace("/", "__")
    for kind in TYPES:
        if name.endswith(kind):
            yield name[: -len(kind)]


class _HeaderScanner:
    """Scans one part of a header for keywords."""

    def __init__(self, part: HeaderPart, header: HarmonyHeader, ended: bool) -> None:
        self._part = part
        self._text = part.text
        self._header = header
        self._ended = ended
        self._allow_adjacent = part.control != 0  # a keyword may follow without white space

    def scan(self) -> int:
        """Return the position where the keywords end. White space belongs to the text after it."""
        text = self._text
        first = at = skip_space(text, 0)
        while at < len(text):
            end = self._read_keyword(at)
            if end == at:
                if not self._ended:
                    return at if at > first else 0
                end = match_end(_NAME, text, at + 1)
                self._header.unrecognised.append(text[at:end].strip(".?!,:–-"))
            at = skip_space(text, end)
        return at

    def _read_keyword(self, at: int) -> int:
        """Return the end of the keyword at this position; the position itself if there is none."""
        text, header = self._text, self._header
        if text.startswith(RECIPIENT_PREFIX, at):
            begin = skip_space(text, at + len(RECIPIENT_PREFIX))
            end = match_end(_NAME, text, begin)
            header.recipient = text[begin:end].rstrip(".?!:–-")
            return end
        if role := _match_at(ROLES, text, at):
            if self._is_role(at + len(role)):
                header.role = header.role or role
                self._allow_adjacent = True
                return at + len(role)
        elif channel := _match_at(CHANNELS, text, at):
            if self._is_channel(at + len(channel)):
                header.channel = channel  # type: ignore[assignment]  # one of CHANNELS
                return at + len(channel)
        elif self._part.control == START and not header.role and (end := self._find_tool_role_end(at)):
            header.role = text[at:end]
            return end
        elif kind := _match_at(TYPES, text[at : at + MAX_TYPE_LENGTH].lower(), 0):
            end = at + len(kind)
            return at if text[end : end + 1].isalpha() else end
        return at

    def _is_role(self, end: int) -> bool:
        return (
            self._part.control != 0
            or end == len(self._text)
            or bool(_match_at((*CHANNELS, *ROLES, " to="), self._text, end))
        )

    def _is_channel(self, end: int) -> bool:
        """Return whether the name is a channel: text without a control token may begin with such a name and be no
        header.
        """
        following = self._text[end : end + 1]
        return (
            self._allow_adjacent
            or not following
            or following.isupper()
            or following == "{"
            or self._text.startswith(" to=", end)
        )

    def _find_tool_role_end(self, at: int) -> int:
        """Return the end of a role that is the name of a tool; 0 if it is none."""
        end = match_end(_NAME, self._text, at)
        return end if self._ended or "." in self._text[at : end - 1] else 0


def _match_at(candidates: tuple[str, ...], text: str, at: int) -> str:
    return next((candidate for candidate in candidates if text.startswith(candidate, at)), "")


def _is_cut_keyword(control: int, text: str) -> bool:
    """Return whether the text is the beginning of a header keyword that was cut off."""
    keywords = {START: ROLES, CHANNEL: (*CHANNELS, RECIPIENT_PREFIX), CONSTRAIN: TYPES}.get(
        control, (RECIPIENT_PREFIX,)
    )
    return any(keyword.startswith(text) for keyword in keywords)
