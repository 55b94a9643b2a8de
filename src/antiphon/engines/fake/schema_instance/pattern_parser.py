"""Parser of the regular expressions of JSON schemas (ECMA-262), into a tree from which matching strings are generated.

Look-arounds and boundaries are ignored, and backreferences are not supported.

    alternatives := sequence ('|' sequence)*        Alt
    sequence     := (atom quantifier?)*             Seq
    atom         := '(' alternatives ')' | class | escape | character
"""

import re

from msgspec import Struct

_ALPHABET = "xabcdefghijklmnopqrstuvwyzXABCDEFGHIJKLMNOPQRSTUVWYZ0123456789_- .,:;/@#$%&*+=!?~'\"()[]{}<>|\\^`\n\té"
_DIGITS = "0123456789"
_WORD_CHARS = "xabcdefghijklmnopqrstuvwyzXABCDEFGHIJKLMNOPQRSTUVWYZ0123456789_"
_SPACES = " \t\n\r\f\v"
_CLASSES = {"d": _DIGITS, "w": _WORD_CHARS, "s": _SPACES}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_PROPERTIES = {"Lu": "A", "Ll": "x", "L": "x", "N": "0", "P": ".", "S": "+", "Z": " ", "Uppercase": "A", "Alpha": "x"}
_COUNT_QUANTIFIER = re.compile(r"\{(\d{1,6})(,(\d{0,6}))?\}")
_UNBOUNDED = 1_000_000


class UnsupportedPattern(Exception):
    """The pattern uses syntax that this module does not support, or would need too long a string."""


class OneOf(Struct, frozen=True):
    """One of these characters; an empty string stands for an atom of zero width."""

    characters: str


class Seq(Struct, frozen=True):
    parts: "tuple[PatternNode, ...]"


class Alt(Struct, frozen=True):
    options: "tuple[PatternNode, ...]"


class Repeat(Struct, frozen=True):
    node: "PatternNode"
    min_count: int
    max_count: int


PatternNode = OneOf | Seq | Alt | Repeat


class PatternParser:
    """Recursive-descent parser of the grammar above."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0

    def parse(self) -> PatternNode:
        tree = self._parse_alternatives(depth=0)
        if self._position < len(self._pattern):
            raise UnsupportedPattern
        return tree

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise UnsupportedPattern
        self._position += 1
        return character

    def _skip(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._position)
        if found:
            self._position += len(text)
        return found

    def _parse_alternatives(self, depth: int) -> PatternNode:
        if depth > 50:
            raise UnsupportedPattern
        options = [self._parse_sequence(depth)]
        while self._skip("|"):
            options.append(self._parse_sequence(depth))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _parse_sequence(self, depth: int) -> PatternNode:
        parts: list[PatternNode] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._parse_quantifier(self._parse_atom(depth)))
        return Seq(tuple(parts))

    def _parse_quantifier(self, node: PatternNode) -> PatternNode:
        counts = _COUNT_QUANTIFIER.match(self._pattern, self._position)
        if self._skip("*"):
            node = Repeat(node, 0, _UNBOUNDED)
        elif self._skip("+"):
            node = Repeat(node, 1, _UNBOUNDED)
        elif self._skip("?"):
            node = Repeat(node, 0, 1)
        elif counts:
            self._position = counts.end()
            min_count = int(counts[1])
            node = Repeat(node, min_count, min_count if counts[2] is None else int(counts[3] or _UNBOUNDED))
        else:
            return node
        self._skip("?")  # a lazy quantifier has the same shortest match
        return node

    def _parse_atom(self, depth: int) -> PatternNode:
        match self._take():
            case "(":
                return self._parse_group(depth)
            case "[":
                return OneOf(self._parse_class())
            case "\\":
                return OneOf(self._parse_escape())
            case ".":
                return OneOf(_ALPHABET.replace("\n", ""))
            case "^" | "$":
                return OneOf("")
            case "*" | "+" | "?":
                raise UnsupportedPattern
            case character:
                return OneOf(character)

    def _parse_group(self, depth: int) -> PatternNode:
        look_around = any(self._skip(opening) for opening in ("?=", "?!", "?<=", "?<!"))
        if not look_around and not self._skip("?:") and self._skip("?"):
            self._skip_group_name()
        inner = self._parse_alternatives(depth + 1)
        if not self._skip(")"):
            raise UnsupportedPattern
        return OneOf("") if look_around else inner

    def _skip_group_name(self) -> None:
        end = self._pattern.find(">", self._position)
        if end < 0 or self._peek() not in ("<", "P"):
            raise UnsupportedPattern
        self._position = end + 1

    def _parse_escape(self) -> str:
        match self._take():
            case "b" | "B":
                return ""
            case "d" | "w" | "s" as name:
                return _CLASSES[name]
            case "D" | "W" | "S" as name:
                return _complement(_CLASSES[name.lower()])
            case "p":
                return self._parse_property()
            case "u":
                return self._parse_code_point(4)
            case "x":
                return self._parse_code_point(2)
            case digit if digit in "123456789":
                raise UnsupportedPattern
            case character:
                return _CONTROLS.get(character, character)

    def _parse_property(self) -> str:
        end = self._pattern.find("}", self._position)
        if end < 0 or not self._skip("{"):
            raise UnsupportedPattern
        name = self._pattern[self._position : end]
        self._position = end + 1
        for prefix, member in _PROPERTIES.items():
            if name.startswith(prefix):
                return member
        raise UnsupportedPattern

    def _parse_code_point(self, digits: int) -> str:
        hex_digits = self._pattern[self._position : self._position + digits]
        self._position += digits
        try:
            return chr(int(hex_digits, 16))
        except ValueError:
            raise UnsupportedPattern from None

    def _parse_class(self) -> str:
        negated = self._skip("^")
        members: list[str] = []
        while not self._skip("]"):
            members.append(self._parse_class_member())
        characters = "".join(members)
        if not negated:
            if not characters:
                raise UnsupportedPattern
            return characters
        return _complement(characters)

    def _parse_class_member(self) -> str:
        first = self._parse_class_character()
        if (
            len(first) != 1
            or self._peek() != "-"
            or self._pattern[self._position + 1 : self._position + 2] in ("]", "")
        ):
            return first
        self._take()
        last = self._parse_class_character()
        if len(last) != 1:
            return first + "-" + last
        span = range(ord(first), min(ord(last), ord(first) + 127) + 1)
        # Long ranges are cut to 128 characters plus the last one.
        return "".join(map(chr, span)) + (last if ord(last) > span.stop else "")

    def _parse_class_character(self) -> str:
        character = self._take()
        if character != "\\":
            return character
        return "\b" if self._skip("b") else self._parse_escape()


def _complement(characters: str) -> str:
    """Return the characters of the alphabet that are not among these."""
    others = "".join(character for character in _ALPHABET if character not in characters)
    if not others:
        raise UnsupportedPattern
    return others
