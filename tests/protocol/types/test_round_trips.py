"""Every item, part, tool, tool choice and event survives JSON, and is what the openai package says it is."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from antiphon.protocol.bodies.steering import SteerEvent
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types import events, items, parts
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Format, Response
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Tool
from tests.oracles.responses import _EVENT_CLASSES, check_event, check_response
from tests.protocol.types.samples import fullest, members, smallest, tag

EVENTS = members(events.StreamEvent) + members(SteerEvent)
ITEMS = members(items.InputItem)
OUTPUT_ITEMS = members(items.OutputItem)
EVERYTHING = [
    *EVENTS,
    *ITEMS,
    *members(Tool),
    *members(ToolChoice),
    *members(parts.MessagePart),
    *members(parts.Annotation),
    *members(parts.StreamedPart),
    *members(Format),
    Response,
]
# What the openai package has no place for in a Response.
UNTYPED_CHOICES = {"web_search", "web_search_2025_08_26"}


def name(cls: type[Struct]) -> str:
    return cls.__name__


def response(**fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(encode(Response(id="resp_1", created_at=1, model="m")))
    return made | fields


def sent(cls: type[Struct], sample: dict[str, Any]) -> dict[str, Any]:
    """What goes over the wire when `sample` came in and goes out again."""
    made: dict[str, Any] = msgspec.json.decode(encode(msgspec.convert(sample, cls)))
    return made


@pytest.mark.shows("A.16", "A.17")
@pytest.mark.parametrize("cls", EVERYTHING, ids=name)
@pytest.mark.parametrize("make", [smallest, fullest])
def test_every_wire_type_survives_json(cls: type[Struct], make: Any) -> None:
    value = msgspec.convert(make(cls), cls)
    assert msgspec.json.decode(encode(value), type=cls) == value


@pytest.mark.shows("A.23")
@pytest.mark.parametrize("cls", EVENTS, ids=name)
@pytest.mark.parametrize("make", [smallest, fullest])
def test_every_event_is_one_of_openai_s(cls: type[Struct], make: Any) -> None:
    event = sent(cls, make(cls))
    if "response" in event:
        event["response"] = response()
    if "item" in event:
        event["item"] = sent(items.Message, as_output(items.Message, fullest(items.Message)))
    check_event(event)


def test_no_event_of_openai_s_is_missing() -> None:
    assert {tag(cls) for cls in EVENTS} == _EVENT_CLASSES.keys() | {"keepalive"}


@pytest.mark.shows("A.23")
@pytest.mark.parametrize("cls", OUTPUT_ITEMS, ids=name)
@pytest.mark.parametrize("make", [smallest, fullest])
def test_every_output_item_is_one_of_openai_s(cls: type[Struct], make: Any) -> None:
    item = sent(cls, as_output(cls, make(cls)))
    check_response(response(output=[item]))
    check_event({"type": "response.output_item.done", "sequence_number": 0, "output_index": 0, "item": item})


def as_output(cls: type[Struct], item: dict[str, Any]) -> dict[str, Any]:
    """`item` as we send it: with an id, a status where there is one, and as an assistant's."""
    full = fullest(cls)
    item = item | {key: full[key] for key in ("id", "status", "call_id") if key in full}
    if cls is items.Message:
        content = [fullest(parts.OutputText), fullest(parts.RefusalPart)]
        item |= {"role": "assistant", "content": content}
    if cls is items.WebSearchCall:
        item |= {"action": full["action"]}
    return item


@pytest.mark.shows("A.17")
@pytest.mark.parametrize("cls", members(Tool), ids=name)
@pytest.mark.parametrize("make", [smallest, fullest])
def test_every_tool_is_one_of_openai_s(cls: type[Struct], make: Any) -> None:
    tool = sent(cls, make(cls))
    if tool["type"].startswith("web_search_preview"):
        tool = {key: held for key, held in tool.items() if key not in ("filters", "external_web_access")}
    elif tool["type"].startswith("web_search"):
        tool.pop("search_content_types", None)
    check_response(response(tools=[tool]))


@pytest.mark.shows("A.17")
@pytest.mark.parametrize("cls", members(ToolChoice), ids=name)
def test_every_tool_choice_is_one_of_openai_s(cls: type[Struct]) -> None:
    choice = sent(cls, fullest(cls))
    if choice["type"] in UNTYPED_CHOICES:
        with pytest.raises(AssertionError):
            check_response(response(tool_choice=choice))
    else:
        check_response(response(tool_choice=choice))


@pytest.mark.parametrize("word", ["none", "auto", "required"])
def test_a_tool_choice_may_be_a_word(word: str) -> None:
    assert msgspec.convert({"tool_choice": word}, CreateResponse).tool_choice == word
    check_response(response(tool_choice=word))


@pytest.mark.shows("A.23")
@pytest.mark.parametrize("make", [smallest, fullest])
def test_a_response_is_one_of_openai_s(make: Any) -> None:
    sample = make(Response) | {"output": [], "tools": [], "tool_choice": "auto", "instructions": "be brief"}
    check_response(sent(Response, sample))


def test_an_input_message_of_any_kind_of_part_survives_json() -> None:
    message = {"type": "message", "role": "user", "content": [fullest(cls) for cls in members(parts.MessagePart)]}
    assert sent(items.Message, message)["content"] == message["content"]
