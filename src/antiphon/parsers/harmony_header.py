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
        at = _scan_part(part, header, ended)
        if at < len(part.text):
            header.content = "".join([part.text[at:], *[later.text for later in parts[number + 1 :]]])
            if header.content and _is_cut_keyword(part.control, header.content):
                header.content = ""
            return header
    if not ended and parts and parts[-1].control == 0 and parts[-1].text.isspace():
        header.content = parts[-1].text
    return header


def resolve_target(header: HarmonyHeader, tools: Container[str]) -> MessageTarget:
    if header.role not in ("", "assistant"):
        return MessageTarget(kind="thought")  # a message in another role, which the model made up
    unrecognised = header.unrecognised if header.channel == "commentary" else []
    for name in (header.recipient, *unrecognised):
        if tool := find_called_tool(name, tools):
            return MessageTarget(kind="call", name=tool)
    if header.recipient not in BROADCAST_RECIPIENTS and (header.recipient, header.channel) != ("assistant", "final"):
        if header.recipient in ROLES or header.channel == "final":
            return MessageTarget(kind="thought")
        return MessageTarget(kind="call", name=header.recipient)  # nobody serves it: `agent/tool_resolver.py`
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


def _scan_part(part: HeaderPart, header: HarmonyHeader, ended: bool) -> int:
    """Read the keywords of one part and return the position where they end; space belongs to the text after it."""
    text, follows_role = part.text, False
    first = at = skip_space(text, 0)
    while at < len(text):
        end = _read_keyword(part, header, at, ended, follows_role)
        follows_role = follows_role or (end > at and text.startswith(ROLES, at))
        if end == at:
            if not ended:
                return at if at > first else 0
            end = match_end(_NAME, text, at + 1)
            header.unrecognised.append(text[at:end].strip(".?!,:–-"))
        at = skip_space(text, end)
    return at


def _read_keyword(part: HeaderPart, header: HarmonyHeader, at: int, ended: bool, follows_role: bool) -> int:
    """Return the end of the keyword at this position; the position itself if there is none.

    A keyword may follow a control token, and a channel a role, without white space.
    """
    text, follows_control = part.text, part.control != 0
    if text.startswith(RECIPIENT_PREFIX, at):
        begin = skip_space(text, at + len(RECIPIENT_PREFIX))
        end = match_end(_NAME, text, begin)
        header.recipient = text[begin:end].rstrip(".?!:–-")
        return end
    if role := _match_at(ROLES, text, at):
        if follows_control or _ends_role(text, at + len(role)):
            header.role = header.role or role
            return at + len(role)
    elif channel := _match_at(CHANNELS, text, at):
        if follows_control or follows_role or _ends_channel(text, at + len(channel)):
            header.channel = channel  # type: ignore[assignment]  # one of CHANNELS
            return at + len(channel)
    elif part.control == START and not header.role and (end := _find_tool_role_end(text, at, ended)):
        header.role = text[at:end]
        return end
    elif kind := _match_at(TYPES, text[at : at + MAX_TYPE_LENGTH].lower(), 0):
        end = at + len(kind)
        return at if text[end : end + 1].isalpha() else end
    return at


def _ends_role(text: str, at: int) -> bool:
    return at == len(text) or bool(_match_at((*CHANNELS, *ROLES, " to="), text, at))


def _ends_channel(text: str, at: int) -> bool:
    """Return whether a channel ends here: text without a control token may begin with such a name and be no header."""
    following = text[at : at + 1]
    return not following or following.isupper() or following == "{" or text.startswith(" to=", at)


def _find_tool_role_end(text: str, at: int, ended: bool) -> int:
    """Return the end of a role that is the name of a tool; 0 if it is none."""
    end = match_end(_NAME, text, at)
    return end if ended or "." in text[at : end - 1] else 0


def _match_at(candidates: tuple[str, ...], text: str, at: int) -> str:
    return next((candidate for candidate in candidates if text.startswith(candidate, at)), "")


def _is_cut_keyword(control: int, text: str) -> bool:
    """Return whether the text is the beginning of a header keyword that was cut off."""
    keywords = {START: ROLES, CHANNEL: (*CHANNELS, RECIPIENT_PREFIX), CONSTRAIN: TYPES}.get(
        control, (RECIPIENT_PREFIX,)
    )
    return any(keyword.startswith(text) for keyword in keywords)
