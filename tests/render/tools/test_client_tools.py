"""Tools that the client runs and that models do not know: functions for models, items of their kind for clients."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import Put
from antiphon.core.prompt import Json
from antiphon.errors import BadRequest, InvalidCall, InvalidValue, UnsupportedParameter
from antiphon.protocol.schemas.schema_check import fitted, misfit
from antiphon.render.tools.client_calls import cut, made, said
from antiphon.render.tools.client_tools import accepted
from tests.core.emitter.streams import emitted
from tests.oracles.responses import check_event
from tests.render.requests import messages, rendered, user
from tests.support.paths import DOCS

SHELL: Json = {"type": "shell"}
SEARCH: Json = {"type": "tool_search", "execution": "client"}
DECLARED: dict[str, Json] = {
    "shell": {"type": "shell", "environment": {"type": "local"}},
    "local_shell": {"type": "local_shell"},
    "apply_patch": {"type": "apply_patch"},
    "tool_search": SEARCH,
}
DEFERRED: Json = {
    "type": "function",
    "name": "map_of",
    "description": "Draws a map.\nIn colour.",
    "defer_loading": True,
}
SPACE: Json = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{**DEFERRED, "name": "find"}, {"type": "function", "name": "add"}],
}
SAID = st.one_of(
    st.none(),
    st.text(max_size=4),
    st.integers(),
    st.lists(st.text(max_size=4), max_size=3),
    st.sampled_from(["create_file", "update_file", "delete_file"]),
)


def functions(*tools: Json, **fields: Any) -> dict[str, Json]:
    prompt = rendered(tools=list(tools), **fields).prompt
    return {tool["function"]["name"]: tool["function"] for tool in prompt.tools}


def item(kind: str, **arguments: Any) -> Json:
    """What a call becomes, on the wire."""
    assert not misfit(accepted(kind, {}) or {}, arguments)
    return json.loads(msgspec.json.encode(made(kind, json.dumps(arguments))))  # type: ignore[no-any-return]  # a dict


@pytest.mark.parametrize("kind", DECLARED)
@pytest.mark.shows("E.23", "E.24", "E.25")
def test_each_is_offered_as_a_function_with_words_for_what_it_does(kind: str) -> None:
    made = rendered(tools=[DECLARED[kind]])
    (function,) = [tool["function"] for tool in made.prompt.tools]
    assert function["name"] == kind
    assert len(function["description"]) > 50
    assert all("description" in field for field in function["parameters"]["properties"].values())
    assert made.offered.ignored == ()


def test_the_page_about_them_says_what_is_offered() -> None:
    page = (DOCS / "coding-agents.md").read_text()
    told = {name: fields.split(", ") for name, fields in re.findall(r"`([a-z_]+)\((.*?)\)`", page)}
    schemas = {kind: functions(tool)[kind]["parameters"] for kind, tool in DECLARED.items()}
    assert told == {
        kind: [name if name in schema["required"] else f"{name}?" for name in schema["properties"]]
        for kind, schema in schemas.items()
    }


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("shell", {"commands": ["ls", "pwd"]}),
        ("shell", {"commands": ["ls"], "timeout_ms": 0, "max_output_length": 9}),
        ("local_shell", {"command": ["ls"]}),
        (
            "local_shell",
            {"command": ["ls"], "env": {"A": "b"}, "working_directory": "/", "timeout_ms": 1, "user": "me"},
        ),
        ("apply_patch", {"type": "create_file", "path": "a", "diff": "+x"}),
        ("apply_patch", {"type": "update_file", "path": "a", "diff": "@@\n-x"}),
        ("apply_patch", {"type": "delete_file", "path": "a", "diff": ""}),
        ("tool_search", {"query": "maps"}),
    ],
)
def test_what_fits_the_offer_is_accepted_and_told_again_as_it_was_said(kind: str, arguments: Json) -> None:
    parameters = functions(DECLARED[kind])[kind]["parameters"]
    assert not misfit(parameters, arguments)
    assert not misfit(accepted(kind, parameters) or {}, arguments)
    assert said(made(kind, json.dumps(arguments))) == arguments


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
def test_whatever_is_accepted_is_an_item_that_the_openai_package_takes(kind: str) -> None:
    schema = accepted(kind, {}) or {}
    known = schema.get("properties") or schema["else"]["properties"]

    @given(st.dictionaries(st.sampled_from(sorted(known)), SAID))
    def holds(arguments: Json) -> None:
        fit = fitted(schema, json.dumps(arguments))
        if not fit.fault:
            for event in emitted([Put(made(kind, fit.text))]):
                check_event(json.loads(msgspec.json.encode(event)))

    holds()


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        ({"commands": ["ls", "pwd"]}, ["ls", "pwd"]),
        ({"commands": "ls -l | wc"}, ["ls -l | wc"]),
        ({"command": "ls"}, ["ls"]),
        ({"command": ["git", "log", "a b"]}, ["git log 'a b'"]),
        ({"cmd": ["bash", "-lc", "ls && pwd"]}, ["ls && pwd"]),
        ({"commands": ["bash", "-lc", "ls"]}, ["ls"]),
        ({"cmd": ["ls"], "workdir": "/a b"}, ["cd '/a b' && ls"]),
    ],
)
@pytest.mark.shows("E.24")
def test_one_command_may_be_said_in_several_ways(arguments: Json, commands: list[str]) -> None:
    assert item("shell", **arguments)["action"]["commands"] == commands


@pytest.mark.shows("E.24")
def test_a_call_of_a_shell_has_its_bounds_and_says_where_it_runs() -> None:
    assert item("shell", commands=["ls"], timeout_ms=1000.0, max_output_length=None) == {
        "type": "shell_call",
        "call_id": "",
        "status": "completed",
        "action": {"commands": ["ls"], "timeout_ms": 1000, "max_output_length": None},
        "environment": {"type": "local"},
    }


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"command": ["ls"]}, {"command": ["ls"], "env": {}}),
        ({"command": "ls | wc"}, {"command": ["bash", "-lc", "ls | wc"], "env": {}}),
        (
            {"cmd": ["ls"], "env": {"A": "b"}, "user": "me", "workdir": "/x", "timeout_ms": 5},
            {"command": ["ls"], "env": {"A": "b"}, "user": "me", "working_directory": "/x", "timeout_ms": 5},
        ),
    ],
)
@pytest.mark.shows("E.24")
def test_a_local_shell_gets_a_program_and_its_arguments(arguments: Json, action: Json) -> None:
    made = {key: value for key, value in item("local_shell", **arguments)["action"].items() if value is not None}
    assert made == {"type": "exec", **action}


@pytest.mark.parametrize(
    ("arguments", "operation"),
    [
        ({"type": "create_file", "path": "a", "diff": "+x\n+y\n"}, {"diff": "+x\n+y\n"}),
        ({"type": "create_file", "path": "a", "diff": "x\n\ny\n"}, {"diff": "+x\n+\n+y"}),
        ({"type": "create_file", "path": "a"}, {"diff": ""}),
        ({"type": "update_file", "path": "a", "diff": "@@\n-x\n+y"}, {"diff": "@@\n-x\n+y"}),
        ({"type": "delete_file", "path": "a", "diff": ""}, {}),
        ({"type": "delete_file", "path": "a"}, {}),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.shows("E.25")
def test_a_patch_is_one_operation_on_one_file(arguments: Json, operation: Json, wrapped: bool) -> None:
    expected = {"type": arguments["type"], "path": "a", **operation}
    assert item("apply_patch", **({"operation": arguments} if wrapped else arguments))["operation"] == expected


@pytest.mark.parametrize(
    ("kind", "arguments", "fault"),
    [
        ("shell", {}, '"commands" is a required property'),
        ("shell", {"commands": []}, ""),
        ("shell", {"commands": ["ls"], "timeout_ms": -1}, "minimum"),
        ("local_shell", {"program": "ls"}, '"command" is a required property'),
        ("apply_patch", {"path": "a"}, '"type" is a required property'),
        ("apply_patch", {"type": "update_file", "path": "a"}, '"diff" is a required property'),
        ("apply_patch", {"operation": {"type": "move_file", "path": "a"}}, "is not one of"),
    ],
)
def test_what_cannot_be_meant_is_complained_about_in_a_few_words(kind: str, arguments: Json, fault: str) -> None:
    found = misfit(accepted(kind, {}) or {}, arguments)
    assert found
    assert fault in found


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        ("shell", '{"commands": ["ls", "pw', {"commands": ["ls"]}),
        ("shell", '{"comm', {"commands": []}),
        ("shell", "ls", {"commands": []}),
        ("local_shell", "", {"command": []}),
        ("tool_search", '{"query": "maps", "li', {"query": "maps"}),
    ],
)
@pytest.mark.shows("D2.4")
def test_a_call_that_broke_off_is_an_incomplete_item(kind: str, arguments: str, expected: Json) -> None:
    left = cut(kind, arguments)
    assert left is not None
    assert left.status == "incomplete"
    assert said(left) == expected


def test_a_search_for_whatever_there_is_needs_no_words() -> None:
    assert said(made("tool_search", " ")) == {}


@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"commands": 5}'])
def test_what_nobody_looked_at_and_does_not_fit_is_a_typed_failure(arguments: str) -> None:
    with pytest.raises(InvalidCall):
        made("shell", arguments)


def test_a_patch_that_broke_off_is_none_for_it_has_no_word_for_that() -> None:
    assert cut("apply_patch", '{"type": "delete_file", "path": "a"') is None


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
        {"type": "shell", "allowed_callers": ["programmatic"]},
        {"type": "apply_patch", "allowed_callers": ["programmatic"]},
        {"type": "tool_search"},
        {"type": "tool_search", "execution": "server"},
    ],
)
@pytest.mark.shows("E.26")
def test_what_is_not_for_the_client_to_run_is_named_and_refused_where_it_is_demanded(tool: Json) -> None:
    made = rendered(tools=[tool])
    assert made.offered.offers == {}
    assert made.offered.ignored == (tool["type"],)
    with pytest.raises(UnsupportedParameter):
        rendered(tools=[tool], tool_choice="required")


@pytest.mark.parametrize("kind", ["shell", "apply_patch"])
def test_one_can_be_chosen_by_its_type(kind: str) -> None:
    prompt = rendered(tools=[*DECLARED.values()], tool_choice={"type": kind}).prompt
    assert prompt.tool_choice == {"type": "function", "function": {"name": kind}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
    prompt = rendered(tools=[*DECLARED.values()], tool_choice=allowed).prompt
    assert [tool["function"]["name"] for tool in prompt.tools] == [kind]


def test_a_function_of_the_same_name_keeps_its_own() -> None:
    made = rendered(tools=[{"type": "function", "name": "shell"}, SHELL])
    names = {offer.kind: name for name, offer in made.offered.offers.items()}
    assert names["function"] == "shell"
    assert names["shell"].startswith("shell_")
    told = messages(
        user(),
        {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}},
        tools=[{"type": "function", "name": "shell"}, SHELL],
    )
    assert told[1]["tool_calls"][0]["function"]["name"] == names["shell"]


def test_skills_of_a_local_environment_are_told() -> None:
    skill = {"name": "pdf", "description": "Fills in forms.", "path": "skills/pdf"}
    local = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    assert "- pdf (skills/pdf): Fills in forms." in functions(local)["shell"]["description"]


# ---- deferred tools


@pytest.mark.shows("E.23")
def test_deferred_tools_wait_until_a_search_has_found_them() -> None:
    made = rendered(tools=[SEARCH, DEFERRED, SPACE])
    assert list(made.offered.offers) == ["tool_search", "crm__add"]
    assert list(made.offered.deferred) == ["map_of", "crm__find"]
    assert made.offered.ignored == ()
    told = made.offered.schemas["tool_search"]["function"]["description"]
    assert told.endswith("\n\nWhat can be found:\n- map_of: Draws a map.\n- crm: Customers.")


@pytest.mark.shows("E.23")
def test_what_a_search_has_found_is_offered_and_told_by_its_offered_name() -> None:
    past = [
        user(),
        {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"query": "maps"}},
        {"type": "tool_search_output", "call_id": "a", "execution": "client", "tools": [DEFERRED, SPACE]},
    ]
    made = rendered(tools=[SEARCH, DEFERRED, SPACE], input=past)
    assert list(made.offered.offers) == ["tool_search", "map_of", "crm__find", "crm__add"]
    assert made.prompt.messages[-1]["content"] == "These tools can be called now:\nmap_of\ncrm__find\ncrm__add"
    assert "What can be found" not in made.offered.schemas["tool_search"]["function"]["description"]


def test_a_search_that_found_nothing_says_so() -> None:
    past = [
        user(),
        {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"query": "maps"}},
        {"type": "tool_search_output", "call_id": "a", "execution": "client", "tools": []},
    ]
    assert messages(*past, tools=[SEARCH])[-1]["content"] == "No tools were found."


@pytest.mark.shows("E.23")
def test_where_nobody_searches_deferred_tools_are_offered_and_the_wish_is_named() -> None:
    made = rendered(tools=[DEFERRED, SPACE])
    assert list(made.offered.offers) == ["map_of", "crm__find", "crm__add"]
    assert made.offered.ignored == ("tools.defer_loading",)


def test_deferred_tools_of_an_mcp_server_wait_too() -> None:
    server = {
        "type": "mcp", "server_label": "maps", "server_url": "https://m.example", "defer_loading": True,
        "server_description": "All maps.",
    }  # fmt: skip
    listed = {"type": "mcp_list_tools", "server_label": "maps", "tools": [{"name": "draw", "input_schema": {}}]}
    made = rendered(tools=[SEARCH, server], input=[listed, user()])
    assert list(made.offered.offers) == ["tool_search"]
    assert made.offered.unlisted == ()
    assert "- maps: All maps." in made.offered.schemas["tool_search"]["function"]["description"]
    found = [
        {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"query": "maps"}},
        {"type": "tool_search_output", "call_id": "a", "execution": "client", "tools": [server]},
    ]
    assert list(rendered(tools=[SEARCH, server], input=[listed, user(), *found]).offered.offers)[1:] == ["maps__draw"]
    assert rendered(tools=[SEARCH, server], input=[user(), *found]).offered.unlisted == ("maps",)


@pytest.mark.parametrize(
    ("choice", "word"),
    [({"type": "function", "name": "map_of"}, "deferred"), ({"type": "custom", "name": "x"}, "no declared")],
)
def test_a_choice_of_a_deferred_tool_says_why_it_cannot_be_called(choice: Json, word: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        rendered(tools=[SEARCH, DEFERRED], tool_choice=choice)
    assert word in refused.value.message


def test_deferred_tools_may_be_among_those_that_are_allowed() -> None:
    tools = [{"type": "function", "name": "map_of"}, {"type": "namespace", "name": "crm"}, {"type": "tool_search"}]
    made = rendered(tools=[SEARCH, DEFERRED, SPACE], tool_choice={"type": "allowed_tools", "tools": tools})
    assert list(made.offered.offers) == ["tool_search", "crm__add"]


def test_the_clients_own_words_for_a_search_are_used() -> None:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    function = functions({**SEARCH, "description": "Ask me.", "parameters": parameters})["tool_search"]
    assert function == {"name": "tool_search", "description": "Ask me.", "parameters": parameters}


def test_a_schema_of_a_search_that_does_not_say_so_is_one_of_an_object() -> None:
    parameters = {"properties": {"q": {"type": "string"}}}
    function = functions({**SEARCH, "parameters": parameters})["tool_search"]
    assert function["parameters"] == {"type": "object", **parameters}


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": "object", "properties": {"q": {"type": "strin"}}}])
def test_a_search_with_a_schema_that_is_none_of_an_object_is_refused(parameters: Json) -> None:
    with pytest.raises(BadRequest) as refused:
        rendered(tools=[{**SEARCH, "parameters": parameters}])
    assert refused.value.param is not None
    assert refused.value.param.startswith("tools[0].parameters")
