"""Every id is made here: time-ordered, 128 bit, never taken from a client.

An id is a prefix, an underscore and a UUIDv7 in hex, so that ids of one kind sort by the moment they were
made and rows keyed by them are written in order. The id of a response's item is made of the response's own and a
number: whoever has it knows where the item is kept, and a replay makes the same ones again.
"""

import os
from time import time_ns
from typing import Literal, get_args

from msgspec import Struct

Prefix = Literal[
    "resp", "msg", "rs", "fc", "ctc", "call", "ws", "fs", "ci", "ig", "mcp", "mcpl", "mcpr",
    "conv", "req", "conn", "cmp", "item", "toolu", "steer", "sh", "lsh", "apc", "tsc", "steer", "key",
]  # fmt: skip

_HEX = 32
_ITEM_HEX = 5  # behind the response's: one digit for the side, four at least for the number
_LONGEST = 64
_DIGITS = frozenset("0123456789abcdef")
_PREFIXES = frozenset(get_args(Prefix))

_NUMBERS = tuple([f"{number:04x}" for number in range(64)])  # of most items: to write one takes half the time of an id
_POOL = 200  # random ends made at a time: a system call and the formatting for each id cost more than the id
_VARIANTS = b"89ab" * 64
_ends: list[str] = []


def new_id(prefix: Prefix) -> str:
    if not _ends:
        _make_ends()
    return f"{prefix}_{time_ns() // 1_000_000:012x}{_ends.pop()}"


def dashed_id(prefix: Literal["chatcmpl", "cmpl", "embd"]) -> str:
    """Of what nobody keeps, as OpenAI writes it."""
    return f"{prefix}-{new_id('req').removeprefix('req_')}"


class ItemIds(Struct, eq=False):
    """Makes the ids of one response's items, always the same ones in the same order; input sorts before output."""

    _response_id: str
    _side: Literal["input", "output"] = "output"
    _number: int = 0

    def __call__(self, prefix: Prefix) -> str:
        number = self._number
        self._number = number + 1
        digits = self._response_id.rpartition("_")[2]
        last = _NUMBERS[number] if number < len(_NUMBERS) else f"{number:04x}"
        return f"{prefix}_{digits}{'0' if self._side == 'input' else '1'}{last}"


def home(item_id: str) -> str | None:
    """The id of the response that an item was made for; None if it was made for none."""
    digits = item_id.rpartition("_")[2]
    return f"resp_{digits[:_HEX]}" if len(digits) >= _HEX + _ITEM_HEX and _DIGITS.issuperset(digits) else None


def is_id(text: str, prefix: Prefix) -> bool:
    """Could we have made it? What we could not have made need not be looked up."""
    kind, _, digits = text.rpartition("_")
    return kind == prefix and len(digits) == _HEX and _DIGITS.issuperset(digits)


def is_item_id(text: str) -> bool:
    """The same for an item, whatever its kind, of a response or of a conversation."""
    kind, _, digits = text.rpartition("_")
    known = kind in _PREFIXES and len(digits) <= _LONGEST and _DIGITS.issuperset(digits)
    return known and (len(digits) == _HEX or len(digits) >= _HEX + _ITEM_HEX)


def _make_ends() -> None:
    """RFC 9562: behind 48 bits of milliseconds the version, 12 random bits, the variant, 62 random bits."""
    digits = bytearray(os.urandom(_POOL * 10).hex(), "ascii")
    digits[0::20] = b"7" * _POOL
    digits[4::20] = os.urandom(_POOL).translate(_VARIANTS)
    random = digits.decode()
    _ends.extend([random[start : start + 20] for start in range(0, len(random), 20)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ends.clear)  # a child must not give out its parent's
