"""Harmony tokens of the fake engine: text with control tokens by their names → tokens, and back, one by one."""

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Final

from antiphon.core.harmony import END_OF_TEXT, TOKEN_TEXTS, load_vocabulary
from antiphon.core.prompt import Chunk, Segment
from antiphon.engines.fake.tokens import fake_logprob

CONTROL_TEXTS: Final = {**TOKEN_TEXTS, END_OF_TEXT: "<|endoftext|>"}
CONTROL_TOKENS: Final = {name: token for token, name in CONTROL_TEXTS.items()}
_CONTROL_PATTERN: Final = re.compile(f"({'|'.join(map(re.escape, CONTROL_TOKENS))})")

_Utf8Decoder = getincrementaldecoder("utf-8")


def encode_with_controls(text: str) -> tuple[int, ...]:
    """Encode text in which control tokens are written by their names."""
    vocab, ids = load_vocabulary(), list[int]()
    for part in _CONTROL_PATTERN.split(text):
        ids += [CONTROL_TOKENS[part]] if part in CONTROL_TOKENS else vocab.encode(part)
    return tuple(ids)


def encode(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Encode segments; names of control tokens count only in control segments."""
    vocab = load_vocabulary()
    return tuple(
        [
            id
            for segment in segments
            for id in (encode_with_controls(segment.text) if segment.control else vocab.encode(segment.text))
        ]
    )


def decode(tokens: Sequence[int]) -> str:
    decoder = HarmonyTokenDecoder(show_controls=True)
    return "".join([decoder.decode(token) for token in tokens])


class HarmonyTokenDecoder:
    """Decodes tokens one by one to text as engines do: the first half of a character is emitted together with the
    second.
    """

    def __init__(self, *, show_controls: bool) -> None:
        """`show_controls`: emit control tokens by their names instead of ""."""
        self._show_controls = show_controls
        self._vocab = load_vocabulary()
        self._decoder = _Utf8Decoder("replace")

    def decode(self, token: int) -> str:
        if token in CONTROL_TEXTS:
            return CONTROL_TEXTS[token] if self._show_controls else ""
        decoded = self._vocab.decode_token(token)
        return self._decoder.decode(decoded.encode() if isinstance(decoded, str) else decoded)

    def to_chunk(self, token: int, alternatives: int | None) -> Chunk:
        chunk = Chunk(text=self.decode(token), tokens=(token,))
        if alternatives is not None:
            chunk.logprobs = (fake_logprob(CONTROL_TEXTS.get(token) or chunk.text, alternatives),)
        return chunk
