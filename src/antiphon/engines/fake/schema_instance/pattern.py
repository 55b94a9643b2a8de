r"""Short strings that match a regular expression of a JSON schema (ECMA 262).

Best effort: look-arounds and boundaries are read as nothing and backreferences are not read at all,
so whoever asks must check each string against the pattern.

    alternatives := sequence ('|' sequence)*        Alt
    sequence     := (atom quantifier?)*             Seq
    atom         := '(' alternatives ')' | class | escape | character
"""

import re
from collections.abc import Iterator

from msgspec import Struct

_PLAIN = "xabcdefghijklmnopqrstuvwyzXABCDEFGHIJKLMNOPQRSTUVWYZ0123456789_- .,:;/@#$%&*+=!?~'\"()[]{}<>|\\^`\n\té"
_DIGITS = "0123456789"
_WORD = "xabcdefghijklmnopqrstuvwyzXABCDEFGHIJKLMNOPQRSTUVWYZ0123456789_"
_SPACES = " \t\n\r\f\v"
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACES}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_PROPERTIES = {"Lu": "A", "Ll": "x", "L": "x", "N": "0", "P": ".", "S": "+", "Z": " ", "Uppercase": "A", "Alpha": "x"}
_COUNTS = re.compile(r"\{(\d{1,6})(,(\d{0,6}))?\}")
_MANY = 1_000_000
_VARIANTS = 64
_LONGEST = 100_000


class Unreadable(Exception):
    """The pattern is beyond what this module reads."""


class OneOf(Struct, frozen=True):
    """One character out of these; an empty string is an atom that takes no room."""

    characters: str


class Seq(Struct, frozen=True):
    parts: "tuple[Node, ...]"


class Alt(Struct, frozen=True):
    options: "tuple[Node, ...]"


class Repeat(Struct, frozen=True):
    node: "Node"
    least: int
    most: int


Node = OneOf | Seq | Alt | Repeat


def matching(pattern: str, length: int) -> Iterator[str]:
    """Candidates: the shortest first, then ones of about `length` characters, then varied ones."""
    try:
        yield from _candidates(_Reader(pattern).whole(), length)
    except Unreadable:
        return


def _candidates(tree: Node, length: int) -> Iterator[str]:
    shortest = _shortest(tree, 0)
    yield shortest
    missing = length - len(shortest)
    for target in _repeats(tree):
        if missing > 0:
            yield _grown(tree, target, missing)
    for turn in range(1, _VARIANTS):
        yield _shortest(tree, turn)
    for extra in range(1, _VARIANTS):
        for target in _repeats(tree):
            yield _grown(tree, target, extra)


def _shortest(node: Node, turn: int) -> str:
    """`turn` picks other members of the classes and other alternatives, for those who need several strings."""
    match node:
        case OneOf(characters):
            return characters[turn % len(characters)] if characters else ""
        case Seq(parts):
            return "".join(_shortest(part, turn) for part in parts)
        case Alt(options):
            if turn:
                return _shortest(options[turn % len(options)], turn)
            return min((_shortest(option, 0) for option in options), key=len)
        case Repeat(inner, least, _):
            return _times(_shortest(inner, turn), least)


def _repeats(node: Node) -> Iterator[Repeat]:
    match node:
        case OneOf():
            return
        case Seq(parts) | Alt(parts):
            for part in parts:
                yield from _repeats(part)
        case Repeat(inner, least, most):
            if most > least:
                yield node
            yield from _repeats(inner)


