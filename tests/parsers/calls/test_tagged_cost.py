"""No answer makes the tagged and literal call formats slow, whatever is in names, in values or between them."""

import json
from collections.abc import Callable, Iterator

import pytest

from antiphon.parsers.calls.base import CallFormat
from antiphon.parsers.calls.literal_families import FunctionGemmaCalls, Gemma4Calls, Lfm2Calls, PythonicCalls
from antiphon.parsers.calls.tagged import (
    DeepSeekV32Calls,
    GlmCalls,
    MiniCpm5Calls,
    QwenCoderCalls,
    Step3Calls,
    TaggedCalls,
)
from tests.parsers.calls.parsed_calls import STRING, make_tool, parse_calls
from tests.support.cpu import measure_cpu_seconds

SIZE = 100_000
AT_ONCE = 0.05  # seconds of CPU; the slowest input, 25,000 escapes, takes 28 ms; quadratic time would take seconds
IN_PIECES = 0.01
REFERENCE_SECONDS = 0.003  # seconds in which a machine of normal speed parses two thousand numbers
TRIES = 6
TOOLS = make_tool("f", a=STRING, n={"type": "integer"}, o={"type": "object"}, u={})
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


def iter_tagged_texts(family: type[TaggedCalls]) -> Iterator[str]:
    tags, frame = family.tags, family.frame
    begin = "".join(frame.openings[:1]) + tags.call
    after = tags.name_ends[0] if tags.name_ends and tags.name_ends[0] != tags.key else ""
    head = begin + "f" + (after if tags.name_ends else tags.key_end)
    yield from (repeat("", part) for part in (begin, head, head + tags.call_ends[0]))
    for name in ("a", "n", "o", "u"):
        value = f"{head}{tags.key}{name}{tags.key_end}{tags.value}"
        yield from (repeat(value, part) for part in (*REPEATED, tags.value_end[:-1]))
    key = f"{tags.key}x{tags.key_end}"
    yield from (repeat(head, part) for part in (*REPEATED, tags.key, key, f"{key}{tags.value}1{tags.value_end}"))
    yield head + "".join(f"{tags.key}k{n}{tags.key_end}{tags.value}1{tags.value_end}" for n in range(SIZE // 40))


def iter_literal_texts(family: type[CallFormat]) -> Iterator[str]:
    marker = "".join(family({}).openings[:1])
    for begin in ("[f(a='", '[f(a="', "[f(a='''", "[f(a=", "[f(a=[", "[f(a={", "[f(", "[", ""):
        yield from (repeat(marker + begin, part) for part in PYTHON)
    yield from (repeat(marker + "[", part) for part in ("f(", "f(a=", "f(a=1),", "g(", "f(a='x'),", "f"))


def iter_gemma_texts(family: type[FunctionGemmaCalls] | type[Gemma4Calls]) -> Iterator[str]:
    marker, quote = family.frame.openings[0], family.syntax.quotes[0]
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
    *[pytest.param(family, iter_tagged_texts, id=family.__name__) for family in TAGGED],
    *[pytest.param(family, iter_literal_texts, id=family.__name__) for family in (PythonicCalls, Lfm2Calls)],
    *[pytest.param(family, iter_gemma_texts, id=family.__name__) for family in (FunctionGemmaCalls, Gemma4Calls)],
]


@pytest.mark.parametrize(("family", "texts"), FAMILIES)
def test_a_hundred_kilobytes_at_once_take_a_few_milliseconds(
    family: type[CallFormat], texts: Callable[[type[CallFormat]], Iterator[str]]
) -> None:
    slow = [
        text[:80]
        for text in texts(family)
        if not _is_quick(lambda text=text: parse_calls(family, [text], TOOLS), AT_ONCE)  # type: ignore[misc]
    ]
    assert not slow


@pytest.mark.parametrize(("family", "texts"), FAMILIES)
def test_small_pieces_take_linear_time(
    family: type[CallFormat], texts: Callable[[type[CallFormat]], Iterator[str]]
) -> None:
    slow = [
        text[:80]
        for text in texts(family)
        if not _is_quick(lambda text=text: parse_calls(family, _split(text), TOOLS), IN_PIECES)  # type: ignore[misc]
    ]
    assert not slow


def _split(text: str) -> list[str]:
    return [text[at : at + 16] for at in range(0, SIZE // 16, 16)]
