"""Tokens to text, while they are generated: bytes of a character, and control tokens that the client does not see."""

import codecs
from collections.abc import Callable, Collection, Sequence

SAMPLE = "Hello, wörld! 12 😀"  # decoded by both methods to compare them
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_WINDOW = 64  # tokens that are decoded together

DecodeTokens = Callable[[Sequence[int]], str]


class TokenTable:
    """The bytes of each token, and the tokens to omit.

    Where a tokenizer changes text between tokens, as SentencePiece does, bytes do not join to the text: then `decode`
    decodes the tokens.
    """

    def __init__(
        self,
        vocabulary: dict[bytes, int],
        size: int,
        control: Collection[int],
        encode: Callable[[str], Sequence[int]],
        decode: DecodeTokens,
    ) -> None:
        self._bytes = [b""] * max(size, max(vocabulary.values(), default=-1) + 1)
        for text, token in vocabulary.items():
            self._bytes[token] = text
        self._control = frozenset(control)
        self._decode = None if b"".join(map(self.get_bytes, encode(SAMPLE))) == SAMPLE.encode() else decode

    def get_bytes(self, token: int) -> bytes:
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def make_decoder(self, visible: Collection[int]) -> "TokenDecoder":
        return TokenDecoder(self, self._control.difference(visible), self._decode)


class TokenDecoder:
    """Decodes the tokens of one answer."""

    def __init__(self, table: TokenTable, hidden: Collection[int], decode: DecodeTokens | None) -> None:
        self._table = table
        self._hidden = hidden
        self._decode = decode
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window: list[int] = []
        self._shown = ""  # text of the window that was returned

    def feed(self, tokens: Sequence[int]) -> str:
        shown = [token for token in tokens if token not in self._hidden]
        if self._decode is not None:
            return self._decode_window(self._decode, shown)
        return self._utf8.decode(b"".join(map(self._table.get_bytes, shown)))

    def finish(self) -> str:
        if self._decode is None:
            return self._utf8.decode(b"", final=True)
        return self._decode(self._window)[len(self._shown) :]

    def _decode_window(self, decode: DecodeTokens, tokens: list[int]) -> str:
        """Decode the last tokens again with the new ones, since the first of a text may lose its space."""
        self._window += tokens
        text = decode(self._window)
        if text.endswith(REPLACEMENT):  # the beginning of a character
            return ""
        added, self._shown = text[len(self._shown) :], text
        if len(self._window) > MAX_WINDOW:
            self._window = self._window[-MAX_WINDOW // 4 :]
            self._shown = decode(self._window)
        return added
