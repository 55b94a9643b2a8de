"""Legacy event names and the events inserted between them, for events that no engine of the tests produces by
itself.

Covers `protocol/types/events.py`.
"""

from typing import Any, Literal

import msgspec
import pytest

from antiphon.core.emitter.legacy_events import LegacyEventAdapter, LegacyEventContext
from antiphon.core.emitter.tool_items import end_events
from antiphon.ids import new_id
from antiphon.protocol.types import events as ev
from antiphon.protocol.types import tool_events as tool_ev
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import (
    CodeImage,
    CodeInterpreterCall,
    CodeLogs,
    FunctionCall,
    SearchAction,
    Source,
    WebSearchCall,
)

LEGACY_ADAPTER = LegacyEventAdapter("openai", "on", LegacyEventContext())


def number_events(events: list[Event], first: int = 7) -> list[Event]:
    for number, event in enumerate(events, first):
        event.sequence_number = number
    return events


def adapt_events(events: list[Event], adapter: LegacyEventAdapter = LEGACY_ADAPTER) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(event) for event in adapter(events)]


@pytest.mark.shows("H3.6")
def test_code_outputs_are_added_to_the_completed_event() -> None:
    outputs: list[CodeLogs | CodeImage] = [CodeLogs(logs="7"), CodeImage(url="https://x.example/1.png")]
    item = CodeInterpreterCall(id=new_id("ci"), status="completed", container_id="cntr_1", code="1", outputs=outputs)
    events = number_events([*end_events(item, (str(item.id), 2))])
    completed = next(event for event in events if isinstance(event, tool_ev.CodeInterpreterCallCompleted))
    (adapted,) = [event for event in adapt_events(events) if event["type"] == completed.type]
    assert adapted == {
        "type": "response.code_interpreter_call.completed",
        "sequence_number": completed.sequence_number,
        "item_id": item.id,
        "output_index": 2,
        "outputs": [{"type": "logs", "logs": "7"}, {"type": "image", "url": "https://x.example/1.png"}],
    }
    assert [event["type"] for event in adapt_events(events)] == [event.type for event in events]


@pytest.mark.shows("H3.3")
def test_search_sources_are_sent_in_an_additional_context_event() -> None:
    action = SearchAction(query="q", sources=[Source(url="https://x.example")])
    item = WebSearchCall(id=new_id("ws"), status="completed", action=action)
    done, context = adapt_events(number_events([ev.OutputItemDone(output_index=0, item=item)]))
    assert done["type"] == "response.output_item.done"
    assert context == {
        "type": "response.additional_context",
        "sequence_number": 7,
        "sources": [{"type": "url", "url": "https://x.example"}],
    }


@pytest.mark.parametrize("mode", ["on", "strings"])
@pytest.mark.shows("H3.6")
def test_the_content_of_a_call_delta_is_an_object_or_json_in_a_string(mode: Literal["on", "strings"]) -> None:
    call = {"type": "tool_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{"}
    item = FunctionCall(id="fc_1", call_id="call_1", name="f", arguments="")
    events: list[Event] = [
        ev.OutputItemAdded(output_index=0, item=item),
        ev.FunctionCallArgumentsDelta(item_id="fc_1", output_index=0, delta="{"),
    ]
    adapted = adapt_events(number_events(events), LegacyEventAdapter("openai", mode, LegacyEventContext()))
    (delta,) = [event["delta"] for event in adapted if event["type"] == "response.tool_call.delta"]
    assert delta["content"] == [call if mode == "on" else msgspec.json.encode(call).decode()]


def test_events_that_the_client_already_has_are_skipped() -> None:
    position: dict[str, Any] = {"item_id": "rs", "output_index": 0, "content_index": 0}
    events = number_events([ev.ReasoningTextDelta(**position, delta=text) for text in "abc"])
    adapter = LegacyEventAdapter("open-responses", "off", LegacyEventContext(after_sequence=8))
    assert adapt_events(events, adapter) == [
        {
            "type": "response.reasoning.delta",
            "sequence_number": 9,
            "item_id": "rs",
            "output_index": 0,
            "content_index": 0,
            "delta": "c",
        }
    ]
