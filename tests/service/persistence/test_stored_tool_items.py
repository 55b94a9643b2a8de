"""Items of server-side tools are stored like all others.

They appear in responses, histories, conversations, input lists and replays as they were streamed, and in OpenAI's
format.

Covers `protocol/types/lists.py` and `service/persistence/stored_responses.py`.
"""

import json
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    ItemAdded,
    ServerItemDone,
    ServerItemStarted,
    Text,
    TurnEnded,
)
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.fold import ResponseEnding, open_response
from antiphon.core.history.history import group_units, make_history
from antiphon.core.replay import Replay, reset_response, unpack
from antiphon.ids import ItemIds, new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.stored_items import assign_ids
from antiphon.protocol.types.conversation import CreateConversation
from antiphon.protocol.types.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    OutputItem,
)
from antiphon.protocol.types.lists import ItemsQuery
from antiphon.protocol.types.response import Response
from antiphon.service.conversations import ConversationKey, Conversations
from antiphon.service.keyring import Keyring, new_key
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.persistence.stored_responses import IncludeView, StoredResponses
from tests.core.emitter.streams import encode_sse
from tests.core.emitter.tool_item_examples import SERVER_ITEMS, get_start
from tests.oracles.responses import check_conversation_items, check_input_items, check_response
from tests.service.requests import TENANT, ServiceStack, decode_request

pytestmark = pytest.mark.anyio
KEYS = Keyring([new_key()])
ALL = [item for items in SERVER_ITEMS.values() for item in items]
CALL = McpCall(server_label="s", name="t", arguments="{}", output="42", status="completed")


async def create_conversation(service: ServiceStack) -> tuple[Conversations, ConversationKey]:
    conversation_service = Conversations(service.store, service.history_loader, Limits(), KEYS)
    conversation = await conversation_service.create(TENANT, CreateConversation())
    return conversation_service, conversation_service.resolve_key(TENANT, conversation.id)


class ResponseBuilder:
    """Builds a response from deltas; `end` stores it."""

    def __init__(self, service: ServiceStack, **body: Any) -> None:
        self.service = service
        self.decoded = decode_request(**body)
        self.decoded.request.input = assign_ids(self.decoded.request.input, ItemIds(new_id("resp"), "input"))
        response = open_response(self.decoded.request, self.decoded.sent, new_id("resp"), "fake", 1, store=True)
        self.emitter = Emitter(response, ItemIds(response.id), log=[])
        self.events = self.emitter.emit_created() + self.emitter.emit_in_progress()

    def feed(self, *deltas: Delta) -> list[OutputItem]:
        self.events += self.emitter.feed([*deltas])
        return self.emitter.response.output

    async def end(self) -> Response:
        self.events += self.emitter.finish(ResponseEnding(status="completed"), None, 9)
        response = self.emitter.response
        await self.service.writer.defer(TENANT, self.decoded, response).end(response, self.emitter.log or [])
        return response


def feed_everything(builder: ResponseBuilder) -> None:
    """Feed items of every type and final status, a client call with its output, and two approval requests."""
    builder.feed(CallStarted(0, "t", "mcp", "s"), CallDelta(0, "{}"), CallDone(0), CallStarted(1, "f"), CallDone(1))
    call = builder.feed(TurnEnded(), ServerItemDone(0, CALL, "the model was told this"))[-1]
    assert isinstance(call, FunctionCall)
    builder.feed(ItemAdded(FunctionCallOutput(call_id=call.call_id, output="42")))
    for key, item in enumerate(ALL):
        builder.feed(ServerItemStarted(key, get_start(item)), ServerItemDone(key, item))
    builder.feed(
        Text("Done."), *[ItemAdded(McpApprovalRequest(server_label="s", name=n, arguments="{}")) for n in "ab"]
    )


def to_json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


