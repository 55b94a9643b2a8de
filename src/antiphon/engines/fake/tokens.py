"""Tokenization of the fake engine, and the chat template of its text and token levels.

A token is a run of four characters of a text. At token level it is one character, whose id is its code point plus an
offset. So counting is a division, and splitting loses nothing.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import log
from typing import Literal
from zlib import crc32

from antiphon.core.prompt import ChatTemplate, Segment
from antiphon.errors import InvalidValue
from antiphon.protocol.types.parts import Logprob, TopLogprob

Level = Literal["chat", "text", "tokens", "harmony"]

WIDTH = 4
START, END, THINK = "<|im_start|>", "<|im_end|>", "<|think|>"

TEMPLATE = ChatTemplate(
    source=(
        "{% for message in messages %}"
        "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<|think|>{% endif %}{% endif %}"
    ),
    eos=END,
)

_MARKERS = re.compile(r"(<\|im_start\|>|<\|im_end\|>|<\|think\|>)")
_MARKER_IDS = {START: 1, END: 2, THINK: 3}
_MARKER_TEXTS = {number: name for name, number in _MARKER_IDS.items()}
_ID_OFFSET = 16

# Every word has the width of a token.
_FILLER = (
    " the and for you not but all any can had her was one our out day get has him his how man new now old see two"
    " way who boy did its let put say she too use sun sky sea fox dog cat owl bee oak ash elm fir ice fog dew hay"
    " red tan jar cup"
)
FILLER_TOKENS = [_FILLER[at : at + WIDTH] for at in range(0, len(_FILLER), WIDTH)]


def split_tokens(text: str, width: int = WIDTH) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)]


def count_tokens(length: int, width: int = WIDTH) -> int:
    return -(-length // width)


@lru_cache(maxsize=8)
def filler_text(tokens: int) -> str:
    """Return `tokens` tokens of varied words."""
    return "".join([FILLER_TOKENS[(at * 7 + at // len(FILLER_TOKENS)) % len(FILLER_TOKENS)] for at in range(tokens)])


def split_markers(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the same text with each control marker in a control segment of its own; all other segments are text."""
    for segment in segments:
        if not segment.control:
            yield segment
            continue
        for at, text in enumerate(_MARKERS.split(segment.text)):
            if text:
                yield Segment(text, control=at % 2 == 1)


def encode(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Encode segments. A marker is one token in a control segment, and one per character in other text."""
    ids: list[int] = []
    for segment in split_markers(segments):
        ids += [_MARKER_IDS[segment.text]] if segment.control else encode_text(segment.text)
    return tuple(ids)


def encode_text(text: str) -> list[int]:
    return [ord(character) + _ID_OFFSET for character in text]


def decode(tokens: Sequence[int], param: str = "input") -> Iterator[Segment]:
    """Invert `encode`, with the segments of `split_markers`; `param` is the field to blame for an invalid token."""
    characters: list[str] = []
    for token in tokens:
        if token in _MARKER_TEXTS:
            yield from [Segment("".join(characters), control=False)] if characters else []
            yield Segment(_MARKER_TEXTS[token], control=True)
            characters = []
        else:
            characters.append(_to_character(token, param))
    yield from [Segment("".join(characters), control=False)] if characters else []


def _to_character(token: int, param: str) -> str:
    """Decode a token that is not a marker. A surrogate code point is not a character."""
    code = token - _ID_OFFSET
    if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise InvalidValue(f"{token} is no token of this model.", param=param)
    return chr(code)


def fake_logprob(piece: str, alternatives: int) -> Logprob:
    """Make up a log probability, always the same for a piece. All alternatives together have less than one."""
    seed = crc32(_encode_utf8(piece))
    probability = 0.55 + seed % 400 / 1000
    others = [filler for filler in FILLER_TOKENS if filler != piece]
    ranked = [(piece, probability)]
    for rank in range(1, alternatives):
        ranked.append((others[(seed + rank) % len(others)], (1 - probability) / 2**rank))
    return Logprob(
        token=piece,
        bytes=list(_encode_utf8(piece)),
        logprob=log(probability),
        top_logprobs=[
            TopLogprob(token=token, bytes=list(_encode_utf8(token)), logprob=log(share))
            for token, share in ranked[:alternatives]
        ],
    )


def _encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
