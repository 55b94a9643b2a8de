"""Constraints in llama.cpp's words, without llama.cpp."""

import pytest

from antiphon.core.prompt import Grammar, JsonObject, JsonSchema, StructuralTag
from antiphon.engines.llamacpp.constraints import UNGUIDED, Guide, guided
from antiphon.errors import UnsupportedParameter


def schema(constraint: JsonObject | JsonSchema) -> dict[str, object]:
    found = guided(constraint).schema
    assert found is not None
    return found


def test_schemas_leave_no_room_for_white_space() -> None:
    guidance = {"whitespace_flexible": False, "lenient": False}
    assert schema(JsonObject()) == {"type": "object", "x-guidance": guidance}
    mine = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    assert schema(JsonSchema(mine)) == {"type": "object", "x-guidance": guidance}
    assert schema(JsonSchema({}, strict=False))["x-guidance"] == {**guidance, "lenient": True}


def test_only_unknown_formats_are_dropped() -> None:
    given = {
        "properties": {
            "format": {"type": "string", "format": "uri"},
            "when": {"anyOf": [{"format": "date-time"}, {"format": "binary"}]},
            "fixed": {"const": {"format": "uri"}},
        }
    }
    assert schema(JsonSchema(given))["properties"] == {
        "format": {"type": "string"},
        "when": {"anyOf": [{"format": "date-time"}, {}]},
        "fixed": {"const": {"format": "uri"}},
    }


@pytest.mark.parametrize(
    ("regex", "line"),
    [
        ("[a-c]{3}", "start: /[a-c]{3}/"),
        ("a/b", r"start: /a\/b/"),
        (r"a\/b", r"start: /a\/b/"),
        ("a\nb", r"start: /a\nb/"),
    ],
)
def test_a_regular_expression_is_a_line_of_lark(regex: str, line: str) -> None:
    assert guided(Grammar("regex", regex)) == Guide(grammar=f"%llguidance {{}}\n{line}")


def test_lark_is_told_from_gbnf_by_its_first_line() -> None:
    assert guided(Grammar("lark", 'start: "a"')).grammar == '%llguidance {}\nstart: "a"'
    assert guided(Grammar("lark", '%llguidance {"x": 1}\nstart: "a"')).grammar == '%llguidance {"x": 1}\nstart: "a"'
    assert guided(Grammar("gbnf", 'root ::= "a"')).grammar == 'root ::= "a"'
    assert [guided(Grammar(syntax, "x")).silent for syntax in ("regex", "lark", "gbnf")] == [True, True, False]


def test_structural_tags_are_refused_and_nothing_is_no_guide() -> None:
    with pytest.raises(UnsupportedParameter):
        guided(StructuralTag({}))
    assert guided(None) is UNGUIDED
