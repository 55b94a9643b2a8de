"""`StringPropertyReader` reads one string property of a JSON object that arrives in pieces."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.parsers.partial_json import StringPropertyReader
from tests.parsers.cuts import CUTS, split_at
from tests.support.cpu import cpu_timer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=40) | st.text(alphabet='"\\u{}\nd83😀é', max_size=40)


def read_property(parts: list[str]) -> str:
    prop = StringPropertyReader("input")
    return "".join([prop.feed(part) for part in parts]) + prop.finish()


@given(text=TEXTS, before=st.dictionaries(st.text(max_size=5), VALUES, max_size=3), ascii_=st.booleans(), cuts=CUTS)
@example(text="\ud83d", before={}, ascii_=True, cuts=[])
@example(text="😀", before={"in": {"input": "no"}}, ascii_=True, cuts=list(range(80)))
@example(text='a\\u"', before={"}": '"}'}, ascii_=False, cuts=list(range(80)))
def test_the_property_is_read_after_any_other_members_and_at_every_cut(
    text: str, before: dict[str, object], ascii_: bool, cuts: list[int]
) -> None:
    before.pop("input", None)
    text = text if ascii_ else _decode_escapes(text)  # engines send no surrogates
    wrapped = json.dumps({**before, "input": text, "after": "x"}, ensure_ascii=ascii_)
    assert read_property(split_at(wrapped, cuts)) == (_decode_escapes(text) if ascii_ else text)


def _decode_escapes(text: str) -> str:
    """Return the meaning of JSON escapes: surrogate pairs are one character, lone surrogates become U+FFFD."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    out: list[str] = []
    while codes:
        code = codes.pop(0)
        if 0xD800 <= code < 0xDC00 and codes and 0xDC00 <= codes[0] < 0xE000:
            out.append(chr(0x10000 + ((code - 0xD800) << 10) + codes.pop(0) - 0xDC00))
        else:
            out.append("\ufffd" if 0xD800 <= code < 0xE000 else chr(code))
    return "".join(out)


@given(text=st.text(alphabet='{}":,\\ uinp0a[]', max_size=40), cuts=CUTS)
def test_broken_json_gives_the_same_text_at_every_cut(text: str, cuts: list[int]) -> None:
    assert read_property(split_at(text, cuts)) == read_property([text])


def test_the_text_is_returned_as_it_arrives() -> None:
    prop = StringPropertyReader("input")
    assert [prop.feed(part) for part in ('{"inp', 'ut": "ab', "c\\", "nd\\ud8", "3d\\ude00", '"', "}")] == [
        "", "ab", "c", "\nd", "😀", "", "",
    ]  # fmt: skip
    assert prop.finish() == ""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("SELECT 1", "SELECT 1"),
        ("  SELECT 1", "  SELECT 1"),
        ('"SELECT \\"1\\""', 'SELECT "1"'),
        ('{ "x": 1 }', '{ "x": 1 }'),
        ('{"input": {"a": 1}}', '{"input": {"a": 1}}'),
        ("{ return 1 }", "{ return 1 }"),
        ("{}", "{}"),
        ("", ""),
        ('{"input": "cut', "cut"),
        ('{"input": "cut\\', "cut"),
        ('{"input": "cut\\ud83d', "cut\ufffd"),
        ('{"input": "cut\\u12', "cut"),
        ('{"inp', ""),
        ('{"input": "a\nb"}', "a\nb"),
        ('{"input": "\\q\\u12g"}', "\\q\\u12g"),
        ('{"in\\u0070ut": "a"}', "a"),
        ('{"input": "a", "input": "b"}', "a"),
    ],
)
def test_output_in_another_form_is_not_lost(output: str, expected: str) -> None:
    assert read_property([output]) == read_property(list(output)) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"input": "' + "\\n" * 50_000,
        '{"input": "' + '\\"' * 50_000,
        '{"input": "' + "\\\\" * 50_000,
        '{"input": "' + "\\ud83d" * 16_000,
        '{"input": "' + "a" * 100_000,
        '{"other": ' + "[" * 100_000,
        '{"other": "' + '\\"' * 50_000,
        '{"' + "a" * 100_000,
        " " * 100_000,
    ],
)
@pytest.mark.parametrize("size", [7, 200_000])
def test_a_hundred_kilobytes_of_adversarial_input_are_read_in_linear_time(text: str, size: int) -> None:
    prop = StringPropertyReader("input")
    with cpu_timer() as spent:
        for at in range(0, len(text), size):
            prop.feed(text[at : at + size])
    assert spent.seconds < 2.5  # a quadratic algorithm takes minutes
