"""Tools that MCP servers list are offered as the client allows, under names that are unique per server."""

from typing import Any

import pytest

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue, McpFailed
from antiphon.render.tools.offered_tools import OfferedTool
from tests.render.requests import render_messages, render_request, user_message


def make_server(label: str = "srv", **fields: Any) -> Json:
    return {"type": "mcp", "server_label": label, "server_url": f"https://{label}.example", **fields}


def make_tool(name: str, **fields: Any) -> Json:
    return {"name": name, "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}}, **fields}


def make_listing(*tools: Json, label: str = "srv") -> Json:
    return {"type": "mcp_list_tools", "id": f"mcpl_{label}", "server_label": label, "tools": list(tools)}


READ_TOOL = make_tool("read", annotations={"readOnlyHint": True})
WRITE_TOOL = make_tool("write", description="Writes it.")


def render_offers(*declared: Json, lists: list[Json], **fields: Any) -> dict[str, OfferedTool]:
    return render_request(tools=list(declared), input=[*lists, user_message()], **fields).offered.offers


@pytest.mark.shows("E.4")
def test_listed_tools_are_offered_under_the_server_label() -> None:
    made = render_request(
        tools=[make_server(server_description="Files.")], input=[make_listing(READ_TOOL, WRITE_TOOL), user_message()]
    )
    assert made.offered.offers == {
        "srv__read": OfferedTool("mcp", "read", "srv"),
        "srv__write": OfferedTool("mcp", "write", "srv"),
    }
    function = made.prompt.tools[1]["function"]
    assert function["description"] == "Files.\n\nWrites it."
    assert function["parameters"] == WRITE_TOOL["input_schema"]


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_a_server_declared_only_in_the_input_is_reported_as_ignored(kind: str) -> None:
    made = render_request(input=[{"type": kind, "tools": [make_server("late")]}, user_message()])
    assert (made.offered.ignored, made.offered.unlisted) == (("mcp",), ())
    again = render_request(
        tools=[make_server("late")], input=[{"type": kind, "tools": [make_server("late")]}, user_message()]
    )
    assert (again.offered.ignored, again.offered.unlisted) == ((), ("late",))


def test_a_server_without_a_listing_is_reported_as_unlisted() -> None:
    made = render_request(tools=[make_server(), make_server("other")], input=[make_listing(READ_TOOL), user_message()])
    assert made.offered.unlisted == ("other",)


def test_tools_of_one_name_on_two_servers_are_separate() -> None:
    lists = [make_listing(READ_TOOL), make_listing(READ_TOOL, label="other")]
    assert [*render_offers(make_server(), make_server("other"), lists=lists)] == ["srv__read", "other__read"]


def test_the_last_listing_of_a_server_counts() -> None:
    assert [*render_offers(make_server(), lists=[make_listing(READ_TOOL), make_listing(WRITE_TOOL)])] == ["srv__write"]


def test_the_listing_of_an_undeclared_server_offers_nothing() -> None:
    made = render_request(input=[make_listing(READ_TOOL), user_message()], tools=[make_server("other")])
    assert (made.offered.offers, made.offered.ignored) == ({}, ("mcp_list_tools",))


def test_an_invalid_input_schema_becomes_an_object_schema() -> None:
    made = render_request(
        tools=[make_server()], input=[make_listing({"name": "odd", "input_schema": "no"}), user_message()]
    )
    assert made.prompt.tools[0]["function"]["parameters"] == {"type": "object"}


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (["write"], ["srv__write"]),
        ([], []),
        ({"tool_names": ["read", "nothing"]}, ["srv__read"]),
        ({"read_only": True}, ["srv__read"]),
        ({"read_only": False}, ["srv__write"]),
        ({"tool_names": ["write"], "read_only": True}, []),
        ({}, ["srv__read", "srv__write"]),
        (None, ["srv__read", "srv__write"]),
    ],
)
@pytest.mark.shows("E.7")
def test_allowed_tools_are_names_or_a_filter(allowed: Any, names: list[str]) -> None:
    assert [*render_offers(make_server(allowed_tools=allowed), lists=[make_listing(READ_TOOL, WRITE_TOOL)])] == names


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("always", {"read", "write"}),
        ("never", set()),
        ({"never": {"tool_names": ["read"]}}, {"write"}),
        ({"never": {"read_only": True}}, {"write"}),
        ({"always": {"tool_names": ["write"]}}, {"write"}),
        ({"always": {"tool_names": ["read"]}, "never": {"tool_names": ["read", "write"]}}, {"read"}),
        ({"always": {"tool_names": ["write"]}, "never": {}}, {"read", "write"}),
        ({}, {"read", "write"}),
    ],
)
@pytest.mark.shows("E.9")
def test_approval_rules_select_the_tools_that_need_approval(rules: Any, expected: set[str]) -> None:
    offers = render_offers(make_server(require_approval=rules), lists=[make_listing(READ_TOOL, WRITE_TOOL)])
    assert {offer.name for offer in offers.values() if offer.approval} == expected


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ({"type": "mcp", "server_label": "srv"}, "required", ["srv__read", "srv__write"]),
        (
            {"type": "mcp", "server_label": "srv", "name": "read"},
            {"type": "function", "function": {"name": "srv__read"}},
            ["srv__read", "srv__write", "other__read"],
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "other"}]},
            "auto",
            ["other__read"],
        ),
    ],
)
def test_a_choice_names_a_server_or_one_of_its_tools(choice: Json, expected: Any, names: list[str]) -> None:
    lists = [make_listing(READ_TOOL, WRITE_TOOL), make_listing(READ_TOOL, label="other")]
    prompt = render_request(
        tools=[make_server(), make_server("other")], input=[*lists, user_message()], tool_choice=choice
    ).prompt
    assert prompt.tool_choice == expected
    assert [each["function"]["name"] for each in prompt.tools] == names


