"""Tools that the client executes (shell, local_shell, apply_patch, tool_search): offered to models as functions, and
returned to clients as items of their type.

Covers `render/tools/client_calls.py`.
"""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import ItemAdded
from antiphon.core.prompt import Json
from antiphon.errors import BadRequest, InvalidCall, InvalidValue, UnsupportedParameter
from antiphon.protocol.schemas.schema_check import check_text, find_violation
from antiphon.render.tools.client_calls import build_client_item, build_truncated_item, client_call_arguments
from antiphon.render.tools.client_tools import accepted_schema
from tests.core.emitter.streams import emit_stream
from tests.oracles.responses import check_event
from tests.render.requests import render_messages, render_request, user_message
from tests.support.paths import DOCS

SHELL: Json = {"type": "shell"}
SEARCH: Json = {"type": "tool_search", "execution": "client"}
DECLARATIONS: dict[str, Json] = {
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
NAMESPACE: Json = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{**DEFERRED, "name": "find"}, {"type": "function", "name": "add"}],
}
ARGUMENT_VALUES = st.one_of(
    st.none(),
    st.text(max_size=4),
    st.integers(),
    st.lists(st.text(max_size=4), max_size=3),
    st.sampled_from(["create_file", "update_file", "delete_file"]),
)


def render_functions(*tools: Json, **fields: Any) -> dict[str, Json]:
    prompt = render_request(tools=list(tools), **fields).prompt
    return {tool["function"]["name"]: tool["function"] for tool in prompt.tools}


def build_item(kind: str, **arguments: Any) -> Json:
    """Build the item of a call with these arguments and return it as JSON."""
    assert not find_violation(accepted_schema(kind, {}) or {}, arguments)
    return json.loads(msgspec.json.encode(build_client_item(kind, json.dumps(arguments))))  # type: ignore[no-any-return]  # a dict


@pytest.mark.parametrize("kind", DECLARATIONS)
@pytest.mark.shows("E.23", "E.24", "E.25")
def test_each_client_tool_is_offered_as_a_described_function(kind: str) -> None:
    made = render_request(tools=[DECLARATIONS[kind]])
    (function,) = [tool["function"] for tool in made.prompt.tools]
    assert function["name"] == kind
    assert len(function["description"]) > 50
    assert all("description" in field for field in function["parameters"]["properties"].values())
    assert made.offered.ignored == ()


