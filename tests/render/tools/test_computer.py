"""The computer as a function: its schema, the actions that are accepted, and their items."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import ItemAdded
from antiphon.core.prompt import Json
from antiphon.protocol.schemas.schema_check import check_text, find_violation
from antiphon.protocol.types.tools import ComputerTool, ComputerUsePreviewTool
from antiphon.render.tools.client_calls import build_client_item, client_call_arguments
from antiphon.render.tools.client_tools import accepted_schema
from antiphon.render.tools.computer import Screen, make_computer_function
from tests.core.emitter.streams import emit_stream
from tests.oracles.responses import check_event

PREVIEW = ComputerUsePreviewTool(display_width=640, display_height=480, environment="mac")
OFFERED: dict[str, Json] = {
    "computer": make_computer_function(ComputerTool(), Screen(640, 480)).parameters or {},
    "computer_use_preview": make_computer_function(PREVIEW).parameters or {},
}
NUMBERS = st.one_of(st.integers(-2, 642), st.sampled_from([1.0, "3", None, 2.5, 10**30]))
KEYS = st.one_of(st.none(), st.lists(st.text(max_size=3), max_size=3))
POINTS = st.lists(st.fixed_dictionaries({"x": NUMBERS, "y": NUMBERS}), max_size=3)
ACTIONS = st.fixed_dictionaries(
    {"type": st.sampled_from(["click", "double_click", "drag", "keypress", "move", "scroll", "type", "wait", "fly"])},
    optional={
        "x": NUMBERS, "y": NUMBERS, "scroll_x": NUMBERS, "scroll_y": NUMBERS, "keys": KEYS, "path": POINTS,
        "button": st.sampled_from(["left", "wheel", "middle"]), "text": st.text(max_size=3),
    },
)  # fmt: skip


def list_variants(kind: str) -> list[Json]:
    properties = OFFERED[kind]["properties"]
    variants: list[Json] = (properties.get("action") or properties["actions"]["items"])["anyOf"]
    return variants


@pytest.mark.parametrize("kind", OFFERED)
@pytest.mark.shows("E1.1")
def test_the_schema_fits_the_rules_for_strict_functions(kind: str) -> None:
    for variant in [OFFERED[kind], *list_variants(kind)]:
        assert variant["required"] == [*variant["properties"]]
        assert variant["additionalProperties"] is False


@pytest.mark.parametrize("kind", OFFERED)
@pytest.mark.shows("E1.1")
@given(data=st.data())
def test_accepted_actions_are_on_the_screen_and_valid_for_the_openai_package(kind: str, data: st.DataObject) -> None:
    schema = accepted_schema(kind, OFFERED[kind]) or {}
    arguments: Any = data.draw(st.one_of(ACTIONS, st.fixed_dictionaries({"action": ACTIONS})))
    fit = check_text(schema, json.dumps(arguments))
    if fit.fault:
        return
    item: Any = build_client_item(kind, fit.text, OFFERED[kind])
    for event in emit_stream([ItemAdded(item)]):
        check_event(json.loads(msgspec.json.encode(event)))
    action = item.action if kind == "computer_use_preview" else item.actions[0]
    points = getattr(action, "path", [action] if hasattr(action, "x") else [])
    assert all(0 <= point.x < 640 and 0 <= point.y < 480 for point in points)


@pytest.mark.parametrize("kind", OFFERED)
@pytest.mark.shows("E1.1")
def test_actions_that_are_offered_are_accepted_and_preserved(kind: str) -> None:
    action = {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 9, "keys": ["CTRL"]}
    arguments = {"actions": [action]} if kind == "computer" else {"action": action}
    assert not find_violation(OFFERED[kind], arguments)
    assert not find_violation(accepted_schema(kind, OFFERED[kind]) or {}, arguments)
    item = build_client_item(kind, json.dumps(arguments), OFFERED[kind])
    assert msgspec.to_builtins(client_call_arguments(item)) == arguments


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, '"actions" is a required property'),
        ({"actions": []}, "less than 1 item"),
        ({"actions": [{"type": "wait"}] * 33}, '[{"type":"wait"}'),
        ({"actions": [{"type": "click", "y": 1}]}, '"x" is a required property'),
        ({"actions": [{"type": "click", "x": 640, "y": 1}]}, "640 is greater than the maximum of 639"),
        ({"action": {"type": "fly"}}, '"fly" is not one of'),
        ({"type": "keypress"}, '"keys" is a required property'),
    ],
)
@pytest.mark.shows("D.13", "E1.3")
def test_a_fault_names_the_wrong_field(arguments: Json, fault: str) -> None:
    assert fault in find_violation(accepted_schema("computer", OFFERED["computer"]) or {}, arguments)
