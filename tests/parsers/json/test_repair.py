"""JSON that models write: what is valid passes as it is, what has one meaning is mended, and cuts change nothing."""

import json
import random
from typing import Any

import pytest

from antiphon.parsers.json.repair import MOST_ESCAPES, MOST_MENDS, MOST_PARTS, JsonMend, scalar
from antiphon.parsers.json.skip import DEEPEST

BREAKAGES = ['"', "'", "\\", ",", ":", "{", "}", "[", "]", "x", " ", "\n", "True", "(", ")", "<", "=", "\\u12", "\\x"]
LETTERS = "abc \"\\\n\té{}[],:'\u2028<😀`"


def read(*parts: str) -> tuple[str, bool, str]:
    """What was said of it, whether it broke, and what was left over."""
    mend, said, rest = JsonMend(), [], ""
    for part in parts:
        if mend.done or mend.broken:
            rest += part
            continue
        more, at = mend.feed(part)
        said.append(more)
        rest += part[at:]
    broken = mend.broken
    return "".join(said) + (mend.give_up() if broken else mend.finish()), broken, rest


def mended(text: str) -> str:
    said, broken, rest = read(text)
    assert (broken, rest) == (False, "")
    assert read(*text) == (said, broken, rest)
    return said


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{ "a" : [ 1 , -2.5e+10 , true , null ] , "b" : { } }',
        '{"a":"\\u00e9\\n\\"\\\\","é":"\u2028😀"}',
        '"text"',
        "12",
        "-0.5",
        '{"a": "' + "x" * 50_000 + '"}',
        "[" + "1, " * 5000 + "1]",
        "[" * DEEPEST + "]" * DEEPEST,
    ],
    ids=lambda text: text[:12],
)
def test_what_is_valid_passes_to_the_byte(text: str) -> None:
    assert mended(text) == text
    assert read(text + " and more") == (text, False, " and more") or text in ("12", "-0.5")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{'a': 'b'}", '{"a": "b"}'),
        ("{'a': 'say \"b\"'}", '{"a": "say \\"b\\""}'),
        ("{'it': 'it\\'s'}", '{"it": "it\'s"}'),
        ('{"a": "it\\\'s"}', '{"a": "it\'s"}'),
        ("{a: 1}", '{"a": 1}'),
        ('{"a": b}', '{"a": "b"}'),
        ('{"a"=1}', '{"a":1}'),
        ('{"a": True, "b": False, "c": None}', '{"a": true, "b": false, "c": null}'),
        ('{"a": (1, 2)}', '{"a": [1, 2]}'),
        ("[1, 2,]", "[1, 2]"),
        ("[1,, 2]", "[1, 2]"),
        ('{"a": 1,}', '{"a": 1}'),
        ('["a" "b"]', '["a" ,"b"]'),
        ('{"a": 1 "b": 2}', '{"a": 1 ,"b": 2}'),
        ('{"a": [1, 2}', '{"a": [1, 2]}'),
        ('{"a":}', '{"a":null}'),
        ('{"a": "one\ntwo\x01"}', '{"a": "one\\ntwo\\u0001"}'),
        ('{"a": "C:\\dir\\q"}', '{"a": "C:\\\\dir\\\\q"}'),
        ('{"a": "\\u12x"}', '{"a": "\\\\u12x"}'),
        ('{"a": 01}', '{"a": "01"}'),
        ('{"a": NaN}', '{"a": null}'),
    ],
)
def test_what_can_only_mean_one_thing_is_mended(text: str, meant: str) -> None:
    assert mended(text) == meant
    json.loads(meant)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{", "{}"),
        ('{"a', "{}"),
        ('{"a"', "{}"),
        ('{"a": ', "{}"),
        ('{"a": tr', "{}"),
        ('{"a": 1', '{"a": 1}'),
        ('{"a": 1,', '{"a": 1}'),
        ('{"a": 1, "b', '{"a": 1}'),
        ('{"a": "b', '{"a": "b"}'),
        ('{"a": "b\\', '{"a": "b"}'),
        ('{"a": "b\\u00', '{"a": "b"}'),
        ('{"a": [1, {"b": [', '{"a": [1, {"b": []}]}'),
        ("", ""),
        ("nul", ""),
    ],
)
def test_what_is_missing_at_the_end_is_added_and_half_a_member_is_left_out(text: str, meant: str) -> None:
    assert mended(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "{invalid json}",
        '{"a" 1}',
        '{"a"}',
        '{"a": 1: 2}',
        '{"a": one two}',
        '{"a": 1 {"b": 2}}',
        "[1 2]",
        "}",
        "<tag>",
        '{"a": 1<end>',
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        "[" + "'a'," * (MOST_MENDS + 1),
        '["' + "\\q" * (MOST_ESCAPES + 2),
        "[" + "1," * (MOST_PARTS + 1) + "1]",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_ambiguous_or_goes_too_far_breaks_where_it_stands(text: str) -> None:
    said, broken, rest = read(text)
    assert broken
    assert rest
    assert text.endswith(rest)
    assert read(*text) == (said, broken, rest)


def test_what_broke_can_still_be_made_whole() -> None:
    mend = JsonMend()
    said, at = mend.feed('{"a": {"b": 1, "c"</end>')
    assert mend.broken
    assert said + mend.finish() == '{"a": {"b": 1}}'
    assert at == len('{"a": {"b": 1, "c"')


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.shows("D.18")
def test_random_json_with_random_breakages_cut_anywhere(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        text = _random_json(chance)
        assert read(text, " rest") == (text, False, " rest")
        text = _broken(chance, text) + chance.choice(["", " rest", "</tool_call>"])
        whole = read(text)
        assert read(*text) == whole
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(3))
        assert read(text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] : cuts[2]], text[cuts[2] :]) == whole
        said, broken, _ = whole
        if not broken and said:
            json.loads(said)


def test_a_word_is_a_number_a_constant_or_a_string() -> None:
    words = ["0", "-1", "1e5", "1.5E-3", "true", "null", "True", "None", "01", "1.", "-", "+1", "1e", ".5", "word"]
    assert [json.loads(scalar(word)) for word in words] == [
        *[0, -1, 1e5, 1.5e-3, True, None, True, None],
        *["01", "1.", "-", "+1", "1e", ".5", "word"],
    ]


def _random_json(chance: random.Random) -> str:
    value = {"a": _value(chance)} if chance.random() < 0.5 else [_value(chance) for _ in range(chance.randrange(20))]
    separators = chance.choice([None, (",", ":"), (" , ", " : ")])
    return json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1]), separators=separators)


def _value(chance: random.Random, depth: int = 0) -> Any:
    match chance.randrange(8 if depth < 5 else 5):
        case 0:
            return chance.choice([0, 1, -5, 12.5, 1e30, -0.25, 10**20])
        case 1:
            return chance.choice([True, False, None, {}, []])
        case 2 | 3 | 4:
            return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(chance.choice([3, 30, 300]))))
        case 5:
            return [_value(chance, depth + 1) for _ in range(chance.randrange(8))]
    names = ["k", 'ke\\y"', "é", "a key"]
    return {f"{chance.choice(names)}{n}": _value(chance, depth + 1) for n in range(chance.randrange(8))}


def _broken(chance: random.Random, text: str) -> str:
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(4):
            case 0:
                text = text[:at] + text[at + 1 :]
            case 1 | 2:
                text = text[:at] + chance.choice(BREAKAGES) + text[at:]
            case _:
                text = text[:at]
    return text
