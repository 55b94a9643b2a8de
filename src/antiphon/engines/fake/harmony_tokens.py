"""Harmony tokens of the fake engine: text with control tokens by their names → tokens, and back, one by one."""

import re
from collections.abc import Sequence
from typing import Final

from antiphon.core.harmony import END_OF_TEXT, TOKEN_TEXTS, HarmonyTokenDecoder, load_vocabulary
from antiphon.core.prompt import Chunk, Segment
from antiphon.engines.fake.tokens import fake_logprob

CONTROL_TEXTS: Final = {**TOKEN_TEXTS, END_OF_TEXT: "<|endoftext|>"}
CONTROL_TOKENS: Final = {name: token for token, name in CONTROL_TEXTS.items()}
_CONTROL_PATTERN: Final = re.compile(f"({'|'.join(map(re.escape, CONTROL_TOKENS))})")


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
    decoder = FakeTokenDecoder(show_controls=True)
    return "".join([decoder.decode(token) for token in tokens])


class FakeTokenDecoder(HarmonyTokenDecoder):
    """Decodes tokens to chunks, as engines do."""

    def __init__(self, *, show_controls: bool) -> None:
        """`show_controls`: emit control tokens by their names instead of ""."""
        super().__init__()
        self._show_controls = show_controls

    def decode(self, token: int, engine_text: str = "") -> str:
        if token in CONTROL_TEXTS:
            return CONTROL_TEXTS[token] if self._show_controls else ""
        return super().decode(token, engine_text)

    def to_chunk(self, token: int, alternatives: int | None) -> Chunk:
        chunk = Chunk(text=self.decode(token), tokens=(token,))
        if alternatives is not None:
            chunk.logprobs = (fake_logprob(CONTROL_TEXTS.get(token) or chunk.text, alternatives),)
        return chunk
