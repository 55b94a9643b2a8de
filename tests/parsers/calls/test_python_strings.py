"""Python strings are converted to the contents of JSON strings at every cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.parsers.calls.typed_values import atom_to_json, find_string_end, read_number_run, string_to_json


def convert_string(text: str) -> str:
    return str(json.loads(f'"{string_to_json(text)}"'))


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_escapes_are_decoded_as_by_python_and_invalid_ones_stay_literal(text: str, expected: str) -> None:
    assert convert_string(text) == expected


@given(st.text())
def test_the_repr_of_a_string_is_decoded(text: str) -> None:
    written = repr(text)
    assert find_string_end(written, 1, written[0]) == (len(written) - 1, True)
    assert convert_string(written[1:-1]) == text


@given(st.text("\\'x4u\"n", max_size=12))
def test_incomplete_escapes_are_not_released(text: str) -> None:
    at, is_closed = find_string_end(text, 0, "'''")
    if is_closed:
        return
    assert len(text) - at < 10
    assert convert_string(text[:at]) + convert_string(text[at:]) == convert_string(text)


@pytest.mark.parametrize(
    ("atom", "expected"),
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
def test_an_atom_is_converted_to_json(atom: str, expected: str) -> None:
    assert atom_to_json(atom) == expected


@pytest.mark.parametrize(
    ("text", "run", "remaining"),
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
def test_a_run_of_plain_numbers_is_read(text: str, run: str, remaining: str) -> None:
    found, end = read_number_run(text, 0)
    assert (found, text[end:]) == (run, remaining)
