"""Python's strings as the inside of JSON strings, wherever they are cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.parsers.calls.python_strings import (
    MOST_CODES,
    Escapes,
    end_of_string,
    number_run,
    whole_until,
    word_as_json,
)


def turned(text: str) -> str:
    return str(json.loads(f'"{Escapes().turned(text)}"'))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r"a\nb", "a\nb"),
        (r"\'\"\\", "'\"\\"),
        (r"\x41\u00e9\U0001F600", "Aé😀"),
        (r"\d\N{DASH}\8", r"\d\N{DASH}\8"),
        ("a\\\nb", "ab"),
        ('raw " and \n and \0', 'raw " and \n and \0'),
        (r"\\n\\'", r"\n\'"),
        (r"\uzzzz\x4", r"\uzzzz\x4"),
        (r"\U00110000", r"\U00110000"),
    ],
)
def test_an_escape_is_what_python_makes_of_it_or_stands_for_itself(text: str, meant: str) -> None:
    assert turned(text) == meant


@given(st.text())
def test_a_string_as_python_writes_it(text: str) -> None:
    written = repr(text)
    assert end_of_string(written, 1, written[0]) == len(written) - 1
    assert turned(written[1:-1]) == text


def test_too_many_codes_stand_for_themselves() -> None:
    assert turned(r"\x41" * (MOST_CODES + 2)) == "A" * MOST_CODES + r"\x41" * 2


@given(st.text("\\'x4u\"n", max_size=12))
def test_nothing_that_is_not_whole_is_given_away(text: str) -> None:
    if end_of_string(text, 0, "'''") >= 0:
        return
    at = whole_until(text, 0, "'''")
    assert len(text) - at < 10
    assert turned(text[:at]) + turned(text[at:]) == turned(text)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("True", "true"),
        ("null", "null"),
        ("1_000", "1000"),
        ("0x1F", "31"),
        ("007", "7"),
        (".5", "0.5"),
        ("1.", "1.0"),
        ("+1", "1"),
        ("1e400", "1e400"),
        ("1.2.3", '"1.2.3"'),
        ("-", '"-"'),
        ("x", '"x"'),
        ("1" * 5000, "1" * 5000),
        ("é", '"é"'),
    ],
)
def test_a_word_as_json(word: str, said: str) -> None:
    assert word_as_json(word) == said


@pytest.mark.parametrize(
    ("text", "run", "rest"),
    [
        ("1.5, 2.5,\n-3]", "1.5,2.5", "\n-3]"),
        ("1,2,34,5]", "1,2,34", "5]"),
        ("10,0,1,", "10,0,1", ""),
        ("1,2,'a'", "1,2", "'a'"),
        ("1,,2,", "1", ",2,"),
        ("1,01,2,", "1", "01,2,"),
        ("1", "", "1"),
        ("a,1,", "", "a,1,"),
        ("1 2,3,", "", "1 2,3,"),
    ],
)
def test_a_run_of_plain_numbers(text: str, run: str, rest: str) -> None:
    found, end = number_run(text, 0)
    assert (found, text[end:]) == (run, rest)
