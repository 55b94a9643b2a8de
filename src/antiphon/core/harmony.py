"""The Harmony format of gpt-oss: control tokens, and the vocabulary that maps text to tokens and back.

Messages have a header with a channel and possibly a recipient:

    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>

The control tokens are the same in every model of the family. Text is always encoded as text: control tokens enter a
prompt by number only. The vocabulary ships with the package `oss-harmony`, so nothing is downloaded; the package is
imported on first use. This module is in `core` because `render` and `parsers`, which both need it, must not import each
other.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Final, Literal

from msgspec import Struct

from antiphon.core.prompt import Json
from antiphon.errors import StartupError

RETURN: Final = 200002  # end of the answer
CONSTRAIN: Final = 200003
CHANNEL: Final = 200005
START: Final = 200006
END: Final = 200007  # end of a message; more messages may follow
MESSAGE: Final = 200008  # end of the message header
CALL: Final = 200012  # end of a message to a tool
END_OF_TEXT: Final = 199999

FIRST_CONTROL: Final = 199998  # all tokens from here on are control tokens, used or not

END_TOKENS: Final = frozenset({END, RETURN, CALL, END_OF_TEXT})
STOP_TOKENS: Final = (RETURN, CALL)  # tokens that must stop the model in addition to other stop conditions

TOKEN_TEXTS: Final = {
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
FUNCTIONS_NAMESPACE: Final = "functions"  # namespace of the functions that a client declares

# The library needs quadratic time for what it treats as one word, and holds the GIL meanwhile.
LONG_RUN: Final = re.compile(r"\S{128}|\s{128}")
MAX_PIECE_CHARS: Final = 8192  # characters per call: a few milliseconds

_Utf8Decoder = getincrementaldecoder("utf-8")


class HarmonyNamespace(Struct, frozen=True):
    """A built-in tool as the model was trained on it; its functions as chat function schemas."""

    name: str
    description: str
    tools: tuple[Json, ...]


class HarmonyVocabulary:
    """Encodes text to tokens and decodes tokens, with caches for both."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._encoding = library.load_harmony_encoding("HarmonyGptOss")
        self.token_texts: dict[int, str] = {}  # cached texts of tokens that are complete characters
        self._partial_bytes: dict[int, bytes] = {}  # cached bytes of tokens that are not
        self.encode_label = lru_cache(maxsize=4096)(self._encode_label)

    def encode(self, text: str) -> list[int]:
        """Encode text; the result never contains control tokens."""
        found: list[int] = []
        for piece in _split_text(text):
            found += self._encoding.encode(piece, disallowed_special=())
        return found

    def _encode_label(self, text: str) -> tuple[int, ...]:
        """Encode a recurring text: a role, a channel or a tool name."""
        return tuple(self.encode(text))

    def decode_token(self, token: int) -> str | bytes:
        """Return the text of a token, or its bytes within a character; "" for control tokens and invalid numbers."""
        if (cached := self.token_texts.get(token)) is not None:
            return cached
        if token not in self._partial_bytes:
            encoded = self._token_bytes(token)
            try:
                self.token_texts[token] = text = encoded.decode()
                return text
            except UnicodeDecodeError:
                self._partial_bytes[token] = encoded
        return self._partial_bytes[token]

    def load_builtin(self, name: str) -> HarmonyNamespace:
        """Return the library's definition of a built-in tool."""
        config = getattr(self._library.ToolNamespaceConfig, name)()
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in config.tools
        ]
        return HarmonyNamespace(
            config.name, config.description, tuple([{"type": "function", "function": tool} for tool in tools])
        )

    def _token_bytes(self, token: int) -> bytes:
        if not 0 <= token < FIRST_CONTROL:
            return b""
        text: str = self._encoding.decode([token], errors="surrogateescape")
        return text.encode("utf-8", "surrogateescape")


@cache
def load_vocabulary() -> HarmonyVocabulary:
    """Load the vocabulary once. The first call takes about half a second and 75 MB."""
    try:
        import openai_harmony  # type: ignore[import-untyped] # it comes without types
    except ImportError:
        raise StartupError("gpt-oss models need one more package: pip install 'antiphon[harmony]'.") from None
    return HarmonyVocabulary(openai_harmony)


class HarmonyTokenDecoder:
    """Decodes tokens one by one to text: a character that is split over tokens comes with the last of them."""

    def __init__(self) -> None:
        self._vocabulary = load_vocabulary()
        self.token_texts = self._vocabulary.token_texts
        self._utf8 = _Utf8Decoder("replace")
        self.is_partial = False  # part of a character is held back

    def decode(self, token: int, engine_text: str = "") -> str:
        """Return the text that the token completes. `engine_text`: its text according to the engine."""
        text = self.token_texts.get(token) or self._vocabulary.decode_token(token)
        if not self.is_partial:
            if isinstance(text, str):
                return text
            if _completes_character(text, engine_text):
                return engine_text
        decoded = self._utf8.decode(text.encode() if isinstance(text, str) else text)
        self.is_partial = self._utf8.getstate()[0] != b""
        return decoded

    def finish(self) -> str:
        """Return the replacement of a character that can no longer be completed."""
        self.is_partial = False
        replacement = self._utf8.decode(b"", True)
        self._utf8.reset()
        return replacement


def _completes_character(token_bytes: bytes, engine_text: str) -> bool:
    """Return whether the token ends a character whose beginning is missing.

    llama.cpp reports only the id of the last token of a character, with the complete text.
    """
    return token_bytes[0] & 0xC0 == 0x80 and engine_text.encode("utf-8", "replace").endswith(token_bytes)


def _split_text(text: str) -> Iterator[str]:
    """Split a text into pieces that take little time each, between words where possible."""
    begin = 0
    for run in LONG_RUN.finditer(text):
        yield from _split_run(text, begin, run.end())
        begin = run.end()
    yield from _split_run(text, begin, len(text))


def _split_run(text: str, begin: int, end: int) -> Iterator[str]:
    while end - begin > MAX_PIECE_CHARS:
        position = text.rfind(" ", begin + 1, begin + MAX_PIECE_CHARS)
        position = begin + MAX_PIECE_CHARS if position < 0 else position
        yield text[begin:position]
        begin = position
    if begin < end:
        yield text[begin:end]