def test_a_choice_of_a_server_is_auto_until_its_tools_are_listed() -> None:
    prompt = render_request(
        tools=[make_server()], input=[user_message()], tool_choice={"type": "mcp", "server_label": "srv"}
    ).prompt
    assert prompt.tool_choice == "auto"


def test_a_choice_of_a_tool_missing_from_the_server_is_rejected() -> None:
    with pytest.raises(InvalidValue) as refused:
        render_offers(
            make_server(),
            lists=[make_listing(READ_TOOL)],
            tool_choice={"type": "mcp", "server_label": "srv", "name": "fly"},
        )
    assert refused.value.param == "tool_choice"


def test_a_finished_call_is_rendered_with_its_output() -> None:
    ran = {"type": "mcp_call", "id": "mcp_1", "server_label": "srv", "name": "read", "arguments": "{}", "output": "ok"}
    result = render_messages(make_listing(READ_TOOL), user_message(), ran, tools=[make_server()])
    assert result[1]["tool_calls"][0]["function"] == {"name": "srv__read", "arguments": "{}"}
    assert result[2]["content"] == "ok"


def test_a_failed_listing_is_retried_by_the_next_request() -> None:
    broken = {**make_listing(), "error": "It is not there."}
    at_once = render_request(tools=[make_server()], input=[user_message(), broken]).offered
    assert (at_once.unlisted, at_once.failed) == ((), {"srv": "It is not there."})
    later = render_request(tools=[make_server()], input=[user_message(), broken, user_message()]).offered
    assert (later.unlisted, later.failed) == (("srv",), {})
    listed = render_request(tools=[make_server()], input=[make_listing(READ_TOOL), user_message(), broken]).offered
    assert ([*listed.offers], listed.failed) == (["srv__read"], {})


@pytest.mark.parametrize("choice", ["required", {"type": "mcp", "server_label": "srv"}])
def test_a_required_choice_of_a_failed_server_reports_its_error(choice: Any) -> None:
    broken = {**make_listing(), "error": "It is not there."}
    with pytest.raises(McpFailed, match=r"It is not there\."):
        render_request(tools=[make_server()], input=[user_message(), broken], tool_choice=choice)
