"""The vocabulary of gpt-oss: text → tokens and back. It comes with the package `oss-harmony`, so nothing is fetched.

Text becomes text, whatever it looks like: control tokens are put into a prompt by their number alone. The package is
loaded when it is first asked for; it stands here since render/ and parsers/, which both need it, are strangers.

The control tokens of gpt-oss, which speaks Harmony: messages with a header, a channel and perhaps a recipient.

    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>

They are the same in every model of the family. What is no control token is text: core/harmony.py knows its words.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Final, Literal

from msgspec import Struct

from antiphon.core.prompt import Json
from antiphon.errors import StartupError

RETURN: Final = 200002  # the end of the answer
CONSTRAIN: Final = 200003
CHANNEL: Final = 200005
START: Final = 200006
END: Final = 200007  # of a message; more may follow
MESSAGE: Final = 200008  # the end of its header
CALL: Final = 200012  # the end of a message to a tool
END_OF_TEXT: Final = 199999

FIRST_CONTROL: Final = 199998  # every token from here on is a control token, whether it has a use or not

ENDS: Final = frozenset({END, RETURN, CALL, END_OF_TEXT})
STOPS: Final = (RETURN, CALL)  # where a model must be stopped, whatever else stops it

NAMES: Final = {
    RETURN: "<|return|>",
    CONSTRAIN: "<|constrain|>",
    CHANNEL: "<|channel|>",
    START: "<|start|>",
    END: "<|end|>",
    MESSAGE: "<|message|>",
    CALL: "<|call|>",
}

Channel = Literal["analysis", "commentary", "final"]
CHANNELS: Final[tuple[Channel, ...]] = ("analysis", "commentary", "final")
FUNCTIONS: Final = "functions"  # the namespace of what a client declares


# The library takes quadratic time for what it sees as one word, and lets no other thread run meanwhile.
LONG_RUN: Final = re.compile(r"\S{128}|\s{128}")
STRETCH: Final = 8192  # characters at a time: some milliseconds


class Namespace(Struct, frozen=True):
    """A built-in tool in the words that the model has learned; the tools in it as chat function schemas."""

    name: str
    description: str
    tools: tuple[Json, ...]


class Vocabulary:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._encoding = library.load_harmony_encoding("HarmonyGptOss")
        self.words: dict[int, str] = {}  # of tokens that were seen and are whole characters
        self._halves: dict[int, bytes] = {}  # of those that are not
        self.label = lru_cache(maxsize=4096)(self._label)

    def tokens(self, text: str) -> list[int]:
        """Never a control token."""
        found: list[int] = []
        for stretch in _stretches(text):
            found += self._encoding.encode(stretch, disallowed_special=())
        return found

    def _label(self, text: str) -> tuple[int, ...]:
        """The tokens of what is said again and again: roles, channels, names of tools."""
        return tuple(self.tokens(text))

    def word(self, token: int) -> str | bytes:
        """Bytes where they are no whole characters. A control token, or a number that is none, says nothing."""
        if (known := self.words.get(token)) is not None:
            return known
        if token not in self._halves:
            said = self._bytes(token)
            try:
                self.words[token] = word = said.decode()
                return word
            except UnicodeDecodeError:
                self._halves[token] = said
        return self._halves[token]

    def builtin(self, name: str) -> Namespace:
        made = getattr(self._library.ToolNamespaceConfig, name)()
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in made.tools
        ]
        return Namespace(made.name, made.description, tuple([{"type": "function", "function": tool} for tool in tools]))

    def _bytes(self, token: int) -> bytes:
        if not 0 <= token < FIRST_CONTROL:
            return b""
        said: str = self._encoding.decode([token], errors="surrogateescape")
        return said.encode("utf-8", "surrogateescape")


@cache
def vocabulary() -> Vocabulary:
    """The first time it takes about half a second, and 75 MB."""
    try:
        import openai_harmony  # type: ignore[import-untyped] # it comes without types
    except ImportError:
        raise StartupError("gpt-oss models need one more package: pip install 'antiphon[harmony]'.") from None
    return Vocabulary(openai_harmony)


def _stretches(text: str) -> Iterator[str]:
    """The text in pieces that take little time each, cut between words where there is such a place."""
    begin = 0
    for run in LONG_RUN.finditer(text):
        yield from _cut(text, begin, run.end())
        begin = run.end()
    yield from _cut(text, begin, len(text))


def _cut(text: str, begin: int, end: int) -> Iterator[str]:
    while end - begin > STRETCH:
        place = text.rfind(" ", begin + 1, begin + STRETCH)
        place = begin + STRETCH if place < 0 else place
        yield text[begin:place]
        begin = place
    if begin < end:
        yield text[begin:end]
