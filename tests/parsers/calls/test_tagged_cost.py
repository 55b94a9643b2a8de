"""No answer makes the formats with tags and with literals slow, whatever stands in a name, a value or between them."""

import json
from collections.abc import Callable, Iterator

import pytest

from antiphon.parsers.calls.base import CallFormat
from antiphon.parsers.calls.gemma import FunctionGemmaCalls, Gemma4Calls
from antiphon.parsers.calls.pythonic import Lfm2Calls, PythonicCalls
from antiphon.parsers.calls.tagged import (
    DeepSeekV32Calls,
    GlmCalls,
    MiniCpm5Calls,
    QwenCoderCalls,
    Step3Calls,
    TaggedCalls,
)
from tests.parsers.calls.parsed_calls import STRING, read, tool
from tests.support.cpu import spent_on

SIZE = 100_000
AT_ONCE = 0.005  # seconds of the processor, at best
IN_PIECES = 0.01
PARSED = 0.003  # seconds in which a machine should parse two thousand numbers
TRIES = 6
TOOLS = tool("f", a=STRING, n={"type": "integer"}, o={"type": "object"}, u={})
TAGGED = [QwenCoderCalls, GlmCalls, DeepSeekV32Calls, MiniCpm5Calls, Step3Calls]
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


def tagged(family: type[TaggedCalls]) -> Iterator[str]:
    tags, frame = family.tags, family.frame
    begin = "".join(frame.openings[:1]) + tags.call
    after = tags.name_ends[0] if tags.name_ends and tags.name_ends[0] != tags.key else ""
    head = begin + "f" + (after if tags.name_ends else tags.key_end)
    yield from (repeated("", part) for part in (begin, head, head + tags.call_ends[0]))
    for name in ("a", "n", "o", "u"):
        value = f"{head}{tags.key}{name}{tags.key_end}{tags.value}"
        yield from (repeated(value, part) for part in (*REPEATED, tags.value_end[:-1]))
    key = f"{tags.key}x{tags.key_end}"
    yield from (repeated(head, part) for part in (*REPEATED, tags.key, key, f"{key}{tags.value}1{tags.value_end}"))
    yield head + "".join(f"{tags.key}k{n}{tags.key_end}{tags.value}1{tags.value_end}" for n in range(SIZE // 40))


def literals(family: type[CallFormat]) -> Iterator[str]:
    mark = "".join(family({}).openings[:1])
    for begin in ("[f(a='", '[f(a="', "[f(a='''", "[f(a=", "[f(a=[", "[f(a={", "[f(", "[", ""):
        yield from (repeated(mark + begin, part) for part in PYTHON)
    yield from (repeated(mark + "[", part) for part in ("f(", "f(a=", "f(a=1),", "g(", "f(a='x'),", "f"))


def gemma(family: type[FunctionGemmaCalls] | type[Gemma4Calls]) -> Iterator[str]:
    mark, quote = family.frame.openings[0], family.script.quotes[0]
    for begin in ("call:f{a:~", "call:f{n:~", "call:f{", "call:f{a:[", "call:f{o:{", "call:f{a:", "call:", ""):
        yield from (repeated((mark + begin).replace("~", quote), part.replace("~", quote)) for part in GEMMA)


def repeated(begin: str, part: str) -> str:
    return begin + part * (SIZE // len(part))


def _parse() -> None:
    for _ in range(2_000):
        json.loads("1")


def _is_quick(work: Callable[[], object], wanted: float) -> bool:
    """At best, and on a machine that is as quick as it should be: which is asked only where it matters."""
    return any((took := spent_on(work)) <= wanted or took <= wanted * spent_on(_parse) / PARSED for _ in range(TRIES))


FAMILIES = [
    *[pytest.param(family, tagged, id=family.__name__) for family in TAGGED],
    *[pytest.param(family, literals, id=family.__name__) for family in (PythonicCalls, Lfm2Calls)],
    *[pytest.param(family, gemma, id=family.__name__) for family in (FunctionGemmaCalls, Gemma4Calls)],
]


@pytest.mark.parametrize(("family", "texts"), FAMILIES)
def test_a_hundred_kilobytes_at_once_take_a_few_milliseconds(
    family: type[CallFormat], texts: Callable[[type[CallFormat]], Iterator[str]]
) -> None:
    slow = [
        text[:80]
        for text in texts(family)
        if not _is_quick(lambda text=text: read(family, [text], TOOLS), AT_ONCE)  # type: ignore[misc]
    ]
    assert not slow


@pytest.mark.parametrize(("family", "texts"), FAMILIES)
def test_pieces_take_linear_time(family: type[CallFormat], texts: Callable[[type[CallFormat]], Iterator[str]]) -> None:
    slow = [
        text[:80]
        for text in texts(family)
        if not _is_quick(lambda text=text: read(family, _pieces(text), TOOLS), IN_PIECES)  # type: ignore[misc]
    ]
    assert not slow


def _pieces(text: str) -> list[str]:
    return [text[at : at + 16] for at in range(0, SIZE // 16, 16)]
