"""Warm-ups: responses without output that fill the engine's prefix cache for the responses that continue them."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from antiphon.errors import MissingParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.events import Completed
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.history_cache import ConnectionCache
from tests.oracles.responses import accumulate, check_event
from tests.service.service_nodes import TENANT, ServiceNode, list_types, read_all_events, start_nodes, to_sse_bytes

pytestmark = pytest.mark.anyio

LONG = "A long instruction that many a turn begins with. " * 40


async def create_stream(node: ServiceNode, **body: Any) -> tuple[Response, list[str]]:
    """Create a streamed response and return it with the types of its events."""
    accepted = await node.create(stream=True, **body)
    assert accepted.source is not None
    events = await read_all_events(accepted.source)
    for event in events:
        check_event(msgspec.json.decode(msgspec.json.encode(event)))
    assert isinstance(events[-1], Completed)
    return events[-1].response, list_types(events)


@pytest.mark.shows("F.3")
@pytest.mark.parametrize("fields", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}])
async def test_a_warmup_has_no_output_and_its_successor_hits_the_cache(fields: dict[str, Any]) -> None:
    async with start_nodes() as [node]:
        cold, event_types = await create_stream(node, input=LONG, **fields)
        assert event_types == ["response.created", "response.in_progress", "response.completed"]
        assert (cold.output, cold.status, cold.ignored_fields) == ([], "completed", UNSET)
        warm, _ = await create_stream(node, input="And now?", previous_response_id=cold.id)
    assert cold.usage is not None
    assert cold.usage.input_tokens > 100
    assert cold.usage.output_tokens == 0
    assert warm.usage is not None
    assert warm.usage.input_tokens_details.cached_tokens > 100
    assert warm.output


@pytest.mark.shows("F.3")
async def test_a_stored_warmup_is_replayed_byte_for_byte() -> None:
    async with start_nodes() as [node]:
        accepted = await node.create(stream=True, input=LONG, generate=False)
        assert accepted.source is not None
        events = await read_all_events(accepted.source)
        assert isinstance(events[-1], Completed)
        again = await node.replay_events(events[-1].response.id)
    assert to_sse_bytes(again) == to_sse_bytes(events)
    assert accumulate([msgspec.to_builtins(event) for event in again]).output == []


async def test_instructions_alone_suffice_for_a_warmup() -> None:
    async with start_nodes() as [node]:
        warm, _ = await create_stream(node, input=[], instructions=LONG, generate=False)
        with pytest.raises(MissingParameter):
            await node.create(input=[], instructions=LONG)
        with pytest.raises(MissingParameter):
            await node.create(input=[], generate=False)
    assert warm.usage is not None
    assert warm.usage.input_tokens > 100


async def test_a_warmup_without_a_user_message_gets_a_placeholder() -> None:
    async with start_nodes() as [node]:
        warm, _ = await create_stream(node, input=[{"role": "developer", "content": LONG}], generate=False)
        await create_stream(node, input="And now?", previous_response_id=warm.id)
        seen = [[message["role"] for message in request.prompt.messages] for request in node.engine.seen]  # type: ignore[union-attr]  # chat prompts
    assert [roles[-1] for roles in seen] == ["user", "user"]
    assert [roles.count("user") for roles in seen] == [1, 1]  # the placeholder for the user message is not stored


async def test_a_warmup_does_not_enforce_output_requirements() -> None:
    async with start_nodes() as [node]:
        tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}
        warm, _ = await create_stream(node, input=LONG, generate=False, tools=[tool], tool_choice="required")
    assert warm.output == []


@pytest.mark.shows("F.4")
async def test_a_stored_response_that_continues_an_unstored_one_holds_its_input() -> None:
    connection_cache = ConnectionCache()
    async with start_nodes() as [node]:
        warm = await _create_on_connection(node, connection_cache, input="The first.", store=False)
        stored = await _create_on_connection(node, connection_cache, input="The second.", previous_response_id=warm.id)
        assert stored.previous_response_id == warm.id
        third, _ = await create_stream(node, input="The third.", previous_response_id=stored.id)
        row = await node.store.get(TENANT, stored.id)
    assert row is not None
    assert [text in row.request.decode() for text in ("The first.", "The second.", "The third.")] == [True, True, False]
    assert third.usage is not None
    assert stored.usage is not None
    assert third.usage.input_tokens > stored.usage.input_tokens


async def _create_on_connection(node: ServiceNode, connection_cache: ConnectionCache, **body: Any) -> Response:
    """Create a response over a connection that caches its responses."""
    decoded = decode_create(msgspec.json.encode({"model": "fake", "stream": True, **body}), Limits())
    accepted = await node.responses.create(TENANT, decoded, connection_cache=connection_cache)
    assert accepted.source is not None
    events = await read_all_events(accepted.source)
    assert isinstance(events[-1], Completed)
    assert (accepted.history is None) == bool(events[-1].response.store)
    if accepted.history is not None:
        connection_cache.remember(None, events[-1].response, accepted.history, 100)
    return events[-1].response
