"""Untrusted texts of tools."""

import msgspec
import pytest

from antiphon.errors import InvalidValue
from antiphon.tools.untrusted_text import MAX_ARGUMENT_LENGTH, decode_arguments, drop_markers, escape_markers

DECODER = msgspec.json.Decoder(dict[str, int])


def test_the_characters_of_markers_are_replaced() -> None:
    assert escape_markers("a【1†b】\r\n\tc\0\ud800") == "a〔1‡b〕\n c?"


def test_markers_of_an_earlier_response_become_names() -> None:
    told = "Cite it, such as 【1†a.txt】.\n\n【1†a.txt】 file-1\nCite me.\n\nSee 【2†Otters†otters.example】."
    assert drop_markers(told) == "[a.txt] file-1\nCite me.\n\nSee [Otters†otters.example]."


def test_empty_arguments_are_an_empty_object() -> None:
    assert decode_arguments(DECODER, "f", " ") == {}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"a": "b"}', "The arguments of f do not fit: Expected `int`"),
        ("{", "The arguments of f do not fit"),
        ("\udcff", "The arguments of f do not fit"),
        ("[" * 60_000, "The arguments of f"),
        (" " * (MAX_ARGUMENT_LENGTH + 1), "more than 65536 characters"),
    ],
)
def test_invalid_arguments_are_an_error_with_a_message_for_the_model(arguments: str, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        decode_arguments(DECODER, "f", arguments)
