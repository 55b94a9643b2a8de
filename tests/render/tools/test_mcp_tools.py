"""What MCP servers listed is offered as the client allows it, under names that no other server can take."""

from typing import Any

import pytest

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue, McpFailed
from antiphon.render.tools.declarations import Offer
from tests.render.requests import messages, rendered, user


def server(label: str = "srv", **fields: Any) -> Json:
    return {"type": "mcp", "server_label": label, "server_url": f"https://{label}.example", **fields}


def tool(name: str, **fields: Any) -> Json:
    return {"name": name, "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}}, **fields}


def listing(*tools: Json, label: str = "srv") -> Json:
    return {"type": "mcp_list_tools", "id": f"mcpl_{label}", "server_label": label, "tools": list(tools)}


READS = tool("read", annotations={"readOnlyHint": True})
WRITES = tool("write", description="Writes it.")


def offered(*declared: Json, lists: list[Json], **fields: Any) -> dict[str, Offer]:
    return rendered(tools=list(declared), input=[*lists, user()], **fields).offered.offers


@pytest.mark.shows("E.4")
def test_what_a_server_listed_is_offered_under_its_label() -> None:
    made = rendered(tools=[server(server_description="Files.")], input=[listing(READS, WRITES), user()])
    assert made.offered.offers == {"srv__read": Offer("mcp", "read", "srv"), "srv__write": Offer("mcp", "write", "srv")}
    function = made.prompt.tools[1]["function"]
    assert function["description"] == "Files.\n\nWrites it."
    assert function["parameters"] == WRITES["input_schema"]


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_a_server_that_only_the_input_declares_is_named_for_nobody_asks_it(kind: str) -> None:
    made = rendered(input=[{"type": kind, "tools": [server("late")]}, user()])
    assert (made.offered.ignored, made.offered.unlisted) == (("mcp",), ())
    again = rendered(tools=[server("late")], input=[{"type": kind, "tools": [server("late")]}, user()])
    assert (again.offered.ignored, again.offered.unlisted) == ((), ("late",))


def test_a_server_that_was_not_asked_yet_is_named() -> None:
    made = rendered(tools=[server(), server("other")], input=[listing(READS), user()])
    assert made.offered.unlisted == ("other",)


def test_two_servers_keep_tools_of_one_name_apart() -> None:
    lists = [listing(READS), listing(READS, label="other")]
    assert [*offered(server(), server("other"), lists=lists)] == ["srv__read", "other__read"]


def test_the_last_list_of_a_server_counts() -> None:
    assert [*offered(server(), lists=[listing(READS), listing(WRITES)])] == ["srv__write"]


def test_a_list_of_a_server_that_is_not_declared_offers_nothing() -> None:
    made = rendered(input=[listing(READS), user()], tools=[server("other")])
    assert (made.offered.offers, made.offered.ignored) == ({}, ("mcp_list_tools",))


def test_a_schema_that_is_none_becomes_that_of_an_object() -> None:
    made = rendered(tools=[server()], input=[listing({"name": "odd", "input_schema": "no"}), user()])
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
    assert [*offered(server(allowed_tools=allowed), lists=[listing(READS, WRITES)])] == names


@pytest.mark.parametrize(
    ("rules", "asked"),
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
def test_approval_is_required_of_what_the_rules_say(rules: Any, asked: set[str]) -> None:
    offers = offered(server(require_approval=rules), lists=[listing(READS, WRITES)])
    assert {offer.name for offer in offers.values() if offer.approval} == asked


@pytest.mark.parametrize(
    ("choice", "made", "names"),
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
def test_a_choice_names_a_server_or_one_of_its_tools(choice: Json, made: Any, names: list[str]) -> None:
    lists = [listing(READS, WRITES), listing(READS, label="other")]
    prompt = rendered(tools=[server(), server("other")], input=[*lists, user()], tool_choice=choice).prompt
    assert prompt.tool_choice == made
    assert [each["function"]["name"] for each in prompt.tools] == names


def test_a_choice_of_a_server_waits_until_it_was_asked() -> None:
    prompt = rendered(tools=[server()], input=[user()], tool_choice={"type": "mcp", "server_label": "srv"}).prompt
    assert prompt.tool_choice == "auto"


def test_a_choice_of_a_tool_that_the_server_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidValue) as refused:
        offered(server(), lists=[listing(READS)], tool_choice={"type": "mcp", "server_label": "srv", "name": "fly"})
    assert refused.value.param == "tool_choice"


def test_a_call_that_was_run_is_told_with_what_came_of_it() -> None:
    ran = {"type": "mcp_call", "id": "mcp_1", "server_label": "srv", "name": "read", "arguments": "{}", "output": "ok"}
    said = messages(listing(READS), user(), ran, tools=[server()])
    assert said[1]["tool_calls"][0]["function"] == {"name": "srv__read", "arguments": "{}"}
    assert said[2]["content"] == "ok"


def test_a_server_that_could_not_be_asked_is_asked_again_by_the_next_request() -> None:
    broken = {**listing(), "error": "It is not there."}
    at_once = rendered(tools=[server()], input=[user(), broken]).offered
    assert (at_once.unlisted, at_once.failed) == ((), {"srv": "It is not there."})
    later = rendered(tools=[server()], input=[user(), broken, user()]).offered
    assert (later.unlisted, later.failed) == (("srv",), {})
    known = rendered(tools=[server()], input=[listing(READS), user(), broken]).offered
    assert ([*known.offers], known.failed) == (["srv__read"], {})


@pytest.mark.parametrize("choice", ["required", {"type": "mcp", "server_label": "srv"}])
def test_a_demand_that_a_broken_server_cannot_meet_says_what_is_wrong_with_it(choice: Any) -> None:
    broken = {**listing(), "error": "It is not there."}
    with pytest.raises(McpFailed, match=r"It is not there\."):
        rendered(tools=[server()], input=[user(), broken], tool_choice=choice)
