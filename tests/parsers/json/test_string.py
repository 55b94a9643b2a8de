"""Strings of JSON: cut anywhere they come out escaped as they must be, and can be read for what they stand for."""

import json

import pytest

from antiphon.parsers.json.string import JsonString, Unquoted


def read(quote: str, parts: str | list[str]) -> str:
    string, out = JsonString(), list[str]()
    string.open(quote, out)
    for part in parts:
        at = 0
        while at < len(part) and string.quote:
            at = string.feed(part, at, out)
    assert not string.quote
    return "".join(out)


@pytest.mark.parametrize(
    ("quote", "inside", "said"),
    [
        ('"', 'a\\"b\\\\"', '"a\\"b\\\\"'),
        ('"', "it's\"", '"it\'s"'),
        ('"', '\\u00e9\\/"', '"\\u00e9\\/"'),
        ('"', 'line\nnext\ttab\x00"', '"line\\nnext\\ttab\\u0000"'),
        ('"', '\\d+\\.\\w"', '"\\\\d+\\\\.\\\\w"'),
        ('"', '\\u12zz"', '"\\\\u12zz"'),
        ("'", "say \"hi\", it\\'s \\n'", '"say \\"hi\\", it\'s \\n"'),
    ],
)
@pytest.mark.parametrize("times", [1, 40, 4000])
def test_a_string_is_escaped_as_it_must_be(quote: str, inside: str, said: str, times: int) -> None:
    long, wanted = inside[:-1] * times + quote, '"' + said[1:-1] * times + '"'
    assert read(quote, [long]) == wanted
    if times < 4000:
        assert read(quote, long) == wanted
    json.loads(wanted)


def test_a_string_that_has_to_be_mended_counts_its_faults() -> None:
    string, out = JsonString(), list[str]()
    string.open('"', out)
    text, at = '\\q\\n\\x\\u00"', 0
    while at < len(text):
        at = string.feed(text, at, out)
    assert string.mends == 3


@pytest.mark.parametrize("text", ["plain", 'é\n\t"\\', "😀 and 😀", "\u2028"])
def test_what_a_string_stands_for_is_read_in_pieces_that_cut_no_escape(text: str) -> None:
    inside = json.dumps(text)[1:-1]
    pieces = [inside[at : at + 1] for at in range(len(inside))] if "\\" not in inside else [inside]
    assert "".join(map(Unquoted().feed, pieces)) == text


def test_half_a_character_waits_for_the_other_half_and_is_lost_alone() -> None:
    reader = Unquoted()
    assert reader.feed("a\\ud83d") == "a"
    assert reader.waits
    assert reader.feed("\\ude00") == "😀"
    assert not reader.waits
    assert Unquoted().feed("\\udc00x") == "\ufffdx"
    assert Unquoted().feed("\\\\ud83d") == "\\ud83d"
