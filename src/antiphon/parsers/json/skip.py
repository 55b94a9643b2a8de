"""Finds how far text is valid JSON with the C parser, so that long arguments are not read character by character.

A skip ends where a value ends or a container begins; parsers/json/repair.py reads on from there. Skipping does not
change the result.
"""

import json
from typing import Final, NamedTuple

WHITESPACE: Final = " \t\n\r"
MAX_DEPTH: Final = 64
CONTAINER_WEIGHT: Final = 8  # cost of a list or an object in commas
MIN_SKIP_LENGTH: Final = 64  # characters; for shorter text a call of the C parser does not pay off
MAX_SKIP_LENGTH: Final = 4096  # characters per call of the C parser

# turns the remainder of a container, after a value, into a complete container
_CONTAINER_PREFIXES: Final = {"": "", "}": '{"":""', "]": '[""'}
_CLOSERS: Final = {ord("{"): "}", ord("["): "]"}
_NON_BRACKETS: Final = bytes(code for code in range(256) if code not in b"{}[]")
_TO_SQUARE_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_SCALAR_CHARACTERS: Final = WHITESPACE + "+-.0123456789aeflnrstuE"  # characters of numbers, literals and white space


def skip_characters(text: str, at: int, skipped: str) -> int:
    """Return the position of the next character that is not in `skipped`."""
    while at < len(text) and text[at] in skipped:
        window = text[at : at + MAX_SKIP_LENGTH]
        at += len(window) - len(window.lstrip(skipped))
    return at


class SkippedJson(NamedTuple):
    """A stretch of valid JSON."""

    end: int
    opened: list[str] | None  # closers of the containers opened since; None: the container itself is closed
    parts: int = 0  # size: commas, plus containers by their weight
    too_deep: bool = False  # exceeds the depth limit somewhere


def skip_valid_json(text: str, at: int, size: int, closer: str, depth: int) -> SkippedJson:
    """Skip valid JSON, starting after a value within a container that `closer` closes.

    Without a closer, start at the beginning of a container.
    """
    prefix = _CONTAINER_PREFIXES[closer]
    window = prefix + text[at : at + size]
    end, closed = _find_valid_end(window, len(prefix))
    if end <= len(prefix):
        return SkippedJson(at, [])
    structure = _remove_strings(_mask_escapes(window[:end]))
    brackets = _extract_brackets(structure)
    opened = [] if closed else _find_unclosed(brackets)
    in_container = bool(closer)  # the container itself is already counted
    containers = brackets.count(b"{") + brackets.count(b"[") - in_container
    parts = containers * CONTAINER_WEIGHT + structure.count(",")
    return SkippedJson(
        at + end - len(prefix),
        None if closed else opened[in_container:],
        parts,
        _is_too_deep(brackets, opened, depth - in_container),
    )


def _find_valid_end(window: str, begin: int) -> tuple[int, bool]:
    """Return the end of the valid part and whether the outer container is complete."""
    try:
        return _DECODER.raw_decode(window)[1], True
    except json.JSONDecodeError as error:
        return (_find_last_value_end(window[: error.pos]) if error.pos > begin else 0), False
    except (ValueError, RecursionError):  # a constant outside JSON, an oversized number, or excessive nesting
        return 0, False


def _mask_escapes(text: str) -> str:
    """Mask escaped quotes and backslashes without changing the length, so that all quotes delimit strings."""
    return text.replace("\\\\", "xx").replace('\\"', "xx") if "\\" in text else text


def _find_last_value_end(valid: str) -> int:
    """Return the last position where a value has ended or a container has begun."""
    parts = _mask_escapes(valid).split('"')  # alternately outside and inside of strings
    end = len(valid)
    if len(parts) % 2 == 0:  # the text ends within a string
        end -= len(parts.pop()) + 1
    tail = parts[-1].rstrip(_SCALAR_CHARACTERS)
    end -= len(parts[-1]) - len(tail)
    if not tail:
        if len(parts) < 3 or not _is_key(parts):
            return end
    elif tail[-1] != ":":
        return end - (tail[-1] == ",")
    key = end - len(tail) - len(parts[-2]) - 2  # the key has no value yet
    before = parts[-3].rstrip(WHITESPACE)
    return key - (len(parts[-3]) - len(before)) - (before[-1:] == ",")


def _is_key(parts: list[str]) -> bool:
    """Return whether the last string is a key."""
    match parts[-3].rstrip(WHITESPACE)[-1:]:
        case "{":
            return True
        case ",":
            return _find_unclosed(_extract_brackets("".join(parts[:-2:2])))[-1:] == ["}"]
    return False


def _remove_strings(masked: str) -> str:
    """Return the text outside of strings."""
    return "".join(masked.split('"')[::2])


def _extract_brackets(structure: str) -> bytes:
    return structure.encode("ascii", "ignore").translate(None, _NON_BRACKETS)


def _find_unclosed(brackets: bytes) -> list[str]:
    """Return the closers of the containers that are open at the end, innermost last. Pairs are removed repeatedly, in
    C.
    """
    while True:
        reduced = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(reduced) == len(brackets):
            return [_CLOSERS.get(bracket, "") for bracket in brackets]
        brackets = reduced


def _is_too_deep(brackets: bytes, opened: list[str], depth: int) -> bool:
    """Return whether the nesting exceeds the limit. Each round removes the innermost pairs, so the rounds give the
    depth.
    """
    if len(brackets) + depth <= MAX_DEPTH:
        return False
    pairs = brackets.translate(_TO_SQUARE_BRACKETS) + b"]" * len(opened)
    while pairs and depth <= MAX_DEPTH:
        pairs = pairs.replace(b"[]", b"")
        depth += 1
    return depth > MAX_DEPTH


def _reject_constant(name: str) -> None:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant)
