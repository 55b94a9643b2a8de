"""Declarations become functions under plain names; what cannot be run is named, and refused where it is demanded."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Json
from antiphon.errors import BadRequest, InvalidValue, UnsupportedParameter
from antiphon.protocol.schemas.grammars import knows_lark
from antiphon.render.tools.declarations import Offer
from tests.render.requests import function_call, messages, rendered, user

WEATHER: Json = {
    "type": "function", "name": "weather", "description": "How it is.", "strict": True,
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}  # fmt: skip
SQL: Json = {"type": "custom", "name": "sql", "description": "Runs it."}
SPACE: Json = {
    "type": "namespace",
    "name": "db",
    "description": "The shop.",
    "tools": [SQL, {**WEATHER, "name": "get"}],
}


def schemas(*tools: Json, **fields: Any) -> dict[str, Json]:
    made = rendered(tools=list(tools), **fields)
    assert [tool["function"]["name"] for tool in made.prompt.tools] == list(made.offered.offers)
    return {tool["function"]["name"]: tool["function"] for tool in made.prompt.tools}


def test_a_function_is_offered_as_it_is_declared() -> None:
    assert schemas(WEATHER) == {"weather": {key: WEATHER[key] for key in WEATHER if key != "type"}}


def test_a_function_without_parameters_takes_none() -> None:
    assert schemas({"type": "function", "name": "now"}) == {
        "now": {"name": "now", "parameters": {"type": "object", "properties": {}}}
    }


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    function = schemas(SQL)["sql"]
    assert function["description"] == "Runs it."
    assert function["parameters"]["required"] == ["input"]
    assert function["parameters"]["properties"]["input"]["type"] == "string"


@pytest.mark.parametrize(("syntax", "word"), [("lark", "Lark grammar"), ("regex", "regular expression")])
def test_a_grammar_is_told_to_the_model(syntax: str, word: str) -> None:
    tool = {**SQL, "format": {"type": "grammar", "syntax": syntax, "definition": "start: /x+/"}}
    told = schemas(tool)["sql"]["parameters"]["properties"]["input"]["description"]
    assert word in told
    assert "start: /x+/" in told


@pytest.mark.shows("E.22")
def test_tools_of_a_namespace_are_offered_under_both_names() -> None:
    made = rendered(tools=[WEATHER, SPACE])
    assert made.offered.offers == {
        "weather": Offer("function", "weather"),
        "db__sql": Offer("custom", "sql", "db"),
        "db__get": Offer("function", "get", "db"),
    }
    assert made.prompt.tools[1]["function"]["description"] == "The shop.\n\nRuns it."


def test_a_call_in_the_history_has_the_name_that_is_offered() -> None:
    talk = [user(), function_call("a", "get", namespace="db"), function_call("b", "gone", namespace="old")]
    made = messages(*talk, tools=[{**SPACE, "tools": [{**WEATHER, "name": "get"}]}, {**WEATHER, "name": "db__get"}])
    assert [call["function"]["name"] for call in made[1]["tool_calls"]] == ["db__get", "old__gone"]


NAMES = st.text(alphabet="ab_-", min_size=1, max_size=3) | st.sampled_from(["x" * 64, "x" * 65, "x" * 128, "a__b", "b"])


@given(
    plain=st.lists(NAMES, unique=True, max_size=6),
    spaces=st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=3), max_size=3),
)
def test_offered_names_are_plain_unique_and_always_the_same(plain: list[str], spaces: dict[str, list[str]]) -> None:
    tools: list[Json] = [{"type": "function", "name": name} for name in plain]
    for space, names in spaces.items():
        inner = [{"type": "custom", "name": name} for name in names]
        tools.append({"type": "namespace", "name": space, "description": "", "tools": inner})
    offers = rendered(tools=tools).offered.offers
    assert len(offers) == len(plain) + sum(map(len, spaces.values()))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in offers)
    assert rendered(tools=tools).offered.offers == offers
    assert {offer.name for offer in offers.values() if offer.kind == "function"} == set(plain)


def test_tools_that_come_with_the_input_are_added_and_replace_their_namesakes() -> None:
    late = {"type": "additional_tools", "role": "developer", "tools": [SPACE, {**WEATHER, "description": "new"}]}
    made = schemas(WEATHER, SQL, input=[late, user()])
    assert list(made) == ["weather", "sql", "db__sql", "db__get"]
    assert made["weather"]["description"] == "new"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidValue) as refused:
        rendered(tools=[WEATHER, {**SQL, "name": "weather"}])
    assert refused.value.param == "tools[1].name"


HOSTED: list[Json] = [
    {"type": "web_search"},
    {"type": "web_search_preview"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "tool_search"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    {"type": "computer"},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "programmatic_tool_calling"},
]


@pytest.mark.shows("E.26")
def test_tools_that_nothing_here_runs_are_named_and_not_offered() -> None:
    made = rendered(tools=[*HOSTED, WEATHER, HOSTED[0]])
    assert list(made.offered.offers) == ["weather"]
    assert made.offered.ignored == tuple(tool["type"] for tool in HOSTED)


def test_a_tool_that_only_programs_may_call_is_not_offered() -> None:
    made = rendered(tools=[{**WEATHER, "allowed_callers": ["programmatic"]}])
    assert made.offered.offers == {}
    assert made.offered.ignored == ("programmatic_tool_calling",)


@pytest.mark.shows("A.19")
@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ({"type": "function", "name": "f", "defer_loading": True}, "tools.defer_loading"),
        ({"type": "function", "name": "f", "async": True}, "tools.async"),
    ],
)
def test_wishes_about_a_tool_that_nobody_fulfils_are_named(declared: Json, named: str) -> None:
    made = rendered(tools=[declared])
    assert made.offered.ignored == (named,)
    assert list(made.offered.offers) == [declared["name"]]


@pytest.mark.shows("D.14")
@pytest.mark.parametrize(("syntax", "held"), [("regex", True), ("lark", knows_lark())])
def test_a_grammar_that_nobody_can_hold_a_call_to_is_named(syntax: str, held: bool) -> None:
    form = {"type": "grammar", "syntax": syntax, "definition": "start: /a+/" if syntax == "lark" else "a+"}
    made = rendered(tools=[{"type": "custom", "name": "c", "format": form}])
    assert made.offered.ignored == (() if held else ("tools.format",))
    assert made.offered.offers["c"].grammar is not None


def test_a_regular_expression_is_about_all_of_the_input() -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    (tool,) = rendered(tools=[{"type": "custom", "name": "c", "format": form}]).prompt.tools
    assert tool["function"]["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$"


def chosen(choice: Any, *tools: Json) -> tuple[Any, list[str]]:
    prompt = rendered(tools=list(tools), tool_choice=choice).prompt
    return prompt.tool_choice, [tool["function"]["name"] for tool in prompt.tools]


def forced(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "expected", "offered"),
    [
        ("auto", "auto", ["weather", "sql", "db__sql", "db__get"]),
        ("required", "required", ["weather", "sql", "db__sql", "db__get"]),
        ("none", "none", []),
        ({"type": "function", "name": "weather"}, forced("weather"), ["weather", "sql", "db__sql", "db__get"]),
        (
            {"type": "function", "function": {"name": "weather"}},
            forced("weather"),
            ["weather", "sql", "db__sql", "db__get"],
        ),
        ({"type": "custom", "name": "sql"}, forced("sql"), ["weather", "sql", "db__sql", "db__get"]),
        ({"type": "function", "name": "get"}, forced("db__get"), ["weather", "sql", "db__sql", "db__get"]),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "weather"}]}, "auto", ["weather"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "namespace", "name": "db"}, {"type": "image_generation"}],
            },
            "required",
            ["db__sql", "db__get"],
        ),
    ],
)
def test_a_choice_narrows_what_is_offered_and_says_what_must_be_called(
    choice: Any, expected: Any, offered: list[str]
) -> None:
    assert chosen(choice, WEATHER, SQL, SPACE) == (expected, offered)


@pytest.mark.parametrize(
    ("choice", "tools", "error", "param"),
    [
        ("required", [], InvalidValue, "tool_choice"),
        ("required", [{"type": "web_search"}], UnsupportedParameter, "tool_choice"),
        ({"type": "web_search"}, [{"type": "web_search"}], UnsupportedParameter, "tool_choice"),
        ({"type": "mcp", "server_label": "s"}, [WEATHER], InvalidValue, "tool_choice"),
        ({"type": "shell"}, [WEATHER], UnsupportedParameter, "tool_choice"),
        ({"type": "function", "name": "sql"}, [SQL], InvalidValue, "tool_choice"),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "no"}]},
            [SQL],
            InvalidValue,
            "tool_choice.tools[0]",
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "s"}]},
            [SQL],
            InvalidValue,
            "tool_choice.tools[0]",
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "shell"}]},
            [SQL],
            InvalidValue,
            "tool_choice",
        ),
    ],
)
@pytest.mark.shows("E.26")
def test_a_choice_of_what_is_not_there_is_refused(
    choice: Any, tools: list[Json], error: type[BadRequest], param: str
) -> None:
    with pytest.raises(error) as refused:
        chosen(choice, *tools)
    assert refused.value.param == param
