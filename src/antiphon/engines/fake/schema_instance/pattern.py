"""Short strings that match a regular expression of a JSON schema (ECMA-262).

Best effort: `pattern_parser.py` ignores look-arounds and boundaries, so the caller must check each string against the
pattern.
"""

from collections.abc import Iterator

from antiphon.engines.fake.schema_instance.pattern_parser import (
    Alt,
    OneOf,
    PatternNode,
    PatternParser,
    Repeat,
    Seq,
    UnsupportedPattern,
)

_MAX_VARIANTS = 64
_MAX_CHARS = 100_000


def generate_matches(pattern: str, length: int) -> Iterator[str]:
    """Yield candidates: the shortest first, then strings of about `length` characters, then variants."""
    try:
        yield from _candidates(PatternParser(pattern).parse(), length)
    except UnsupportedPattern:
        return


def _candidates(tree: PatternNode, length: int) -> Iterator[str]:
    shortest = _shortest(tree, 0)
    yield shortest
    missing = length - len(shortest)
    for target in _find_repeats(tree):
        if missing > 0:
            yield _lengthen(tree, target, missing)
    for variant in range(1, _MAX_VARIANTS):
        yield _shortest(tree, variant)
    for extra in range(1, _MAX_VARIANTS):
        for target in _find_repeats(tree):
            yield _lengthen(tree, target, extra)


def _shortest(node: PatternNode, variant: int) -> str:
    """Return the shortest string; `variant` selects other class members and alternatives, to get several different
    strings.
    """
    match node:
        case OneOf(characters):
            return characters[variant % len(characters)] if characters else ""
        case Seq(parts):
            return "".join(_shortest(part, variant) for part in parts)
        case Alt(options):
            if variant:
                return _shortest(options[variant % len(options)], variant)
            return min((_shortest(option, 0) for option in options), key=len)
        case Repeat(inner, min_count, _):
            return _repeat_text(_shortest(inner, variant), min_count)


def _find_repeats(node: PatternNode) -> Iterator[Repeat]:
    match node:
        case OneOf():
            return
        case Seq(parts) | Alt(parts):
            for part in parts:
                yield from _find_repeats(part)
        case Repeat(inner, min_count, max_count):
            if max_count > min_count:
                yield node
            yield from _find_repeats(inner)


def _lengthen(node: PatternNode, target: Repeat, missing: int) -> str:
    """Return the shortest string in which `target` is repeated until it has `missing` more characters."""
    match node:
        case OneOf():
            return _shortest(node, 0)
        case Seq(parts):
            return "".join(_lengthen(part, target, missing) for part in parts)
        case Alt(options):
            chosen = next((option for option in options if target in _find_repeats(option)), options[0])
            return _lengthen(chosen, target, missing)
        case Repeat(inner, min_count, max_count):
            if node is not target:
                return _repeat_text(_lengthen(inner, target, missing), min_count or 1)
            unit = _shortest(inner, 0)
            more = -(-missing // max(len(unit), 1))
            return _repeat_text(unit, min(min_count + more, max_count))


def _repeat_text(unit: str, times: int) -> str:
    """Repeat a text within a bound: a pattern of a few characters may demand gigabytes."""
    if len(unit) * times > _MAX_CHARS:
        raise UnsupportedPattern
    return unit * times
