"""What the fake engine takes for tokens, and the chat template of its text and token levels.

A token is a run of four characters of a text (at token level one character, whose id is its code point
plus an offset), so that counting is a division and nothing is lost by cutting.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import log
from typing import Literal
from zlib import crc32

from antiphon.core.prompt import Segment, Template
from antiphon.errors import InvalidValue
from antiphon.protocol.types.response import Logprob, TopLogprob

Level = Literal["chat", "text", "tokens", "harmony"]

WIDTH = 4
START, END, THINK = "<|im_start|>", "<|im_end|>", "<|think|>"

TEMPLATE = Template(
    source=(
        "{% for message in messages %}"
        "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<|think|>{% endif %}{% endif %}"
    ),
    eos=END,
)

_MARKS = re.compile(r"(<\|im_start\|>|<\|im_end\|>|<\|think\|>)")
_IDS = {START: 1, END: 2, THINK: 3}
_NAMES = {number: name for name, number in _IDS.items()}
_OFFSET = 16

# Each is as wide as a token.
_WORDS = (
    " the and for you not but all any can had her was one our out day get has him his how man new now old see two"
    " way who boy did its let put say she too use sun sky sea fox dog cat owl bee oak ash elm fir ice fog dew hay"
    " red tan jar cup"
)
WORDS = [_WORDS[at : at + WIDTH] for at in range(0, len(_WORDS), WIDTH)]


def pieces(text: str, width: int = WIDTH) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)]


def tokens_in(length: int, width: int = WIDTH) -> int:
    return -(-length // width)


@lru_cache(maxsize=8)
def load(tokens: int) -> str:
    """So many tokens of varied words."""
    return "".join([WORDS[(at * 7 + at // len(WORDS)) % len(WORDS)] for at in range(tokens)])


def marked(segments: Sequence[Segment]) -> Iterator[Segment]:
    """The same text with each control mark in a segment of its own; nothing else is a control segment."""
    for segment in segments:
        if not segment.control:
            yield segment
            continue
        for at, text in enumerate(_MARKS.split(segment.text)):
            if text:
                yield Segment(text, control=at % 2 == 1)


def encode(segments: Sequence[Segment]) -> tuple[int, ...]:
    """A mark of a control segment is one token; whoever writes a mark into other text gets its letters."""
    ids: list[int] = []
    for segment in marked(segments):
        ids += [_IDS[segment.text]] if segment.control else ids_of(segment.text)
    return tuple(ids)


def ids_of(text: str) -> list[int]:
    return [ord(character) + _OFFSET for character in text]


def decode(tokens: Sequence[int], param: str = "input") -> Iterator[Segment]:
    """The inverse of `encode`, as `marked` segments. `param` is the field that is wrong if there is none."""
    run: list[str] = []
    for token in tokens:
        if token in _NAMES:
            yield from [Segment("".join(run), control=False)] if run else []
            yield Segment(_NAMES[token], control=True)
            run = []
        else:
            run.append(_character(token, param))
    yield from [Segment("".join(run), control=False)] if run else []


def _character(token: int, param: str) -> str:
    """Of a token that is no mark. Half of a surrogate pair is no character."""
    code = token - _OFFSET
    if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise InvalidValue(f"{token} is no token of this model.", param=param)
    return chr(code)


def logprob(piece: str, alternatives: int) -> Logprob:
    """The same for the same piece; the probabilities of all alternatives add up to less than one."""
    seed = crc32(_bytes(piece))
    likely = 0.55 + seed % 400 / 1000
    others = [word for word in WORDS if word != piece]
    ranked = [(piece, likely)]
    for place in range(1, alternatives):
        ranked.append((others[(seed + place) % len(others)], (1 - likely) / 2**place))
    return Logprob(
        token=piece,
        bytes=list(_bytes(piece)),
        logprob=log(likely),
        top_logprobs=[
            TopLogprob(token=token, bytes=list(_bytes(token)), logprob=log(chance))
            for token, chance in ranked[:alternatives]
        ],
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
