"""Tool declarations become functions with plain names; tools that the server cannot run are ignored and reported, and
rejected where they are required.

Covers `render/tools/offered_tools.py`.
"""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Json
from antiphon.errors import BadRequest, InvalidValue, UnsupportedParameter
from antiphon.protocol.schemas.grammars import has_lark
from antiphon.render.tools.offered_tools import OfferedTool
from tests.render.requests import function_call, render_messages, render_request, user_message

WEATHER: Json = {
    "type": "function", "name": "weather", "description": "How it is.", "strict": True,
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}  # fmt: skip
SQL: Json = {"type": "custom", "name": "sql", "description": "Runs it."}
NAMESPACE: Json = {
    "type": "namespace",
    "name": "db",
    "description": "The shop.",
    "tools": [SQL, {**WEATHER, "name": "get"}],
}


def render_schemas(*tools: Json, **fields: Any) -> dict[str, Json]:
    made = render_request(tools=list(tools), **fields)
    assert [tool["function"]["name"] for tool in made.prompt.tools] == list(made.offered.offers)
    return {tool["function"]["name"]: tool["function"] for tool in made.prompt.tools}


def test_a_function_is_offered_as_declared() -> None:
    assert render_schemas(WEATHER) == {"weather": {key: WEATHER[key] for key in WEATHER if key != "type"}}


def test_a_function_without_parameters_gets_an_empty_object_schema() -> None:
    assert render_schemas({"type": "function", "name": "now"}) == {
        "now": {"name": "now", "parameters": {"type": "object", "properties": {}}}
    }


def test_a_custom_tool_becomes_a_function_with_one_text_parameter() -> None:
    function = render_schemas(SQL)["sql"]
    assert function["description"] == "Runs it."
    assert function["parameters"]["required"] == ["input"]
    assert function["parameters"]["properties"]["input"]["type"] == "string"


@pytest.mark.parametrize(("syntax", "fragment"), [("lark", "Lark grammar"), ("regex", "regular expression")])
def test_a_grammar_is_described_to_the_model(syntax: str, fragment: str) -> None:
    tool = {**SQL, "format": {"type": "grammar", "syntax": syntax, "definition": "start: /x+/"}}
    description = render_schemas(tool)["sql"]["parameters"]["properties"]["input"]["description"]
    assert fragment in description
    assert "start: /x+/" in description


@pytest.mark.shows("E.22")
def test_tools_of_a_namespace_are_offered_with_its_name_as_prefix() -> None:
    made = render_request(tools=[WEATHER, NAMESPACE])
    assert made.offered.offers == {
        "weather": OfferedTool("function", "weather"),
        "db__sql": OfferedTool("custom", "sql", "db"),
        "db__get": OfferedTool("function", "get", "db"),
    }
    assert made.prompt.tools[1]["function"]["description"] == "The shop.\n\nRuns it."


def test_a_call_in_the_history_has_the_offered_name() -> None:
    items = [user_message(), function_call("a", "get", namespace="db"), function_call("b", "gone", namespace="old")]
    made = render_messages(
        *items, tools=[{**NAMESPACE, "tools": [{**WEATHER, "name": "get"}]}, {**WEATHER, "name": "db__get"}]
    )
    assert [call["function"]["name"] for call in made[1]["tool_calls"]] == ["db__get", "old__gone"]


NAMES = st.text(alphabet="ab_-", min_size=1, max_size=3) | st.sampled_from(["x" * 64, "x" * 65, "x" * 128, "a__b", "b"])


@given(
    plain=st.lists(NAMES, unique=True, max_size=6),
    spaces=st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=3), max_size=3),
)
def test_offered_names_are_plain_unique_and_stable(plain: list[str], spaces: dict[str, list[str]]) -> None:
    tools: list[Json] = [{"type": "function", "name": name} for name in plain]
    for space, names in spaces.items():
        inner = [{"type": "custom", "name": name} for name in names]
        tools.append({"type": "namespace", "name": space, "description": "", "tools": inner})
    offers = render_request(tools=tools).offered.offers
    assert len(offers) == len(plain) + sum(map(len, spaces.values()))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in offers)
    assert render_request(tools=tools).offered.offers == offers
    assert {offer.name for offer in offers.values() if offer.kind == "function"} == set(plain)


def test_tools_in_the_input_are_added_and_replace_tools_of_the_same_name() -> None:
    late = {"type": "additional_tools", "role": "developer", "tools": [NAMESPACE, {**WEATHER, "description": "new"}]}
    made = render_schemas(WEATHER, SQL, input=[late, user_message()])
    assert list(made) == ["weather", "sql", "db__sql", "db__get"]
    assert made["weather"]["description"] == "new"


