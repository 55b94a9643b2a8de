"""Every item, part, tool, tool choice and event survives a JSON round trip and matches its openai type.

Covers `protocol/bodies/websocket.py`.
"""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from antiphon.protocol.bodies.websocket import SteerEvent
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types import items, parts
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Format, Response
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tool_events import StreamEvent
from antiphon.protocol.types.tools import Tool
from tests.oracles.responses import _EVENT_CLASSES, check_event, check_response
from tests.protocol.types.samples import get_tag, list_members, make_full, make_minimal

EVENTS = list_members(StreamEvent) + list_members(SteerEvent)
ITEMS = list_members(items.InputItem)
OUTPUT_ITEMS = list_members(items.OutputItem)
ALL_TYPES = [
    *EVENTS,
    *ITEMS,
    *list_members(Tool),
    *list_members(ToolChoice),
    *list_members(parts.MessagePart),
    *list_members(parts.Annotation),
    *list_members(parts.StreamedPart),
    *list_members(Format),
    Response,
]
# Tool choices that the Response type of the openai package does not include.
UNTYPED_CHOICES = {"web_search", "web_search_2025_08_26"}


def get_class_name(cls: type[Struct]) -> str:
    return cls.__name__


def make_response(**fields: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encode(Response(id="resp_1", created_at=1, model="m")))
    return decoded | fields


def round_trip(cls: type[Struct], sample: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON that the server writes after reading `sample`."""
    decoded: dict[str, Any] = msgspec.json.decode(encode(msgspec.convert(sample, cls)))
    return decoded


@pytest.mark.shows("A.16", "A.17")
@pytest.mark.parametrize("cls", ALL_TYPES, ids=get_class_name)
@pytest.mark.parametrize("make", [make_minimal, make_full])
def test_every_wire_type_survives_json(cls: type[Struct], make: Any) -> None:
    value = msgspec.convert(make(cls), cls)
    assert msgspec.json.decode(encode(value), type=cls) == value


@pytest.mark.shows("A.23")
@pytest.mark.parametrize("cls", EVENTS, ids=get_class_name)
@pytest.mark.parametrize("make", [make_minimal, make_full])
def test_every_event_matches_its_openai_type(cls: type[Struct], make: Any) -> None:
    event = round_trip(cls, make(cls))
    if "response" in event:
        event["response"] = make_response()
    if "item" in event:
        event["item"] = round_trip(items.Message, to_output_item(items.Message, make_full(items.Message)))
    check_event(event)


def test_every_openai_event_type_is_defined() -> None:
    assert {get_tag(cls) for cls in EVENTS} == _EVENT_CLASSES.keys() | {"keepalive"}


@pytest.mark.shows("A.23")
@pytest.mark.parametrize("cls", OUTPUT_ITEMS, ids=get_class_name)
@pytest.mark.parametrize("make", [make_minimal, make_full])
def test_every_output_item_matches_its_openai_type(cls: type[Struct], make: Any) -> None:
    item = round_trip(cls, to_output_item(cls, make(cls)))
    check_response(make_response(output=[item]))
    check_event({"type": "response.output_item.done", "sequence_number": 0, "output_index": 0, "item": item})


def to_output_item(cls: type[Struct], item: dict[str, Any]) -> dict[str, Any]:
    """Return `item` as the server sends it: with an id, a status where the type has one, and as an assistant
    message.
    """
    full = make_full(cls)
    item = item | {key: full[key] for key in ("id", "status", "call_id") if key in full}
    if cls is items.Message:
        content = [make_full(parts.OutputText), make_full(parts.RefusalPart)]
        item |= {"role": "assistant", "content": content}
    if cls is items.WebSearchCall:
        item |= {"action": full["action"]}
    return item


@pytest.mark.shows("A.17")
@pytest.mark.parametrize("cls", list_members(Tool), ids=get_class_name)
@pytest.mark.parametrize("make", [make_minimal, make_full])
def test_every_tool_matches_its_openai_type(cls: type[Struct], make: Any) -> None:
    tool = round_trip(cls, make(cls))
    if tool["type"].startswith("web_search_preview"):
        tool = {key: value for key, value in tool.items() if key not in ("filters", "external_web_access")}
    elif tool["type"].startswith("web_search"):
        tool.pop("search_content_types", None)
    check_response(make_response(tools=[tool]))


@pytest.mark.shows("A.17")
@pytest.mark.parametrize("cls", list_members(ToolChoice), ids=get_class_name)
def test_every_tool_choice_matches_its_openai_type(cls: type[Struct]) -> None:
    choice = round_trip(cls, make_full(cls))
    if choice["type"] in UNTYPED_CHOICES:
        with pytest.raises(AssertionError):
            check_response(make_response(tool_choice=choice))
    else:
        check_response(make_response(tool_choice=choice))


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_a_tool_choice_may_be_a_string(mode: str) -> None:
    assert msgspec.convert({"tool_choice": mode}, CreateResponse).tool_choice == mode
    check_response(make_response(tool_choice=mode))


@pytest.mark.shows("A.23")
@pytest.mark.parametrize("make", [make_minimal, make_full])
def test_a_response_matches_its_openai_type(make: Any) -> None:
    sample = make(Response) | {"output": [], "tools": [], "tool_choice": "auto", "instructions": "be brief"}
    check_response(round_trip(Response, sample))


def test_an_input_message_with_every_part_type_survives_json() -> None:
    message = {
        "type": "message",
        "role": "user",
        "content": [make_full(cls) for cls in list_members(parts.MessagePart)],
    }
    assert round_trip(items.Message, message)["content"] == message["content"]
