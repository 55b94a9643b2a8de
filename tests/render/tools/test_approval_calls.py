"""A call that a client was asked about is a call to the model, whatever came of it."""

from typing import Any

from antiphon.core.prompt import Json
from tests.render.requests import messages, user

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


def answer(approve: bool, **more: Any) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve, **more}


def told(*items: Json) -> list[Json]:
    return messages(user("Buy it."), LIST, *items, tools=[SHOP])[1:]


def calls(made: list[Json]) -> list[tuple[str, str]]:
    functions = [call["function"] for message in made for call in message.get("tool_calls", ())]
    return [(function["name"], function["arguments"]) for function in functions]


def test_what_was_denied_is_a_call_that_was_not_run() -> None:
    made = told(REQUEST, answer(False, reason="too dear"))
    assert calls(made) == [("shop__buy", '{"n": 1}')]
    assert made[-1]["role"] == "tool"
    assert "did not allow this call: too dear" in made[-1]["content"]


def test_what_was_allowed_is_told_once_where_it_was_run() -> None:
    ran = {"type": "mcp_call", "id": "mcp_1", "server_label": "shop", "name": "buy", "arguments": '{"n": 1}'}
    made = told(REQUEST, answer(True), {**ran, "approval_request_id": "mcpr_1", "output": "bought", "error": None})
    assert calls(made) == [("shop__buy", '{"n": 1}')]
    assert [message["content"] for message in made if message["role"] == "tool"] == ["bought"]


def test_what_nobody_answered_was_not_run() -> None:
    made = told(REQUEST, user("Never mind."))
    assert calls(made) == [("shop__buy", '{"n": 1}')]
    assert [message["role"] for message in made] == ["assistant", "tool", "user"]
    assert "was not run" in made[1]["content"]


def test_several_that_were_asked_about_together_are_one_turn() -> None:
    made = told(REQUEST, {**REQUEST, "id": "mcpr_2"}, answer(False), user("No."))
    assert [message["role"] for message in made] == ["assistant", "tool", "tool", "user"]