def test_the_documentation_lists_the_offered_functions() -> None:
    page = (DOCS / "coding-agents.md").read_text()
    documented = {name: fields.split(", ") for name, fields in re.findall(r"`([a-z_]+)\((.*?)\)`", page)}
    schemas = {kind: render_functions(tool)[kind]["parameters"] for kind, tool in DECLARATIONS.items()}
    assert documented == {
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
def test_arguments_that_match_the_schema_are_accepted_and_preserved(kind: str, arguments: Json) -> None:
    parameters = render_functions(DECLARATIONS[kind])[kind]["parameters"]
    assert not find_violation(parameters, arguments)
    assert not find_violation(accepted_schema(kind, parameters) or {}, arguments)
    assert client_call_arguments(build_client_item(kind, json.dumps(arguments))) == arguments


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
def test_accepted_arguments_give_items_that_are_valid_for_the_openai_package(kind: str) -> None:
    schema = accepted_schema(kind, {}) or {}
    properties = schema.get("properties") or schema["else"]["properties"]

    @given(st.dictionaries(st.sampled_from(sorted(properties)), ARGUMENT_VALUES))
    def check(arguments: Json) -> None:
        fit = check_text(schema, json.dumps(arguments))
        if not fit.fault:
            for event in emit_stream([ItemAdded(build_client_item(kind, fit.text))]):
                check_event(json.loads(msgspec.json.encode(event)))

    check()


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
def test_shell_commands_are_accepted_in_several_forms(arguments: Json, commands: list[str]) -> None:
    assert build_item("shell", **arguments)["action"]["commands"] == commands


@pytest.mark.shows("E.24")
def test_a_shell_call_has_its_limits_and_environment() -> None:
    assert build_item("shell", commands=["ls"], timeout_ms=1000.0, max_output_length=None) == {
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
def test_a_local_shell_call_has_a_program_and_its_arguments(arguments: Json, action: Json) -> None:
    made = {key: value for key, value in build_item("local_shell", **arguments)["action"].items() if value is not None}
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
    assert build_item("apply_patch", **({"operation": arguments} if wrapped else arguments))["operation"] == expected


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
def test_invalid_arguments_give_a_short_error(kind: str, arguments: Json, fault: str) -> None:
    found = find_violation(accepted_schema(kind, {}) or {}, arguments)
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
def test_a_truncated_call_is_an_incomplete_item(kind: str, arguments: str, expected: Json) -> None:
    truncated = build_truncated_item(kind, arguments)
    assert truncated is not None
    assert truncated.status == "incomplete"
    assert client_call_arguments(truncated) == expected


def test_a_tool_search_needs_no_arguments() -> None:
    assert client_call_arguments(build_client_item("tool_search", " ")) == {}


@pytest.mark.parametrize("arguments", ["", "[]", "{", '{"commands": 5}'])
def test_unchecked_invalid_arguments_raise_invalid_call(arguments: str) -> None:
    with pytest.raises(InvalidCall):
        build_client_item("shell", arguments)


def test_a_truncated_patch_gives_no_item_because_patches_have_no_incomplete_status() -> None:
    assert build_truncated_item("apply_patch", '{"type": "delete_file", "path": "a"') is None


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
def test_tools_not_run_by_the_client_are_ignored_and_rejected_if_required(tool: Json) -> None:
    made = render_request(tools=[tool])
    assert made.offered.offers == {}
    assert made.offered.ignored == (tool["type"],)
    with pytest.raises(UnsupportedParameter):
        render_request(tools=[tool], tool_choice="required")


@pytest.mark.parametrize("kind", ["shell", "apply_patch"])
def test_a_client_tool_can_be_chosen_by_its_type(kind: str) -> None:
    prompt = render_request(tools=[*DECLARATIONS.values()], tool_choice={"type": kind}).prompt
    assert prompt.tool_choice == {"type": "function", "function": {"name": kind}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]}
    prompt = render_request(tools=[*DECLARATIONS.values()], tool_choice=allowed).prompt
    assert [tool["function"]["name"] for tool in prompt.tools] == [kind]


def test_a_function_with_the_name_of_a_client_tool_keeps_that_name() -> None:
    made = render_request(tools=[{"type": "function", "name": "shell"}, SHELL])
    names = {offer.kind: name for name, offer in made.offered.offers.items()}
    assert names["function"] == "shell"
    assert names["shell"].startswith("shell_")
    result = render_messages(
        user_message(),
        {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}},
        tools=[{"type": "function", "name": "shell"}, SHELL],
    )
    assert result[1]["tool_calls"][0]["function"]["name"] == names["shell"]


def test_skills_of_a_local_environment_are_in_the_description() -> None:
    skill = {"name": "pdf", "description": "Fills in forms.", "path": "skills/pdf"}
    local = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    assert "- pdf (skills/pdf): Fills in forms." in render_functions(local)["shell"]["description"]


# ---- deferred tools


@pytest.mark.shows("E.23")
def test_deferred_tools_are_not_offered_before_a_search_finds_them() -> None:
    made = render_request(tools=[SEARCH, DEFERRED, NAMESPACE])
    assert list(made.offered.offers) == ["tool_search", "crm__add"]
    assert list(made.offered.deferred) == ["map_of", "crm__find"]
    assert made.offered.ignored == ()
    description = made.offered.schemas["tool_search"]["function"]["description"]
    assert description.endswith("\n\nWhat can be found:\n- map_of: Draws a map.\n- crm: Customers.")


