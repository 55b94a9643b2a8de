"""Conversion of constraints to the request fields of llama.cpp, without llama.cpp."""

import pytest

from antiphon.core.prompt import Grammar, JsonObject, JsonSchema, StructuralTag
from antiphon.engines.llamacpp.wire import UNCONSTRAINED, LlamaCppConstraint, to_llamacpp_constraint
from antiphon.errors import UnsupportedParameter


def get_schema(constraint: JsonObject | JsonSchema) -> dict[str, object]:
    found = to_llamacpp_constraint(constraint).schema
    assert found is not None
    return found


def test_schemas_forbid_flexible_white_space() -> None:
    guidance = {"whitespace_flexible": False, "lenient": False}
    assert get_schema(JsonObject()) == {"type": "object", "x-guidance": guidance}
    mine = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    assert get_schema(JsonSchema(mine)) == {"type": "object", "x-guidance": guidance}
    assert get_schema(JsonSchema({}, strict=False))["x-guidance"] == {**guidance, "lenient": True}


def test_only_unknown_formats_are_dropped() -> None:
    source = {
        "properties": {
            "format": {"type": "string", "format": "uri"},
            "when": {"anyOf": [{"format": "date-time"}, {"format": "binary"}]},
            "fixed": {"const": {"format": "uri"}},
        }
    }
    assert get_schema(JsonSchema(source))["properties"] == {
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
def test_a_regular_expression_becomes_a_lark_rule(regex: str, line: str) -> None:
    assert to_llamacpp_constraint(Grammar("regex", regex)) == LlamaCppConstraint(grammar=f"%llguidance {{}}\n{line}")


def test_lark_is_marked_by_its_first_line_and_gbnf_is_not() -> None:
    assert to_llamacpp_constraint(Grammar("lark", 'start: "a"')).grammar == '%llguidance {}\nstart: "a"'
    assert (
        to_llamacpp_constraint(Grammar("lark", '%llguidance {"x": 1}\nstart: "a"')).grammar
        == '%llguidance {"x": 1}\nstart: "a"'
    )
    assert to_llamacpp_constraint(Grammar("gbnf", 'root ::= "a"')).grammar == 'root ::= "a"'
    assert [to_llamacpp_constraint(Grammar(syntax, "x")).fails_silently for syntax in ("regex", "lark", "gbnf")] == [
        True,
        True,
        False,
    ]


def test_structural_tags_are_rejected_and_no_constraint_is_unconstrained() -> None:
    with pytest.raises(UnsupportedParameter):
        to_llamacpp_constraint(StructuralTag({}))
    assert to_llamacpp_constraint(None) is UNCONSTRAINED
