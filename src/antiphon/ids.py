"""Every id is made here: time-ordered, 128 bit, never taken from a client.

An id is a prefix, an underscore and a UUIDv7 in hex, so that ids of one kind sort by the moment they were
made and rows keyed by them are written in order.
"""

import os
from time import time_ns
from typing import Literal

Prefix = Literal[
    "resp", "msg", "rs", "fc", "ctc", "call", "ws", "fs", "ci", "ig", "mcp", "mcpl", "mcpr",
    "conv", "req", "conn", "cmp", "item",
]  # fmt: skip

_POOL = 200  # random ends made at a time: a system call and the formatting for each id cost more than the id
_VARIANTS = b"89ab" * 64
_ends: list[str] = []


def new_id(prefix: Prefix) -> str:
    if not _ends:
        _make_ends()
    return f"{prefix}_{time_ns() // 1_000_000:012x}{_ends.pop()}"


def _make_ends() -> None:
    """RFC 9562: behind 48 bits of milliseconds the version, 12 random bits, the variant, 62 random bits."""
    digits = bytearray(os.urandom(_POOL * 10).hex(), "ascii")
    digits[0::20] = b"7" * _POOL
    digits[4::20] = os.urandom(_POOL).translate(_VARIANTS)
    random = digits.decode()
    _ends.extend([random[start : start + 20] for start in range(0, len(random), 20)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ends.clear)  # a child must not give out its parent's
