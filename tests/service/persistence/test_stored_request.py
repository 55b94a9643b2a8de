"""A request comes back from the store as it was sent, and takes little room there."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.core.emitter.fold import ECHOED, opening
from antiphon.ids import ItemIds, home
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import Decoded, encode
from antiphon.protocol.decoding.request_cache import Kinds
from antiphon.protocol.decoding.stored_items import keep
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ServiceTier
from antiphon.service.persistence.stored_request import all_items, input_items, restored, shown, stored_request
from antiphon.stores.base import Status, StoredResponse
from tests.protocol.decoding.recorded_requests import creates
from tests.service.planning.test_validation import FATES
from tests.service.requests import decoded, response_in

ID = "resp_" + "0" * 32
LIMITS = Limits()
TIERS: tuple[ServiceTier, ...] = ("default", "flex", "flex", "default")


def row_of(asked: Decoded, status: Status = "in_progress") -> StoredResponse:
    response = opening(asked.request, asked.sent, ID, asked.request.model or "", 1, store=True)
    return StoredResponse(
        id=ID,
        status=status,
        background=False,
        created=1.0,
        deadline=None,
        previous=None,
        conversation=None,
        request=stored_request(asked),
        response=encode(response),
        tape=None,
        fence=1,
        attempts=1,
    )


@pytest.mark.parametrize("name", [*FATES, "stream", "stream_options", "store"])
def test_every_field_of_a_request_comes_back(name: str) -> None:
    more = {"stream": True, "stream_options": {"include_obfuscation": True}, "store": True}
    value = more[name] if name in more else FATES[name][0]
    asked = decoded(**{name: value})
    again = restored(row_of(asked))
    assert again.request == asked.request
    assert again.sent == asked.sent


def test_a_clients_own_notes_and_unknown_fields_are_not_kept() -> None:
    again = restored(row_of(decoded(client_metadata={"a": "b"}, no_such_field=1)))
    assert again.sent == {"model", "input"}
    assert again.request.client_metadata is None


def test_what_the_response_says_is_not_kept_twice() -> None:
    request = stored_request(decoded(instructions="a secret of mine", tools=[{"type": "function", "name": "fetch_it"}]))
    assert b"a secret of mine" not in request
    assert b"fetch_it" not in request


def test_what_is_kept_of_requests_of_a_kind_is_what_each_of_them_says() -> None:
    kinds = Kinds()
    for _, body in creates():
        for _ in range(3):
            asked = kinds.decode(encode(body), LIMITS)
            assert told(stored_request(asked)) == plainly(asked)
            assert told(stored_request(replace(asked, kind=None))) == plainly(asked)


def test_what_is_settled_later_than_a_kind_is_kept_as_it_was_settled() -> None:
    kinds = Kinds()
    for tier in TIERS:
        asked = kinds.decode(b'{"model":"m","input":"hi","service_tier":"auto"}', LIMITS)
        asked.request.service_tier = tier
        assert told(stored_request(asked)) == plainly(asked)


def test_with_an_input_and_without_one_a_request_of_a_kind_is_kept_as_it_is() -> None:
    kinds, bodies = Kinds(), (b'{"model":"m","store":true}', b'{"model":"m","input":"hi","store":true}')
    for body in bodies * 3:
        asked = kinds.decode(body, LIMITS)
        assert told(stored_request(asked)) == plainly(asked)


def told(request: bytes) -> tuple[set[str], dict[str, Any]]:
    record = msgspec.json.decode(request)
    return set(record["sent"]), record["asked"]


def plainly(asked: Decoded) -> tuple[set[str], dict[str, Any]]:
    """The same, field by field."""
    sent = set(asked.sent) & {*CreateResponse.__struct_fields__} - {"client_metadata"}
    values = {name: getattr(asked.request, name) for name in sent - ECHOED - {"model"}}
    return sent, msgspec.json.decode(encode(values))


def test_items_keep_their_order_and_have_ids_that_say_where_they_are() -> None:
    asked = decoded(input=[{"role": "user", "content": text, "id": "msg_mine"} for text in "abc"])
    asked.request.input = keep(asked.request.input, ItemIds(ID, "input"))
    items = input_items(stored_request(asked))
    assert items == asked.request.input
    assert {home(str(item.id)) for item in items} == {ID}
    assert sorted(str(item.id) for item in items) == [item.id for item in items]


def test_all_items_are_the_input_and_then_the_output() -> None:
    asked = decoded()
    row = row_of(asked)
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
    response = msgspec.json.encode({**msgspec.json.decode(row.response), "output": [said]})
    assert [getattr(item, "role", None) for item in all_items((row.request, response))] == ["user", "assistant"]


def test_a_running_response_is_shown_with_the_status_that_it_has_by_now() -> None:
    row = row_of(decoded(background=True), "in_progress")
    assert response_in(row.response).status == "queued"
    assert response_in(shown(row)).status == "in_progress"
    assert shown(row_of(decoded(), "completed")) == row_of(decoded(), "completed").response
