"""Whatever the openai package can send or read has a place in our types."""

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

from antiphon.protocol.types.events import StreamEvent
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.parts import MessagePart
from antiphon.protocol.types.request import CreateResponse, Includable
from antiphon.protocol.types.response import Effort, Response
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Tool
from tests.protocol.decoding.requests import request
from tests.protocol.types.samples import members, tag


def their_types(union: Any) -> set[str]:
    """The `type` of every typed dictionary in a union of the openai package."""
    if hasattr(union, "__total__"):
        return set(_words(get_type_hints(union).get("type")))
    return set().union(*map(their_types, get_args(union)))


def _words(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for inner in get_args(hint):
            yield from _words(inner)


def tags(union: Any) -> set[str]:
    return {tag(cls) for cls in members(union)}


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
    assert len(their_types(theirs.ResponseInputItemParam)) > 25
    assert their_types(theirs.ResponseInputItemParam) - tags(InputItem) == set()
    assert their_types(theirs.ResponseInputContentParam) - tags(MessagePart) == set()


@pytest.mark.shows("A.17")
def test_no_kind_of_tool_or_tool_choice_is_missing() -> None:
    assert len(their_types(theirs.ToolParam)) > 15
    assert their_types(theirs.ToolParam) - tags(Tool) == set()
    assert their_types(TheirToolChoice) - tags(ToolChoice) == set()


@pytest.mark.shows("A.23")
def test_no_kind_of_event_is_missing_and_none_is_invented() -> None:
    """An event that the SDK helpers do not know makes them throw; `keepalive` alone they take without listing it."""
    union, *_ = get_args(theirs.ResponseStreamEvent)  # it is annotated with how to tell its members apart
    listed = {word for event in get_args(union) for word in _words(event.model_fields["type"].annotation)}
    assert len(listed) > 50
    assert tags(StreamEvent) ^ listed == {"keepalive"}


@pytest.mark.shows("A4.1")
def test_every_include_target_is_accepted() -> None:
    known = list(get_args(Includable))
    assert set(get_args(theirs.ResponseIncludable)) - set(known) == set()
    assert request(include=known).include == known


@pytest.mark.shows("A.35")
@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_every_reasoning_effort_is_accepted(effort: Effort) -> None:
    assert request(reasoning={"effort": effort}).reasoning.effort == effort
