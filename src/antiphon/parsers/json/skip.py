"""How far text is valid JSON, told by the C parser, so that long arguments are not read character by character.

A leap ends where a value ends or a container begins; what comes after is left to json_mend.py. Whether there are leaps
changes nothing in what is said.
"""

import json
from typing import Final, NamedTuple

WHITE: Final = " \t\n\r"
DEEPEST: Final = 64
CONTAINER: Final = 8  # a list or an object takes as long as so many commas
SHORT: Final = 64  # characters up to which it does not pay to ask
LONG: Final = 4096  # the longest stretch that is asked about at once

_REST: Final = {"": "", "}": '{"":""', "]": '[""'}  # what makes a container of the rest of one, after a value in it
_CLOSERS: Final = {ord("{"): "}", ord("["): "]"}
_NO_BRACKETS: Final = bytes(code for code in range(256) if code not in b"{}[]")
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_WORD: Final = WHITE + "+-.0123456789aeflnrstuE"  # what numbers and words are made of, and space


def after(text: str, at: int, skipped: str) -> int:
    """Where the next character is that is none of these."""
    while at < len(text) and text[at] in skipped:
        part = text[at : at + LONG]
        at += len(part) - len(part.lstrip(skipped))
    return at


class Leap(NamedTuple):
    end: int
    opened: list[str] | None  # what closes that which was opened since; None: the container itself is closed
    parts: int = 0  # how much is in it: commas, and containers by their weight
    deep: bool = False  # deeper than allowed, somewhere


def leap(text: str, at: int, size: int, closer: str, depth: int) -> Leap:
    """From after a value in a container that `closer` closes; without one, from the beginning of a container."""
    before = _REST[closer]
    stretch = before + text[at : at + size]
    end, closed = _valid(stretch, len(before))
    if end <= len(before):
        return Leap(at, [])
    outside = _outside(_masked(stretch[:end]))
    brackets = _brackets(outside)
    opened = [] if closed else _open(brackets)
    outer = bool(closer)  # the container itself is counted already
    containers = brackets.count(b"{") + brackets.count(b"[") - outer
    parts = containers * CONTAINER + outside.count(",")
    return Leap(
        at + end - len(before), None if closed else opened[outer:], parts, _deep(brackets, opened, depth - outer)
    )


def _valid(stretch: str, begin: int) -> tuple[int, bool]:
    """Where it ends or has to be left, and whether it is whole."""
    try:
        return _DECODER.raw_decode(stretch)[1], True
    except json.JSONDecodeError as error:
        return (_last_value(stretch[: error.pos]) if error.pos > begin else 0), False
    except (ValueError, RecursionError):  # a constant that is none in JSON, a number without end; far too deep
        return 0, False


def _masked(text: str) -> str:
    """Of the same length, its quotes all those of strings."""
    return text.replace("\\\\", "xx").replace('\\"', "xx") if "\\" in text else text


def _last_value(valid: str) -> int:
    """The last place where a value has ended or a container begun."""
    parts = _masked(valid).split('"')  # outside of strings, within, outside, …
    end = len(valid)
    if len(parts) % 2 == 0:  # it ends within a string
        end -= len(parts.pop()) + 1
    tail = parts[-1].rstrip(_WORD)
    end -= len(parts[-1]) - len(tail)
    if not tail:
        if len(parts) < 3 or not _is_key(parts):
            return end
    elif tail[-1] != ":":
        return end - (tail[-1] == ",")
    key = end - len(tail) - len(parts[-2]) - 2  # it has no value yet
    before = parts[-3].rstrip(WHITE)
    return key - (len(parts[-3]) - len(before)) - (before[-1:] == ",")


def _is_key(parts: list[str]) -> bool:
    """Whether the last string is one."""
    match parts[-3].rstrip(WHITE)[-1:]:
        case "{":
            return True
        case ",":
            return _open(_brackets("".join(parts[:-2:2])))[-1:] == ["}"]
    return False


def _outside(masked: str) -> str:
    """Of strings."""
    return "".join(masked.split('"')[::2])


def _brackets(outside: str) -> bytes:
    return outside.encode("ascii", "ignore").translate(None, _NO_BRACKETS)


def _open(brackets: bytes) -> list[str]:
    """What closes those that are open at the end, the innermost last: pair after pair is taken away, in C."""
    while True:
        fewer = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(fewer) == len(brackets):
            return [_CLOSERS.get(bracket, "") for bracket in brackets]
        brackets = fewer


def _deep(brackets: bytes, opened: list[str], depth: int) -> bool:
    """Whether it goes deeper than is allowed. Each round takes away the innermost pairs: as many rounds, as deep."""
    if len(brackets) + depth <= DEEPEST:
        return False
    pairs = brackets.translate(_ONE_KIND) + b"]" * len(opened)
    while pairs and depth <= DEEPEST:
        pairs = pairs.replace(b"[]", b"")
        depth += 1
    return depth > DEEPEST


def _no_constant(name: str) -> None:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