@pytest.mark.shows("E.23")
def test_found_tools_are_offered_and_listed_by_their_offered_names() -> None:
    items = [
        user_message(),
        {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"query": "maps"}},
        {"type": "tool_search_output", "call_id": "a", "execution": "client", "tools": [DEFERRED, NAMESPACE]},
    ]
    made = render_request(tools=[SEARCH, DEFERRED, NAMESPACE], input=items)
    assert list(made.offered.offers) == ["tool_search", "map_of", "crm__find", "crm__add"]
    assert made.prompt.messages[-1]["content"] == "These tools can be called now:\nmap_of\ncrm__find\ncrm__add"
    assert "What can be found" not in made.offered.schemas["tool_search"]["function"]["description"]


def test_an_empty_search_result_is_stated() -> None:
    items = [
        user_message(),
        {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"query": "maps"}},
        {"type": "tool_search_output", "call_id": "a", "execution": "client", "tools": []},
    ]
    assert render_messages(*items, tools=[SEARCH])[-1]["content"] == "No tools were found."


@pytest.mark.shows("E.23")
def test_without_tool_search_deferred_tools_are_offered_and_defer_loading_is_ignored() -> None:
    made = render_request(tools=[DEFERRED, NAMESPACE])
    assert list(made.offered.offers) == ["map_of", "crm__find", "crm__add"]
    assert made.offered.ignored == ("tools.defer_loading",)


def test_deferred_tools_of_an_mcp_server_are_not_offered_before_a_search() -> None:
    server = {
        "type": "mcp", "server_label": "maps", "server_url": "https://m.example", "defer_loading": True,
        "server_description": "All maps.",
    }  # fmt: skip
    listed = {"type": "mcp_list_tools", "server_label": "maps", "tools": [{"name": "draw", "input_schema": {}}]}
    made = render_request(tools=[SEARCH, server], input=[listed, user_message()])
    assert list(made.offered.offers) == ["tool_search"]
    assert made.offered.unlisted == ()
    assert "- maps: All maps." in made.offered.schemas["tool_search"]["function"]["description"]
    found = [
        {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"query": "maps"}},
        {"type": "tool_search_output", "call_id": "a", "execution": "client", "tools": [server]},
    ]
    assert list(render_request(tools=[SEARCH, server], input=[listed, user_message(), *found]).offered.offers)[1:] == [
        "maps__draw"
    ]
    assert render_request(tools=[SEARCH, server], input=[user_message(), *found]).offered.unlisted == ("maps",)


@pytest.mark.parametrize(
    ("choice", "fragment"),
    [({"type": "function", "name": "map_of"}, "deferred"), ({"type": "custom", "name": "x"}, "not a declared")],
)
def test_a_choice_of_a_deferred_or_unknown_tool_is_rejected_with_the_reason(choice: Json, fragment: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        render_request(tools=[SEARCH, DEFERRED], tool_choice=choice)
    assert fragment in refused.value.message


def test_allowed_tools_may_name_deferred_tools() -> None:
    tools = [{"type": "function", "name": "map_of"}, {"type": "namespace", "name": "crm"}, {"type": "tool_search"}]
    made = render_request(tools=[SEARCH, DEFERRED, NAMESPACE], tool_choice={"type": "allowed_tools", "tools": tools})
    assert list(made.offered.offers) == ["tool_search", "crm__add"]


def test_the_declared_description_and_schema_of_a_search_are_used() -> None:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    function = render_functions({**SEARCH, "description": "Ask me.", "parameters": parameters})["tool_search"]
    assert function == {"name": "tool_search", "description": "Ask me.", "parameters": parameters}


def test_a_search_schema_without_a_type_becomes_an_object_schema() -> None:
    parameters = {"properties": {"q": {"type": "string"}}}
    function = render_functions({**SEARCH, "parameters": parameters})["tool_search"]
    assert function["parameters"] == {"type": "object", **parameters}


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": "object", "properties": {"q": {"type": "strin"}}}])
def test_a_search_schema_that_is_not_a_valid_object_schema_is_rejected(parameters: Json) -> None:
    with pytest.raises(BadRequest) as refused:
        render_request(tools=[{**SEARCH, "parameters": parameters}])
    assert refused.value.param is not None
    assert refused.value.param.startswith("tools[0].parameters")
