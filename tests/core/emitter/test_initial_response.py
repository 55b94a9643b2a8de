import msgspec
import pytest

from antiphon.core.emitter.fold import ECHOED, opening
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ConversationRef, Response


def opened(body: dict[str, object], kept: bool = True) -> Response:
    decoded = decode_create(msgspec.json.encode({"input": "hi", **body}), Limits())
    return opening(decoded.request, decoded.sent, "resp_1", "m", 1, store=kept)


@pytest.mark.shows("A.65")
def test_what_a_response_continues_is_echoed() -> None:
    previous, conversation = new_id("resp"), new_id("conv")
    assert opened({"previous_response_id": previous}).previous_response_id == previous
    assert opened({"conversation": conversation}).conversation == ConversationRef(id=conversation)
    assert (opened({}).previous_response_id, opened({}).conversation) == (None, None)


@pytest.mark.shows("A.65")
@pytest.mark.parametrize("body", [{"store": True}, {"store": False}, {}], ids=str)
@pytest.mark.parametrize("kept", [True, False])
def test_store_is_echoed_as_it_is_done_and_not_as_it_was_asked_for(body: dict[str, object], kept: bool) -> None:
    assert opened(body, kept).store is kept


def test_a_response_for_the_background_starts_in_the_queue() -> None:
    response = opened({"background": True})
    assert (response.background, response.status) == (True, "queued")
    assert (opened({"background": False}).background, opened({}).status) == (False, "in_progress")


def test_all_that_is_echoed_is_a_field_of_both_sides() -> None:
    assert {*CreateResponse.__struct_fields__} & {*Response.__struct_fields__} >= ECHOED