def _grown(node: Node, target: Repeat, missing: int) -> str:
    """The shortest string in which `target` is repeated until `missing` more characters are there."""
    match node:
        case OneOf():
            return _shortest(node, 0)
        case Seq(parts):
            return "".join(_grown(part, target, missing) for part in parts)
        case Alt(options):
            chosen = next((option for option in options if target in _repeats(option)), options[0])
            return _grown(chosen, target, missing)
        case Repeat(inner, least, most):
            if node is not target:
                return _times(_grown(inner, target, missing), least or 1)
            unit = _shortest(inner, 0)
            more = -(-missing // max(len(unit), 1))
            return _times(unit, min(least + more, most))


def _times(unit: str, times: int) -> str:
    """A pattern of a few characters may ask for gigabytes."""
    if len(unit) * times > _LONGEST:
        raise Unreadable
    return unit * times


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> Node:
        tree = self._alternatives(depth=0)
        if self._at < len(self._pattern):
            raise Unreadable
        return tree

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise Unreadable
        self._at += 1
        return character

    def _skip(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _alternatives(self, depth: int) -> Node:
        if depth > 50:
            raise Unreadable
        options = [self._sequence(depth)]
        while self._skip("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom(depth)))
        return Seq(tuple(parts))

    def _quantified(self, node: Node) -> Node:
        counts = _COUNTS.match(self._pattern, self._at)
        if self._skip("*"):
            node = Repeat(node, 0, _MANY)
        elif self._skip("+"):
            node = Repeat(node, 1, _MANY)
        elif self._skip("?"):
            node = Repeat(node, 0, 1)
        elif counts:
            self._at = counts.end()
            least = int(counts[1])
            node = Repeat(node, least, least if counts[2] is None else int(counts[3] or _MANY))
        else:
            return node
        self._skip("?")  # lazy or not, the shortest is the same
        return node

    def _atom(self, depth: int) -> Node:
        match self._take():
            case "(":
                return self._group(depth)
            case "[":
                return OneOf(self._class())
            case "\\":
                return OneOf(self._escape())
            case ".":
                return OneOf(_PLAIN.replace("\n", ""))
            case "^" | "$":
                return OneOf("")
            case "*" | "+" | "?":
                raise Unreadable
            case character:
                return OneOf(character)

    def _group(self, depth: int) -> Node:
        look_around = any(self._skip(opening) for opening in ("?=", "?!", "?<=", "?<!"))
        if not look_around and not self._skip("?:") and self._skip("?"):
            self._group_name()
        inner = self._alternatives(depth + 1)
        if not self._skip(")"):
            raise Unreadable
        return OneOf("") if look_around else inner

    def _group_name(self) -> None:
        end = self._pattern.find(">", self._at)
        if end < 0 or self._peek() not in ("<", "P"):
            raise Unreadable
        self._at = end + 1

    def _escape(self) -> str:
        match self._take():
            case "b" | "B":
                return ""
            case "d" | "w" | "s" as name:
                return _CLASSES[name]
            case "D" | "W" | "S" as name:
                return _other_than(_CLASSES[name.lower()])
            case "p":
                return self._property()
            case "u":
                return self._code_point(4)
            case "x":
                return self._code_point(2)
            case digit if digit in "123456789":
                raise Unreadable
            case character:
                return _CONTROLS.get(character, character)

    def _property(self) -> str:
        end = self._pattern.find("}", self._at)
        if end < 0 or not self._skip("{"):
            raise Unreadable
        name = self._pattern[self._at : end]
        self._at = end + 1
        for prefix, member in _PROPERTIES.items():
            if name.startswith(prefix):
                return member
        raise Unreadable

    def _code_point(self, digits: int) -> str:
        written = self._pattern[self._at : self._at + digits]
        self._at += digits
        try:
            return chr(int(written, 16))
        except ValueError:
            raise Unreadable from None

    def _class(self) -> str:
        negated = self._skip("^")
        members: list[str] = []
        while not self._skip("]"):
            members.append(self._class_member())
        inside = "".join(members)
        if not negated:
            if not inside:
                raise Unreadable
            return inside
        return _other_than(inside)

    def _class_member(self) -> str:
        first = self._class_character()
        if len(first) != 1 or self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return first
        self._take()
        last = self._class_character()
        if len(last) != 1:
            return first + "-" + last
        span = range(ord(first), min(ord(last), ord(first) + 127) + 1)
        # The far end stands for what lies between in long ranges.
        return "".join(map(chr, span)) + (last if ord(last) > span.stop else "")

    def _class_character(self) -> str:
        character = self._take()
        if character != "\\":
            return character
        return "\b" if self._skip("b") else self._escape()


def _other_than(characters: str) -> str:
    rest = "".join(character for character in _PLAIN if character not in characters)
    if not rest:
        raise Unreadable
    return rest
