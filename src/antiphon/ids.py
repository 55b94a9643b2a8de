"""All ids are generated here: time-ordered, 128 bit, never taken from a client.

An id is a prefix, an underscore and a UUIDv7 (RFC 9562) in hex, so ids of one kind sort by creation time and rows keyed
by them are inserted in order. The id of a response's item consists of the digits of the response's id and a number: the
item can be located from its id alone, and a replay generates the same ids again.
"""

import os
from time import time_ns
from typing import Literal, get_args

from msgspec import Struct

Prefix = Literal[
    "resp", "msg", "rs", "fc", "ctc", "call", "ws", "fs", "ci", "ig", "mcp", "mcpl", "mcpr",
    "conv", "req", "conn", "cmp", "item", "toolu", "steer", "sh", "sho", "lsh", "apc", "tsc", "cu", "key", "upload",
    "part", "vs", "vsfb", "cntr", "cntr_auto", "cfile", "skill", "skillver",
]  # fmt: skip

_ID_DIGITS = 32
_MIN_ITEM_DIGITS = 5  # after the response's digits: one digit for the side, at least four for the number
_MAX_DIGITS = 64
_HEX_DIGITS = frozenset("0123456789abcdef")
_PREFIXES = frozenset(get_args(Prefix))

# precomputed for most items: formatting a number takes half of the time of an id
_ITEM_NUMBERS = tuple([f"{number:04x}" for number in range(64)])
_SUFFIX_BATCH = 200  # random suffixes generated at a time: one system call per id would cost more than the id
_VARIANTS = b"89ab" * 64
_suffixes: list[str] = []


def quote_id(text: str) -> str:
    """Return an id of a client for an error message, in quotes and shortened."""
    return repr(text[:_MAX_DIGITS])


def new_id(prefix: Prefix) -> str:
    if not _suffixes:
        _refill_suffixes()
    return f"{prefix}_{time_ns() // 1_000_000:012x}{_suffixes.pop()}"


def new_dashed_id(prefix: Literal["chatcmpl", "cmpl", "embd", "file", "modr"]) -> str:
    """Generate an id in OpenAI's dashed form."""
    return f"{prefix}-{new_id('req').removeprefix('req_')}"


class ItemIds(Struct, eq=False):
    """Generates the ids of one response's items, deterministically and in order; input ids sort before output ids."""

    _response_id: str
    _side: Literal["input", "output"] = "output"
    _number: int = 0

    def __call__(self, prefix: Prefix) -> str:
        number = self._number
        self._number = number + 1
        digits = self._response_id.rpartition("_")[2]
        last = _ITEM_NUMBERS[number] if number < len(_ITEM_NUMBERS) else f"{number:04x}"
        return f"{prefix}_{digits}{'0' if self._side == 'input' else '1'}{last}"


def parse_response_id(item_id: str) -> str | None:
    """Return the id of the response that an item belongs to, or None if the id was not made for a response."""
    digits = item_id.rpartition("_")[2]
    return (
        f"resp_{digits[:_ID_DIGITS]}"
        if len(digits) >= _ID_DIGITS + _MIN_ITEM_DIGITS and _HEX_DIGITS.issuperset(digits)
        else None
    )


def is_id(text: str, prefix: Prefix) -> bool:
    """Return whether the text has the form of an id of ours. Other texts need no lookup."""
    kind, _, digits = text.rpartition("_")
    return kind == prefix and len(digits) == _ID_DIGITS and _HEX_DIGITS.issuperset(digits)


def is_item_id(text: str) -> bool:
    """Return whether the text has the form of an item's id, of any kind, in a response or a conversation."""
    kind, _, digits = text.rpartition("_")
    is_valid = kind in _PREFIXES and len(digits) <= _MAX_DIGITS and _HEX_DIGITS.issuperset(digits)
    return is_valid and (len(digits) == _ID_DIGITS or len(digits) >= _ID_DIGITS + _MIN_ITEM_DIGITS)


def _refill_suffixes() -> None:
    """RFC 9562 §5.7: after 48 bits of milliseconds come the version, 12 random bits, the variant, 62 random bits."""
    digits = bytearray(os.urandom(_SUFFIX_BATCH * 10).hex(), "ascii")
    digits[0::20] = b"7" * _SUFFIX_BATCH
    digits[4::20] = os.urandom(_SUFFIX_BATCH).translate(_VARIANTS)
    random = digits.decode()
    _suffixes.extend([random[start : start + 20] for start in range(0, len(random), 20)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_suffixes.clear)  # a child process must not reuse its parent's suffixes
