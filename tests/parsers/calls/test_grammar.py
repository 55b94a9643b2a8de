"""Grammars of answers hold what they promise: llguidance, the one that engines use, is asked."""

from typing import Any

import pytest

from antiphon.core.deltas import CallDelta, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Said, Thinking, Wish
from antiphon.parsers.calls.grammar import JSON_LIST, Shape, without_lookaround, write_grammar
from antiphon.parsers.calls.registry import FORMATS, load_format
from antiphon.protocol.schemas.grammars import knows_lark, ungrammatical

pytestmark = pytest.mark.skipif(not knows_lark(), reason="llguidance is not installed")

PARAMETERS: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: dict[str, Json] = {
    "weather": {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    "now": {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
}
THINKING = Thinking(opening='"<think>"', closing='"</think>"')
OPENED = Thinking(opening='"<think>"', closing='"</think>"', opened=True)
HERMES = Shape(begin="<tool_call>\n", end="\n</tool_call>", mark="<tool_call>")
MISTRAL = Shape(before="[TOOL_CALLS][", between=", ", after="]", mark="[TOOL_CALLS]")
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
CALL = f"<tool_call>\n{ROME}\n</tool_call>"
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BAD = CALL.replace("city", "town")


def takes(shape: Shape | None, text: str, **wish: Any) -> bool:
    grammar = write_grammar(shape, Wish(**{"tools": TOOLS, **wish}))
    assert grammar is not None
    return not ungrammatical(grammar.definition, text)


@pytest.mark.shows("D.13")
@pytest.mark.parametrize(
    ("text", "several", "one"),
    [
        (CALL, True, True),
        (f"{CALL}\n{NOW}", True, False),
        ("Rome is sunny.", False, False),
        (f"Well: {CALL}", False, False),
        (BAD, False, False),
        (CALL.replace("weather", "climate"), False, False),
        ("", False, False),
    ],
)
def test_who_must_call_calls(text: str, several: bool, one: bool) -> None:
    assert takes(HERMES, text) is several
    assert takes(HERMES, text, most="one") is one


@pytest.mark.shows("D.13")
@pytest.mark.parametrize("shape", [HERMES, MISTRAL, JSON_LIST])
def test_a_thought_may_come_first_and_says_no_mark_of_a_call(shape: Shape) -> None:
    call = {
        HERMES: CALL,
        MISTRAL: f"[TOOL_CALLS][{ROME}]",
        JSON_LIST: f"[{ROME.replace('arguments', 'parameters')}]",
    }[shape]
    assert takes(shape, call, thinks_first=THINKING)
    assert takes(shape, f"<think>\nHm.\n</think>\n\n{call}", thinks_first=THINKING)
    assert takes(shape, f"Hm.</think>{call}", thinks_first=OPENED)
    assert not takes(shape, call, thinks_first=OPENED)
    if shape.mark:
        assert not takes(shape, f"<think>{shape.mark}</think>{call}", thinks_first=THINKING)


@pytest.mark.shows("D.11", "D.13")
@pytest.mark.parametrize(
    ("text", "several", "one"),
    [
        ("Rome is sunny.", True, True),
        ("", True, True),
        (CALL, True, True),
        (f"Let me see. {CALL}", True, True),
        (f"{CALL}\n{NOW}", True, False),
        (f"<think>Hm.</think>{CALL}", True, True),
        (BAD, False, False),
        (f"Well: {BAD}", False, False),
        ("<tool_call> {", False, False),
        ("Beware of <tool_ca", True, True),
    ],
)
def test_text_is_free_and_a_call_in_it_fits(text: str, several: bool, one: bool) -> None:
    assert takes(HERMES, text, answer="text") is several
    assert takes(HERMES, text, answer="text", most="one") is one


@pytest.mark.parametrize("text", [f"[TOOL_CALLS][{ROME}]", f"So: [TOOL_CALLS][{ROME}, {ROME}]", "Sunny."])
def test_a_mark_may_stand_before_a_list(text: str) -> None:
    assert takes(MISTRAL, text, answer="text")
    assert not takes(MISTRAL, text.replace("city", "town"), answer="text") or "city" not in text


def test_where_calls_are_bare_text_cannot_be_told_from_them() -> None:
    assert write_grammar(JSON_LIST, Wish(tools=TOOLS, answer="text")) is None


@pytest.mark.parametrize("thinking", [None, THINKING])
def test_an_answer_with_a_form_may_stand_for_a_call(thinking: Thinking | None) -> None:
    for text in ('{"city": "Rome"}', CALL):
        assert takes(HERMES, text, answer=PARAMETERS, thinks_first=thinking)
    assert takes(None, '{"city": "Rome", "days": 3}', answer=PARAMETERS, tools={}, thinks_first=thinking)
    assert not takes(HERMES, "Rome", answer=PARAMETERS, thinks_first=thinking)
    assert takes(HERMES, '<think>?</think>{"city": "Rome"}', answer=PARAMETERS, thinks_first=thinking) is bool(thinking)


def test_white_space_has_no_room_to_run_away_in() -> None:
    assert not takes(None, '{"city":' + " " * 5 + '"Rome"}', answer=PARAMETERS, tools={})
    assert not takes(None, '{"city": "Rome"}' + "\n" * 5, answer=PARAMETERS, tools={})


def test_patterns_that_cannot_be_enforced_are_left_to_others() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)a$"}}, "required": ["a"]}
    assert takes(None, '{"a": "b"}', answer=schema, tools={})
    assert not takes(None, '{"a": 1}', answer=schema, tools={})
    other = {"enum": [{"pattern": "(?=a)"}], "pattern": "a+"}
    assert without_lookaround(other) == other


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("most", ["one", "several"])
def test_what_a_format_gives_as_its_grammar_can_be_read_and_is_not_too_free(name: str, most: Any) -> None:
    grammar = load_format(name)(TOOLS).grammar(Wish(tools=TOOLS, most=most))
    if grammar is not None:
        assert "cannot be read" not in ungrammatical(grammar.definition, "Hello!")
        assert ungrammatical(grammar.definition, "Hello!")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_a_grammar_writes_is_what_its_format_reads(name: str) -> None:
    kind = load_format(name)
    shape: Shape | None = getattr(kind, "shape", None)
    if shape is None:
        pytest.skip("it has no grammar")
    one = f'{shape.begin}{{"name": "weather", "{shape.arguments}": {{"city": "Rome"}}}}{shape.end}'
    text = f"{shape.before}{one}{shape.between}{one}{shape.after}"
    assert takes(shape, text)
    reader = kind(TOOLS)
    pieces = [*reader.feed(text), *reader.finish()]
    assert [piece for piece in pieces if isinstance(piece, Said) and piece.text.strip()] == []
    assert [piece.name for piece in pieces if isinstance(piece, CallStarted)] == ["weather"] * 2
    assert "".join([piece.text for piece in pieces if isinstance(piece, CallDelta)]) == '{"city": "Rome"}' * 2
