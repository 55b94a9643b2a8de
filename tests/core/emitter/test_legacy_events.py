"""Events under other names, and what stands between them: what no engine of the tests brings about by itself."""

from typing import Any

import msgspec
import pytest

from antiphon.core.emitter.legacy_events import Beside, Retelling
from antiphon.core.emitter.tool_items import ended
from antiphon.ids import new_id
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.builtin_items import (
    CodeImage,
    CodeInterpreterCall,
    CodeLogs,
    SearchAction,
    Source,
    WebSearchCall,
)
from antiphon.protocol.types.event_bases import Event

OLDER = Retelling("openai", "on", Beside())


def numbered(events: list[Event], first: int = 7) -> list[Event]:
    for number, event in enumerate(events, first):
        event.sequence_number = number
    return events


def told(events: list[Event], retelling: Retelling = OLDER) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(event) for event in retelling(events)]


@pytest.mark.shows("H3.6")
def test_what_code_gave_is_told_when_it_is_completed() -> None:
    outputs: list[CodeLogs | CodeImage] = [CodeLogs(logs="7"), CodeImage(url="https://x.example/1.png")]
    item = CodeInterpreterCall(id=new_id("ci"), status="completed", container_id="cntr_1", code="1", outputs=outputs)
    events = numbered([*ended(item, (str(item.id), 2))])
    completed = next(event for event in events if isinstance(event, ev.CodeInterpreterCallCompleted))
    (older,) = [event for event in told(events) if event["type"] == completed.type]
    assert older == {
        "type": "response.code_interpreter_call.completed",
        "sequence_number": completed.sequence_number,
        "item_id": item.id,
        "output_index": 2,
        "outputs": [{"type": "logs", "logs": "7"}, {"type": "image", "url": "https://x.example/1.png"}],
    }
    assert [event["type"] for event in told(events)] == [event.type for event in events]


@pytest.mark.shows("H3.3")
def test_sources_of_a_search_are_told_beside_its_item() -> None:
    action = SearchAction(query="q", sources=[Source(url="https://x.example")])
    item = WebSearchCall(id=new_id("ws"), status="completed", action=action)
    done, context = told(numbered([ev.OutputItemDone(output_index=0, item=item)]))
    assert done["type"] == "response.output_item.done"
    assert context == {
        "type": "response.additional_context",
        "sequence_number": 7,
        "sources": [{"type": "url", "url": "https://x.example"}],
    }


def test_of_what_the_client_has_nothing_is_told() -> None:
    place: dict[str, Any] = {"item_id": "rs", "output_index": 0, "content_index": 0}
    events = numbered([ev.ReasoningTextDelta(**place, delta=text) for text in "abc"])
    again = Retelling("open-responses", "off", Beside(after=8))
    assert told(events, again) == [
        {
            "type": "response.reasoning.delta",
            "sequence_number": 9,
            "item_id": "rs",
            "output_index": 0,
            "content_index": 0,
            "delta": "c",
        }
    ]
