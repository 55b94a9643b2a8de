"""No answer makes the tagged and literal call formats slow, whatever is in names, in values or between them."""

import json
from collections.abc import Callable, Iterator

import pytest

from antiphon.parsers.calls.base import LiteralFrame, TagFrame
from antiphon.parsers.calls.registry import FORMATS, load_format
from tests.parsers.calls.parsed_calls import STRING, make_tool, parse_calls
from tests.support.cpu import measure_cpu_seconds

SIZE = 100_000
AT_ONCE = 0.05  # seconds of CPU; the slowest input, 25,000 escapes, takes 28 ms; quadratic time would take seconds
IN_PIECES = 0.01
REFERENCE_SECONDS = 0.003  # seconds in which a machine of normal speed parses two thousand numbers
TRIES = 6
TOOLS = make_tool("f", a=STRING, n={"type": "integer"}, o={"type": "object"}, u={})
TAGGED = ["qwen3_coder", "glm45", "deepseek_v32", "minicpm5", "step3"]
REPEATED = [
    '"',
    "\\",
    "\n",
    " ",
    "[",
    "{",
    "<",
    "</",
    "9",
    "a",
    "é",
    '{"a":',
    "'a',",
    "(1,",
    "[1,True,",
    "{'a':\"",
    "\\u12",
]
PYTHON = [
    "\\",
    "\\'",
    "\\n",
    "\\x41",
    "\\u00e9",
    "\\d",
    "\\\n",
    "'",
    '"',
    "''",
    "'a',",
    '"a",',
    "1,",
    "a",
    "True,",
    "'a':1,",
]
PYTHON += ["1:1,", "(", ")", "[]", "[],", "{},", "<", "a:1,", "a=1,", "'a' ", "\n", "0", "é", "-", ",", "'x'x"]
GEMMA = ["~", "~a~,", "~~", "a", "a:", "a:1,", "k:~", "[", "{", "[],", "{},", "1,", "<", "<|", " ", ":", ","]


def iter_tagged_texts(family: str) -> Iterator[str]:
    frame = FORMATS[family]
    assert isinstance(frame, TagFrame)
    tags = frame.tags
    begin = "".join(frame.openings[:1]) + tags.call
    after = tags.name_ends[0] if tags.name_ends and tags.name_ends[0] != tags.key else ""
    head = begin + "f" + (after if tags.name_ends else tags.key_end)
    yield from (repeat("", part) for part in (begin, head, head + tags.call_end))
    for name in ("a", "n", "o", "u"):
        value = f"{head}{tags.key}{name}{tags.key_end}{tags.value}"
        yield from (repeat(value, part) for part in (*REPEATED, tags.value_end[:-1]))
    key = f"{tags.key}x{tags.key_end}"
    yield from (repeat(head, part) for part in (*REPEATED, tags.key, key, f"{key}{tags.value}1{tags.value_end}"))
    yield head + "".join(f"{tags.key}k{n}{tags.key_end}{tags.value}1{tags.value_end}" for n in range(SIZE // 40))


def iter_literal_texts(family: str) -> Iterator[str]:
    marker = "".join(load_format(family)({}).openings[:1])
    for begin in ("[f(a='", '[f(a="', "[f(a='''", "[f(a=", "[f(a=[", "[f(a={", "[f(", "[", ""):
        yield from (repeat(marker + begin, part) for part in PYTHON)
    yield from (repeat(marker + "[", part) for part in ("f(", "f(a=", "f(a=1),", "g(", "f(a='x'),", "f"))


def iter_gemma_texts(family: str) -> Iterator[str]:
    frame = FORMATS[family]
    assert isinstance(frame, LiteralFrame)
    marker, quote = frame.openings[0], frame.quote
    for begin in ("call:f{a:~", "call:f{n:~", "call:f{", "call:f{a:[", "call:f{o:{", "call:f{a:", "call:", ""):
        yield from (repeat((marker + begin).replace("~", quote), part.replace("~", quote)) for part in GEMMA)


def repeat(begin: str, part: str) -> str:
    return begin + part * (SIZE // len(part))


def _run_reference() -> None:
    for _ in range(2_000):
        json.loads("1")


def _is_quick(function: Callable[[], object], limit: float) -> bool:
    """Return whether the best attempt is within `limit`, scaled by the machine's speed, which is measured only if
    needed.
    """
    return any(
        (took := measure_cpu_seconds(function)) <= limit
        or took <= limit * measure_cpu_seconds(_run_reference) / REFERENCE_SECONDS
        for _ in range(TRIES)
    )


FAMILIES = [
    *[pytest.param(family, iter_tagged_texts, id=family) for family in TAGGED],
    *[pytest.param(family, iter_literal_texts, id=family) for family in ("pythonic", "lfm2")],
    *[pytest.param(family, iter_gemma_texts, id=family) for family in ("functiongemma", "gemma4")],
]


@pytest.mark.parametrize(("family", "texts"), FAMILIES)
def test_a_hundred_kilobytes_at_once_take_a_few_milliseconds(
    family: str, texts: Callable[[str], Iterator[str]]
) -> None:
    slow = [
        text[:80]
        for text in texts(family)
        if not _is_quick(lambda text=text: parse_calls(family, [text], TOOLS), AT_ONCE)  # type: ignore[misc]
    ]
    assert not slow


@pytest.mark.parametrize(("family", "texts"), FAMILIES)
def test_small_pieces_take_linear_time(family: str, texts: Callable[[str], Iterator[str]]) -> None:
    slow = [
        text[:80]
        for text in texts(family)
        if not _is_quick(lambda text=text: parse_calls(family, _split(text), TOOLS), IN_PIECES)  # type: ignore[misc]
    ]
    assert not slow


def _split(text: str) -> list[str]:
    return [text[at : at + 16] for at in range(0, SIZE // 16, 16)]