def test_two_tools_of_one_name_are_rejected() -> None:
    with pytest.raises(InvalidValue) as refused:
        render_request(tools=[WEATHER, {**SQL, "name": "weather"}])
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
def test_tools_that_the_server_cannot_run_are_reported_and_not_offered() -> None:
    made = render_request(tools=[*HOSTED, WEATHER, HOSTED[0]])
    assert list(made.offered.offers) == ["weather"]
    assert made.offered.ignored == tuple(tool["type"] for tool in HOSTED)


def test_a_tool_with_only_programmatic_callers_is_not_offered() -> None:
    made = render_request(tools=[{**WEATHER, "allowed_callers": ["programmatic"]}])
    assert made.offered.offers == {}
    assert made.offered.ignored == ("programmatic_tool_calling",)


@pytest.mark.shows("A.19")
def test_an_mcp_server_with_only_programmatic_callers_is_neither_listed_nor_offered() -> None:
    server = {
        "type": "mcp",
        "server_label": "s",
        "server_url": "https://s.example",
        "allowed_callers": ["programmatic"],
    }
    made = render_request(tools=[server])
    assert (made.offered.unlisted, made.offered.ignored) == ((), ("programmatic_tool_calling",))
    made = render_request(tools=[{**server, "allowed_callers": ["programmatic", "direct"]}])
    assert (made.offered.unlisted, made.offered.ignored) == (("s",), ())


@pytest.mark.shows("A.19")
@pytest.mark.parametrize(
    ("declared", "option"),
    [
        ({"type": "function", "name": "f", "output_schema": {"type": "object"}}, "tools.output_schema"),
        ({"type": "function", "name": "f", "defer_loading": True}, "tools.defer_loading"),
        ({"type": "function", "name": "f", "async": True}, "tools.async"),
    ],
)
def test_unsupported_tool_options_are_reported_as_ignored(declared: Json, option: str) -> None:
    made = render_request(tools=[declared])
    assert made.offered.ignored == (option,)
    assert list(made.offered.offers) == [declared["name"]]


@pytest.mark.shows("D.14")
@pytest.mark.parametrize(("syntax", "enforced"), [("regex", True), ("lark", has_lark())])
def test_a_grammar_that_cannot_be_enforced_is_reported_as_ignored(syntax: str, enforced: bool) -> None:
    grammar = {"type": "grammar", "syntax": syntax, "definition": "start: /a+/" if syntax == "lark" else "a+"}
    made = render_request(tools=[{"type": "custom", "name": "c", "format": grammar}])
    assert made.offered.ignored == (() if enforced else ("tools.format",))
    assert made.offered.offers["c"].grammar is not None


def test_a_regular_expression_must_match_the_entire_input() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    (tool,) = render_request(tools=[{"type": "custom", "name": "c", "format": grammar}]).prompt.tools
    assert tool["function"]["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$"


def render_choice(choice: Any, *tools: Json) -> tuple[Any, list[str]]:
    prompt = render_request(tools=list(tools), tool_choice=choice).prompt
    return prompt.tool_choice, [tool["function"]["name"] for tool in prompt.tools]


def named_choice(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "expected", "offered"),
    [
        ("auto", "auto", ["weather", "sql", "db__sql", "db__get"]),
        ("required", "required", ["weather", "sql", "db__sql", "db__get"]),
        ("none", "none", []),
        ({"type": "function", "name": "weather"}, named_choice("weather"), ["weather", "sql", "db__sql", "db__get"]),
        (
            {"type": "function", "function": {"name": "weather"}},
            named_choice("weather"),
            ["weather", "sql", "db__sql", "db__get"],
        ),
        ({"type": "custom", "name": "sql"}, named_choice("sql"), ["weather", "sql", "db__sql", "db__get"]),
        ({"type": "function", "name": "get"}, named_choice("db__get"), ["weather", "sql", "db__sql", "db__get"]),
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
def test_a_tool_choice_determines_the_offered_and_the_required_tools(
    choice: Any, expected: Any, offered: list[str]
) -> None:
    assert render_choice(choice, WEATHER, SQL, NAMESPACE) == (expected, offered)


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
def test_a_choice_of_an_unavailable_tool_is_rejected(
    choice: Any, tools: list[Json], error: type[BadRequest], param: str
) -> None:
    with pytest.raises(error) as refused:
        render_choice(choice, *tools)
    assert refused.value.param == param
