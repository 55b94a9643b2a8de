"""JSON as models write it: valid JSON is unchanged, unambiguous faults are repaired, and cuts change nothing."""

import json
import random
from typing import Any

import pytest

from antiphon.parsers.json_repair import (
    MAX_DEPTH,
    MAX_ESCAPE_REPAIRS,
    MAX_PARTS,
    MAX_REPAIRS,
    JsonRepair,
    bareword_to_json,
)

FAULTS = ['"', "'", "\\", ",", ":", "{", "}", "[", "]", "x", " ", "\n", "True", "(", ")", "<", "=", "\\u12", "\\x"]
LETTERS = "abc \"\\\n\té{}[],:'\u2028<😀`"


def run_repair(*parts: str) -> tuple[str, bool, str]:
    """Return the output, whether the JSON broke, and the unread text."""
    repair, output, remaining = JsonRepair(), [], ""
    for part in parts:
        if repair.is_done or repair.is_broken:
            remaining += part
            continue
        more, at = repair.feed(part)
        output.append(more)
        remaining += part[at:]
    broken = repair.is_broken
    return "".join(output) + (repair.release_pending() if broken else repair.finish()), broken, remaining


def repair_text(text: str) -> str:
    output, broken, remaining = run_repair(text)
    assert (broken, remaining) == (False, "")
    assert run_repair(*text) == (output, broken, remaining)
    return output


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
        "[" * MAX_DEPTH + "]" * MAX_DEPTH,
    ],
    ids=lambda text: text[:12],
)
def test_valid_json_is_unchanged(text: str) -> None:
    assert repair_text(text) == text
    assert run_repair(text + " and more") == (text, False, " and more") or text in ("12", "-0.5")


@pytest.mark.parametrize(
    ("text", "expected"),
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
        ('{"a": """\nsay("b\\n")\n""", "c": ""}', '{"a": "\\nsay(\\"b\\\\n\\")\\n", "c": ""}'),
        ("{'a': '''it's'''}", '{"a": "it\'s"}'),
        ('{"a": """"""}', '{"a": ""}'),
        ('{"a": ""}', '{"a": ""}'),
        ('["", ""]', '["", ""]'),
    ],
)
def test_unambiguous_faults_are_repaired(text: str, expected: str) -> None:
    assert repair_text(text) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_missing_ends_are_added_and_incomplete_members_are_dropped(text: str, expected: str) -> None:
    assert repair_text(text) == expected


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
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" + "'a'," * (MAX_REPAIRS + 1),
        '["' + "\\q" * (MAX_ESCAPE_REPAIRS + 2),
        "[" + "1," * (MAX_PARTS + 1) + "1]",
    ],
    ids=lambda text: text[:12],
)
def test_ambiguous_and_oversized_json_breaks_at_its_fault(text: str) -> None:
    output, broken, remaining = run_repair(text)
    assert broken
    assert remaining
    assert text.endswith(remaining)
    assert run_repair(*text) == (output, broken, remaining)


def test_broken_json_can_still_be_completed() -> None:
    repair = JsonRepair()
    output, at = repair.feed('{"a": {"b": 1, "c"</end>')
    assert repair.is_broken
    assert output + repair.finish() == '{"a": {"b": 1}}'
    assert at == len('{"a": {"b": 1, "c"')


@pytest.mark.seeds(12)
@pytest.mark.shows("D.18")
def test_random_json_with_random_faults_gives_the_same_result_at_every_cut(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        text = _make_random_json(rng)
        assert run_repair(text, " rest") == (text, False, " rest")
        text = _insert_faults(rng, text) + rng.choice(["", " rest", "</tool_call>"])
        expected = run_repair(text)
        assert run_repair(*text) == expected
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(3))
        assert (
            run_repair(text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] : cuts[2]], text[cuts[2] :]) == expected
        )
        output, broken, _ = expected
        if not broken and output:
            json.loads(output)


def test_a_bareword_becomes_a_number_a_constant_or_a_string() -> None:
    atoms = ["0", "-1", "1e5", "1.5E-3", "true", "null", "True", "None", "01", "1.", "-", "+1", "1e", ".5", "word"]
    assert [json.loads(bareword_to_json(atom)) for atom in atoms] == [
        *[0, -1, 1e5, 1.5e-3, True, None, True, None],
        *["01", "1.", "-", "+1", "1e", ".5", "word"],
    ]


def _make_random_json(rng: random.Random) -> str:
    value = (
        {"a": _make_random_value(rng)}
        if rng.random() < 0.5
        else [_make_random_value(rng) for _ in range(rng.randrange(20))]
    )
    separators = rng.choice([None, (",", ":"), (" , ", " : ")])
    return json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]), separators=separators)


def _make_random_value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(8 if depth < 5 else 5):
        case 0:
            return rng.choice([0, 1, -5, 12.5, 1e30, -0.25, 10**20])
        case 1:
            return rng.choice([True, False, None, {}, []])
        case 2 | 3 | 4:
            return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(rng.choice([3, 30, 300]))))
        case 5:
            return [_make_random_value(rng, depth + 1) for _ in range(rng.randrange(8))]
    names = ["k", 'ke\\y"', "é", "a key"]
    return {f"{rng.choice(names)}{n}": _make_random_value(rng, depth + 1) for n in range(rng.randrange(8))}


def _insert_faults(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + text[at + 1 :]
            case 1 | 2:
                text = text[:at] + rng.choice(FAULTS) + text[at:]
            case _:
                text = text[:at]
    return text