async def test_a_stored_response_has_all_items_and_replays_identically(service: ServiceStack) -> None:
    builder = ResponseBuilder(service)
    feed_everything(builder)
    response = await builder.end()
    row = await service.load_row(response.id)
    check_response(json.loads(row.response))
    stored = await service.load_response(response.id)
    assert to_json(stored) == to_json(response)
    replay = Replay(reset_response(stored), include_obfuscation=False)
    assert encode_sse(replay.open() + replay.feed(unpack(row.packed_log or b"", row.response))) == encode_sse(
        builder.events
    )


async def test_a_continuation_loads_all_items(service: ServiceStack) -> None:
    builder = ResponseBuilder(service)
    feed_everything(builder)
    response = await builder.end()
    follower = decode_request(previous_response_id=response.id, input="And?").request
    for loader in (service.history_loader, HistoryLoader(service.store)):  # from the cache, and from the store
        items = await loader.load_earlier(TENANT, follower)
        assert to_json(items) == to_json((*builder.decoded.request.input, *response.output))
        make_history(items, follower.input)


async def test_a_conversation_lists_all_items_in_openai_format(service: ServiceStack) -> None:
    conversation_service, key = await create_conversation(service)
    builder = ResponseBuilder(service, conversation=key.id)
    feed_everything(builder)
    response = await builder.end()
    query = ItemsQuery(limit=100, order="asc", include=["file_search_call.results", "code_interpreter_call.outputs"])
    page = json.loads(await conversation_service.list_items(key, query))
    check_conversation_items(page)
    assert page["data"][1:] == to_json(response.output)
    follower = decode_request(conversation=key.id, input="And?").request
    make_history(await service.history_loader.load_earlier(TENANT, follower), follower.input, "conversation")


async def test_resent_output_is_listed_as_input_in_openai_format(service: ServiceStack) -> None:
    first = ResponseBuilder(service)
    feed_everything(first)
    output = to_json((await first.end()).output)
    allowed = [
        {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True} for item in output[-2:]
    ]
    again = ResponseBuilder(service, input=[*output, *allowed])
    again.feed(Text("Done."))
    response = await again.end()
    stored = StoredResponses(service.store, service.live, _ignore_deletion, IncludeView(KEYS))
    page = json.loads(await stored.list_input_items(TENANT, response.id, ItemsQuery(limit=100, order="asc")))
    check_input_items(page)
    assert [item["type"] for item in page["data"]] == [item["type"] for item in [*output, *allowed]]
    requests = [item["id"] for item in page["data"] if item["type"] == "mcp_approval_request"]
    answers = [item["approval_request_id"] for item in page["data"] if item["type"] == "mcp_approval_response"]
    assert requests == answers


@pytest.mark.shows("A.28")
async def test_an_approval_its_answer_and_its_call_are_one_unit_across_responses(service: ServiceStack) -> None:
    first = ResponseBuilder(service)
    approval_requests = [
        *first.feed(*[ItemAdded(McpApprovalRequest(server_label="s", name=n, arguments="{}")) for n in "ab"])
    ]
    before = await first.end()
    answers = [McpApprovalResponse(approval_request_id=str(item.id), approve=True) for item in approval_requests]
    second = ResponseBuilder(service, previous_response_id=before.id, input=to_json(answers))
    for key, item in enumerate(approval_requests):
        second.feed(CallStarted(key, "ab"[key], "mcp", "s", str(item.id)), CallDone(key))
    for key, item in enumerate(approval_requests):
        second.feed(ServerItemDone(key, msgspec.structs.replace(CALL, approval_request_id=str(item.id))))
    second.feed(Text("Done."))
    after = await second.end()
    follower = decode_request(previous_response_id=after.id, input="And?").request
    items = await HistoryLoader(service.store).load_earlier(TENANT, follower)
    history = make_history(items, follower.input)
    kinds = [[_item_type(history.items[index]) for index in unit] for unit in group_units(history)]
    approved = ["mcp_approval_request", "mcp_approval_response", "mcp_call"]
    assert kinds == [["message"], approved, approved, ["message"], ["message"]]


def _item_type(item: InputItem) -> str:
    return str(item.__struct_config__.tag)


async def _ignore_deletion(tenant: str, response_id: str) -> None:
    """Deletion callback that does nothing."""
