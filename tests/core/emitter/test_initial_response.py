"""The Response as it is opened from a decoded request: echoed fields, `store`, and the initial status."""

import msgspec
import pytest

from antiphon.core.emitter.fold import ECHOED_FIELDS, open_response
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ConversationRef, Response


def make_response(body: dict[str, object], stored: bool = True) -> Response:
    decoded = decode_create(msgspec.json.encode({"input": "hi", **body}), Limits())
    return open_response(decoded.request, decoded.sent, "resp_1", "m", 1, store=stored)


@pytest.mark.shows("A.65")
def test_previous_response_id_and_conversation_are_echoed() -> None:
    previous, conversation = new_id("resp"), new_id("conv")
    assert make_response({"previous_response_id": previous}).previous_response_id == previous
    assert make_response({"conversation": conversation}).conversation == ConversationRef(id=conversation)
    assert (make_response({}).previous_response_id, make_response({}).conversation) == (None, None)


@pytest.mark.shows("A.65")
@pytest.mark.parametrize("body", [{"store": True}, {"store": False}, {}], ids=str)
@pytest.mark.parametrize("stored", [True, False])
def test_store_echoes_the_effective_value_and_not_the_requested_one(body: dict[str, object], stored: bool) -> None:
    assert make_response(body, stored).store is stored


def test_a_background_response_starts_as_queued() -> None:
    response = make_response({"background": True})
    assert (response.background, response.status) == (True, "queued")
    assert (make_response({"background": False}).background, make_response({}).status) == (False, "in_progress")


@pytest.mark.parametrize(("sent", "mode"), [({}, "implicit"), ({"mode": "explicit"}, "explicit")])
def test_cache_options_are_completed_if_they_were_sent(sent: dict[str, str], mode: str) -> None:
    assert make_response({"prompt_cache_options": sent}).prompt_cache_options == {"mode": mode, "ttl": "30m"}
    assert make_response({}).prompt_cache_options == Response(id="", created_at=1, model="m").prompt_cache_options


def test_echoed_fields_exist_in_the_request_and_the_response() -> None:
    assert {*CreateResponse.__struct_fields__} & {*Response.__struct_fields__} >= ECHOED_FIELDS
