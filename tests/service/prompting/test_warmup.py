from typing import Any

import msgspec
import pytest

from antiphon.errors import MissingParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.events import Completed
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.connection_cache import Recent
from tests.oracles.responses import accumulate, check_event
from tests.service.service_nodes import TENANT, House, heard, houses, types, wire

pytestmark = pytest.mark.anyio

LONG = "A long instruction that many a turn begins with. " * 40


async def created(house: House, **body: Any) -> tuple[Response, list[str]]:
    accepted = await house.create(stream=True, **body)
    assert accepted.source is not None
    events = await heard(accepted.source)
    for event in events:
        check_event(msgspec.to_builtins(event))
    assert isinstance(events[-1], Completed)
    return events[-1].response, types(events)


@pytest.mark.shows("F.3")
@pytest.mark.parametrize("asked", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}])
async def test_a_warm_up_says_nothing_and_what_continues_it_is_warm(asked: dict[str, Any]) -> None:
    async with houses() as [house]:
        cold, told = await created(house, input=LONG, **asked)
        assert told == ["response.created", "response.in_progress", "response.completed"]
        assert (cold.output, cold.status) == ([], "completed")
        warm, _ = await created(house, input="And now?", previous_response_id=cold.id)
    assert cold.usage is not None
    assert cold.usage.input_tokens > 100
    assert cold.usage.output_tokens == 0
    assert warm.usage is not None
    assert warm.usage.input_tokens_details.cached_tokens > 100
    assert warm.output


@pytest.mark.shows("F.3")
async def test_a_stored_warm_up_is_told_again_byte_for_byte() -> None:
    async with houses() as [house]:
        accepted = await house.create(stream=True, input=LONG, generate=False)
        assert accepted.source is not None
        events = await heard(accepted.source)
        assert isinstance(events[-1], Completed)
        again = await house.heard(events[-1].response.id)
    assert wire(again) == wire(events)
    assert accumulate([msgspec.to_builtins(event) for event in again]).output == []


async def test_instructions_alone_are_enough_to_warm_up_with() -> None:
    async with houses() as [house]:
        warm, _ = await created(house, input=[], instructions=LONG, generate=False)
        with pytest.raises(MissingParameter):
            await house.create(input=[], instructions=LONG)
        with pytest.raises(MissingParameter):
            await house.create(input=[], generate=False)
    assert warm.usage is not None
    assert warm.usage.input_tokens > 100


async def test_a_model_whose_template_wants_a_user_is_warmed_up_without_one() -> None:
    async with houses() as [house]:
        warm, _ = await created(house, input=[{"role": "developer", "content": LONG}], generate=False)
        await created(house, input="And now?", previous_response_id=warm.id)
        seen = [[message["role"] for message in work.prompt.messages] for work in house.engine.seen]  # type: ignore[union-attr]  # chats
    assert [roles[-1] for roles in seen] == ["user", "user"]
    assert [roles.count("user") for roles in seen] == [1, 1]  # what stood in for the user is not kept


async def test_a_warm_up_demands_nothing_of_what_is_not_said() -> None:
    async with houses() as [house]:
        tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}
        warm, _ = await created(house, input=LONG, generate=False, tools=[tool], tool_choice="required")
    assert warm.output == []


@pytest.mark.shows("F.4")
async def test_a_stored_response_that_continues_one_that_is_not_holds_all_of_it() -> None:
    recent = Recent()
    async with houses() as [house]:
        warm = await _told(house, recent, input="The first.", store=False)
        kept = await _told(house, recent, input="The second.", previous_response_id=warm.id)
        assert kept.previous_response_id == warm.id
        third, _ = await created(house, input="The third.", previous_response_id=kept.id)
        row = await house.store.get(TENANT, kept.id)
    assert row is not None
    assert [text in row.request.decode() for text in ("The first.", "The second.", "The third.")] == [True, True, False]
    assert third.usage is not None
    assert kept.usage is not None
    assert third.usage.input_tokens > kept.usage.input_tokens


async def _told(house: House, recent: Recent, **body: Any) -> Response:
    """Over a connection that remembers."""
    decoded = decode_create(msgspec.json.encode({"model": "fake", "stream": True, **body}), Limits())
    accepted = await house.responses.create(TENANT, decoded, recent=recent)
    assert accepted.source is not None
    events = await heard(accepted.source)
    assert isinstance(events[-1], Completed)
    assert (accepted.past is None) == bool(events[-1].response.store)
    if accepted.past is not None:
        recent.remember(None, events[-1].response, accepted.past, 100)
    return events[-1].response
