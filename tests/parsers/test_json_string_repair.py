"""JSON strings are escaped correctly at every cut, and can be decoded in pieces."""

import json

import pytest

from antiphon.parsers.json_repair import JsonStringDecoder, JsonStringRepair


def read_string(quote: str, parts: str | list[str]) -> str:
    string, out = JsonStringRepair(), list[str]()
    string.open(quote, out)
    for part in parts:
        at = 0
        while at < len(part) and string.quote:
            at = string.feed(part, at, out)
    assert not string.quote
    return "".join(out)


@pytest.mark.parametrize(
    ("quote", "inside", "escaped"),
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
def test_a_string_is_escaped_correctly(quote: str, inside: str, escaped: str, times: int) -> None:
    long, wanted = inside[:-1] * times + quote, '"' + escaped[1:-1] * times + '"'
    assert read_string(quote, [long]) == wanted
    if times < 4000:
        assert read_string(quote, long) == wanted
    json.loads(wanted)


def test_a_string_counts_its_repairs() -> None:
    string, out = JsonStringRepair(), list[str]()
    string.open('"', out)
    text, at = '\\q\\n\\x\\u00"', 0
    while at < len(text):
        at = string.feed(text, at, out)
    assert string.repairs == 3


@pytest.mark.parametrize("text", ["plain", 'é\n\t"\\', "😀 and 😀", "\u2028"])
def test_a_string_is_decoded_in_pieces_that_split_no_escape(text: str) -> None:
    inside = json.dumps(text)[1:-1]
    pieces = [inside[at : at + 1] for at in range(len(inside))] if "\\" not in inside else [inside]
    assert "".join(map(JsonStringDecoder().feed, pieces)) == text


def test_a_high_surrogate_waits_for_its_pair_and_a_lone_one_is_replaced() -> None:
    reader = JsonStringDecoder()
    assert reader.feed("a\\ud83d") == "a"
    assert reader.is_waiting
    assert reader.feed("\\ude00") == "😀"
    assert not reader.is_waiting
    assert JsonStringDecoder().feed("\\udc00x") == "\ufffdx"
    assert JsonStringDecoder().feed("\\\\ud83d") == "\\ud83d"
