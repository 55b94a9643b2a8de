"""An MCP call with an approval request is rendered as a call for the model, whether approved, denied or unanswered."""

from typing import Any

from antiphon.core.prompt import Json
from tests.render.requests import render_messages, user_message

LIST: Json = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "shop",
    "tools": [{"name": "buy", "input_schema": {"type": "object"}}],
}
SHOP: Json = {"type": "mcp", "server_label": "shop", "server_url": "https://shop.example/mcp"}
REQUEST: Json = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "shop",
    "name": "buy",
    "arguments": '{"n": 1}',
}


def make_approval(approve: bool, **more: Any) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve, **more}


def render_items(*items: Json) -> list[Json]:
    return render_messages(user_message("Buy it."), LIST, *items, tools=[SHOP])[1:]


def list_calls(made: list[Json]) -> list[tuple[str, str]]:
    functions = [call["function"] for message in made for call in message.get("tool_calls", ())]
    return [(function["name"], function["arguments"]) for function in functions]


def test_a_denied_call_is_rendered_as_not_allowed() -> None:
    made = render_items(REQUEST, make_approval(False, reason="too dear"))
    assert list_calls(made) == [("shop__buy", '{"n": 1}')]
    assert made[-1]["role"] == "tool"
    assert "did not allow this call: too dear" in made[-1]["content"]


def test_an_approved_call_is_rendered_once_with_its_output() -> None:
    ran = {"type": "mcp_call", "id": "mcp_1", "server_label": "shop", "name": "buy", "arguments": '{"n": 1}'}
    made = render_items(
        REQUEST, make_approval(True), {**ran, "approval_request_id": "mcpr_1", "output": "bought", "error": None}
    )
    assert list_calls(made) == [("shop__buy", '{"n": 1}')]
    assert [message["content"] for message in made if message["role"] == "tool"] == ["bought"]


def test_an_unanswered_approval_is_rendered_as_not_run() -> None:
    made = render_items(REQUEST, user_message("Never mind."))
    assert list_calls(made) == [("shop__buy", '{"n": 1}')]
    assert [message["role"] for message in made] == ["assistant", "tool", "user"]
    assert "was not run" in made[1]["content"]


def test_consecutive_approval_requests_are_one_turn() -> None:
    made = render_items(REQUEST, {**REQUEST, "id": "mcpr_2"}, make_approval(False), user_message("No."))
    assert [message["role"] for message in made] == ["assistant", "tool", "tool", "user"]
