"""What the server did for a model is kept like all else: it comes back in responses, histories, conversations, lists of
input and replays, as it was told and as OpenAI types it."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Opened, Put, Ran, Text, Turned
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.fold import Ending, opening
from antiphon.core.history.history import make_history, units
from antiphon.core.replay.packed_log import unpack
from antiphon.core.replay.replay import Replay, reopened
from antiphon.ids import ItemIds, new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.stored_items import keep
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
from antiphon.service.conversations import Conversations, Place
from antiphon.service.encryption.keyring import Keyring, new_key
from antiphon.service.persistence.history_loader import Past
from antiphon.service.persistence.include_view import Showing
from antiphon.service.persistence.stored_responses import Stored
from tests.core.emitter.streams import sent
from tests.core.emitter.tool_item_examples import ENDS
from tests.oracles.responses import check_conversation_items, check_input_items, check_response
from tests.service.requests import TENANT, Service, decoded

pytestmark = pytest.mark.anyio
KEYS = Keyring([new_key()])
ALL = [item for items in ENDS.values() for item in items]
CALL = McpCall(server_label="s", name="t", arguments="{}", output="42", status="completed")


async def conversations(made: Service) -> tuple[Conversations, Place]:
    served = Conversations(made.store, made.past, Limits(), KEYS)
    talk = await served.create(TENANT, CreateConversation())
    return served, served.at(TENANT, talk.id)


class Ended:
    """A response that said and did all this, in the store."""

    def __init__(self, made: Service, **body: Any) -> None:
        self.made = made
        self.decoded = decoded(**body)
        self.decoded.request.input = keep(self.decoded.request.input, ItemIds(new_id("resp"), "input"))
        response = opening(self.decoded.request, self.decoded.sent, new_id("resp"), "fake", 1, store=True)
        self.emitter = Emitter(response, ItemIds(response.id), log=[])
        self.events = self.emitter.created() + self.emitter.in_progress()

    def feed(self, *deltas: Delta) -> list[OutputItem]:
        self.events += self.emitter.feed([*deltas])
        return self.emitter.response.output

    async def end(self) -> Response:
        self.events += self.emitter.finish(Ending(status="completed"), None, 9)
        response = self.emitter.response
        await self.made.keeper.later(TENANT, self.decoded, response).end(response, self.emitter.log or [])
        return response


def everything(ended: Ended) -> None:
    """Of every kind, in every way that it may end; a client's call with its output; two approvals."""
    ended.feed(CallStarted(0, "t", "mcp", "s"), CallDelta(0, "{}"), CallDone(0), CallStarted(1, "f"), CallDone(1))
    call = ended.feed(Turned(), Ran(0, CALL, "the model was told this"))[-1]
    assert isinstance(call, FunctionCall)
    ended.feed(Put(FunctionCallOutput(call_id=call.call_id, output="42")))
    for key, item in enumerate(ALL):
        ended.feed(Opened(key, item), Ran(key, item))
    ended.feed(Text("Done."), *[Put(McpApprovalRequest(server_label="s", name=n, arguments="{}")) for n in "ab"])


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


async def test_a_stored_response_has_all_of_it_and_its_replay_is_the_same(made: Service) -> None:
    ended = Ended(made)
    everything(ended)
    response = await ended.end()
    row = await made.row(response.id)
    check_response(json.loads(row.response))
    stored = await made.stored(response.id)
    assert plain(stored) == plain(response)
    replay = Replay(reopened(stored), obfuscates=False)
    assert sent(replay.open() + replay.feed(unpack(row.tape or b"", stored))) == sent(ended.events)


async def test_what_continues_a_response_has_all_of_it_before(made: Service) -> None:
    ended = Ended(made)
    everything(ended)
    response = await ended.end()
    follower = decoded(previous_response_id=response.id, input="And?").request
    for past in (made.past, Past(made.store)):  # as it is remembered, and as it is read
        items = await past.earlier(TENANT, follower)
        assert plain(items) == plain((*ended.decoded.request.input, *response.output))
        make_history(items, follower.input)


async def test_a_conversation_gets_all_of_it_as_openai_types_it(made: Service) -> None:
    served, talk = await conversations(made)
    ended = Ended(made, conversation=talk.id)
    everything(ended)
    response = await ended.end()
    shows = ItemsQuery(limit=100, order="asc", include=["file_search_call.results", "code_interpreter_call.outputs"])
    page = json.loads(await served.page(talk, shows))
    check_conversation_items(page)
    assert page["data"][1:] == plain(response.output)
    follower = decoded(conversation=talk.id, input="And?").request
    make_history(await made.past.earlier(TENANT, follower), follower.input, "conversation")


async def test_what_a_client_sends_back_is_listed_as_input_as_openai_types_it(made: Service) -> None:
    first = Ended(made)
    everything(first)
    output = plain((await first.end()).output)
    allowed = [
        {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True} for item in output[-2:]
    ]
    again = Ended(made, input=[*output, *allowed])
    again.feed(Text("Done."))
    response = await again.end()
    stored = Stored(made.store, made.live, _nobody, Showing(KEYS))
    page = json.loads(await stored.input_items(TENANT, response.id, ItemsQuery(limit=100, order="asc")))
    check_input_items(page)
    assert [item["type"] for item in page["data"]] == [item["type"] for item in [*output, *allowed]]
    requests = [item["id"] for item in page["data"] if item["type"] == "mcp_approval_request"]
    answers = [item["approval_request_id"] for item in page["data"] if item["type"] == "mcp_approval_response"]
    assert requests == answers


@pytest.mark.shows("A.28")
async def test_an_approval_its_answer_and_its_call_are_one_unit_across_responses(made: Service) -> None:
    first = Ended(made)
    asked = [*first.feed(*[Put(McpApprovalRequest(server_label="s", name=n, arguments="{}")) for n in "ab"])]
    before = await first.end()
    answers = [McpApprovalResponse(approval_request_id=str(item.id), approve=True) for item in asked]
    second = Ended(made, previous_response_id=before.id, input=plain(answers))
    for key, item in enumerate(asked):
        second.feed(CallStarted(key, "ab"[key], "mcp", "s", str(item.id)), CallDone(key))
    for key, item in enumerate(asked):
        second.feed(Ran(key, msgspec.structs.replace(CALL, approval_request_id=str(item.id))))
    second.feed(Text("Done."))
    after = await second.end()
    follower = decoded(previous_response_id=after.id, input="And?").request
    items = await Past(made.store).earlier(TENANT, follower)
    history = make_history(items, follower.input)
    kinds = [[_type(history.items[index]) for index in unit] for unit in units(history)]
    approved = ["mcp_approval_request", "mcp_approval_response", "mcp_call"]
    assert kinds == [["message"], approved, approved, ["message"], ["message"]]


def _type(item: InputItem) -> str:
    return str(item.__struct_config__.tag)


async def _nobody(tenant: str, response_id: str) -> None:
    """Is told of a deletion."""
