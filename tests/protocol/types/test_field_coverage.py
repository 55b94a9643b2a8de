"""The types of the Responses API cover every field, item, tool, event and option of the openai package.

Covers `protocol/types/tool_events.py`.
"""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from openai.types import responses as theirs
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from openai.types.responses.response_create_params import ToolChoice as TheirToolChoice

from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.parts import MessagePart
from antiphon.protocol.types.request import CreateResponse, Includable
from antiphon.protocol.types.response import Effort, Response
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tool_events import StreamEvent
from antiphon.protocol.types.tools import Tool
from tests.protocol.decoding.requests import decode_fields
from tests.protocol.types.samples import get_tag, list_members


def get_openai_types(union: Any) -> set[str]:
    """Return the `type` of every typed dictionary in a union of the openai package."""
    if hasattr(union, "__total__"):
        return set(_iter_literals(get_type_hints(union).get("type")))
    return set().union(*map(get_openai_types, get_args(union)))


def _iter_literals(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for inner in get_args(hint):
            yield from _iter_literals(inner)


def get_tags(union: Any) -> set[str]:
    return {get_tag(cls) for cls in list_members(union)}


@pytest.mark.shows("A.13")
def test_no_field_of_a_request_is_missing() -> None:
    kinds = (ResponseCreateParamsBase, ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming)
    sent = {name for kind in kinds for name in get_type_hints(kind)}
    assert len(sent) > 25
    assert sent - set(CreateResponse.__struct_fields__) == set()


@pytest.mark.shows("A.20")
def test_no_field_of_a_response_is_missing() -> None:
    assert set(theirs.Response.model_fields) - set(Response.__struct_fields__) == set()


@pytest.mark.shows("A.16")
def test_no_kind_of_item_or_part_is_missing() -> None:
    assert len(get_openai_types(theirs.ResponseInputItemParam)) > 25
    assert get_openai_types(theirs.ResponseInputItemParam) - get_tags(InputItem) == set()
    assert get_openai_types(theirs.ResponseInputContentParam) - get_tags(MessagePart) == set()


@pytest.mark.shows("A.17")
def test_no_kind_of_tool_or_tool_choice_is_missing() -> None:
    assert len(get_openai_types(theirs.ToolParam)) > 15
    assert get_openai_types(theirs.ToolParam) - get_tags(Tool) == set()
    assert get_openai_types(TheirToolChoice) - get_tags(ToolChoice) == set()


@pytest.mark.shows("A.23")
def test_no_kind_of_event_is_missing_and_none_is_invented() -> None:
    """The SDK helpers raise on unknown event types; `keepalive` is the only unlisted type that they accept."""
    union, *_ = get_args(theirs.ResponseStreamEvent)  # the union is annotated with its discriminator
    listed = {
        event_type for event in get_args(union) for event_type in _iter_literals(event.model_fields["type"].annotation)
    }
    assert len(listed) > 50
    assert get_tags(StreamEvent) ^ listed == {"keepalive"}


@pytest.mark.shows("A4.1")
def test_every_include_target_is_accepted() -> None:
    targets = list(get_args(Includable))
    assert set(get_args(theirs.ResponseIncludable)) - set(targets) == set()
    assert decode_fields(include=targets).include == targets


@pytest.mark.shows("A.35")
@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_every_reasoning_effort_is_accepted(effort: Effort) -> None:
    assert decode_fields(reasoning={"effort": effort}).reasoning.effort == effort
