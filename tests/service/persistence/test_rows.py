"""A request is restored from the store as it was sent, and its stored form omits what the response already contains."""

from typing import Any

import msgspec
import pytest

from antiphon.core.emitter.fold import ECHOED_FIELDS, open_response
from antiphon.ids import ItemIds, parse_response_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import DecodedRequest, decode_create, encode
from antiphon.protocol.decoding.stored_items import assign_ids
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ServiceTier
from antiphon.service.persistence.rows import (
    decode_input,
    decode_items,
    encode_request,
    render_response,
    restore_request,
)
from antiphon.stores.base import RowStatus, StoredResponse
from tests.api.input.test_field_fates import ROWS
from tests.protocol.decoding.recorded_requests import iter_create_requests
from tests.service.requests import decode_request, parse_response

ID = "resp_" + "0" * 32
LIMITS = Limits()
TIERS: tuple[ServiceTier, ...] = ("default", "flex", "flex", "default")


def make_row(decoded_request: DecodedRequest, status: RowStatus = "in_progress") -> StoredResponse:
    response = open_response(
        decoded_request.request, decoded_request.sent, ID, decoded_request.request.model or "", 1, store=True
    )
    return StoredResponse(
        id=ID,
        status=status,
        background=False,
        created=1.0,
        deadline=None,
        previous=None,
        conversation=None,
        request=encode_request(decoded_request),
        response=encode(response),
        packed_log=None,
        fence=1,
        attempts=1,
    )


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"client_metadata", "generate"}))
def test_every_request_field_is_restored(name: str) -> None:
    ids = {"previous_response_id": "resp_1", "conversation": "conv_1", "store": True}
    decoded_request = decode_request(**{name: ids.get(name, ROWS[name].value)})
    again = restore_request(make_row(decoded_request))
    assert again.request == decoded_request.request
    assert again.sent == decoded_request.sent


def test_client_metadata_and_unknown_fields_are_not_stored() -> None:
    again = restore_request(make_row(decode_request(client_metadata={"a": "b"}, no_such_field=1)))
    assert again.sent == {"model", "input"}
    assert again.request.client_metadata is None


def test_fields_echoed_in_the_response_are_not_stored_twice() -> None:
    request = encode_request(
        decode_request(instructions="a secret of mine", tools=[{"type": "function", "name": "fetch_it"}])
    )
    assert b"a secret of mine" not in request
    assert b"fetch_it" not in request


def test_every_recorded_request_is_stored_with_its_own_values() -> None:
    for _, body in iter_create_requests():
        decoded_request = decode_create(encode(body), LIMITS)
        assert decode_record(encode_request(decoded_request)) == expected_record(decoded_request)


def test_a_service_tier_resolved_after_decoding_is_stored_as_resolved() -> None:
    for tier in TIERS:
        decoded_request = decode_create(b'{"model":"m","input":"hi","service_tier":"auto"}', LIMITS)
        decoded_request.request.service_tier = tier
        assert decode_record(encode_request(decoded_request)) == expected_record(decoded_request)


def decode_record(request: bytes) -> tuple[set[str], dict[str, Any]]:
    """Return the sent field names and the stored values of an encoded request."""
    record = msgspec.json.decode(request)
    return set(record["sent"]), record["asked"]


def expected_record(decoded_request: DecodedRequest) -> tuple[set[str], dict[str, Any]]:
    """Build the expected record field by field."""
    sent = set(decoded_request.sent) & {*CreateResponse.__struct_fields__} - {"client_metadata"}
    values = {name: getattr(decoded_request.request, name) for name in sent - ECHOED_FIELDS - {"model"}}
    return sent, msgspec.json.decode(encode(values))


def test_stored_items_keep_their_order_and_their_ids_name_the_response() -> None:
    decoded_request = decode_request(input=[{"role": "user", "content": text, "id": "msg_mine"} for text in "abc"])
    decoded_request.request.input = assign_ids(decoded_request.request.input, ItemIds(ID, "input"))
    items = decode_input(encode_request(decoded_request))
    assert items == decoded_request.request.input
    assert {parse_response_id(str(item.id)) for item in items} == {ID}
    assert sorted(str(item.id) for item in items) == [item.id for item in items]


def test_decode_items_returns_the_input_and_then_the_output() -> None:
    decoded_request = decode_request()
    row = make_row(decoded_request)
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
    response = msgspec.json.encode({**msgspec.json.decode(row.response), "output": [message]})
    assert [getattr(item, "role", None) for item in decode_items((row.request, response))] == ["user", "assistant"]


def test_a_running_response_is_rendered_with_its_current_status() -> None:
    row = make_row(decode_request(background=True), "in_progress")
    assert parse_response(row.response).status == "queued"
    assert parse_response(render_response(row)).status == "in_progress"
    assert render_response(make_row(decode_request(), "completed")) == make_row(decode_request(), "completed").response
