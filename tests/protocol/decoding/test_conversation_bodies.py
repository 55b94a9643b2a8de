"""Request bodies of /v1/conversations: the accepted forms, and the errors for invalid ones."""

import json
from typing import Any

import pytest

from antiphon.errors import BadRequest
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import (
    decode_conversation,
    decode_conversation_update,
    decode_create,
    decode_items,
)
from antiphon.protocol.types.items import ItemReference, Message
from antiphon.protocol.types.parts import InputText, OutputText

LIMITS = Limits()
HELLO = {"role": "user", "content": "hello"}


def encode_body(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("sent", [{}, {"items": None}, {"items": [], "metadata": {}}, {"metadata": None}])
def test_a_new_conversation_has_no_required_fields(sent: Any) -> None:
    request, ignored = decode_conversation(encode_body(sent), LIMITS)
    assert (request.items, request.metadata, ignored) == ([], {}, [])


def test_items_accept_the_same_forms_as_input() -> None:
    items = [HELLO, {"role": "assistant", "content": "hi", "type": "message", "id": None}, {"id": "msg_1"}]
    for request, _ in (
        decode_conversation(encode_body({"items": items}), LIMITS),
        decode_items(encode_body({"items": items}), LIMITS),
    ):
        first, second, third = request.items
        assert isinstance(first, Message)
        assert first.content == [InputText(text="hello")]
        assert isinstance(second, Message)
        assert second.content == [OutputText(text="hi")]
        assert isinstance(third, ItemReference)


def test_unknown_fields_are_reported() -> None:
    assert decode_conversation(encode_body({"metdata": {}, "items": [{**HELLO, "x": 1}]}), LIMITS)[1] == [
        "metdata",
        "items[0].x",
    ]
    assert decode_items(encode_body({"items": [HELLO], "y": 1}), LIMITS)[1] == ["y"]
    assert decode_conversation_update(encode_body({"metadata": {}, "z": 1}), LIMITS)[1] == ["z"]


def test_null_deletes_a_metadata_key_and_null_metadata_changes_nothing() -> None:
    assert decode_conversation_update(encode_body({"metadata": {"a": "1", "b": None}}), LIMITS)[0].metadata == {
        "a": "1",
        "b": None,
    }
    assert decode_conversation_update(encode_body({"metadata": None}), LIMITS)[0].metadata is None


@pytest.mark.parametrize(
    ("sent", "code", "param"),
    [
        ({"items": "hello"}, "invalid_type", "items"),
        ({"items": [HELLO] * 21}, "invalid_value", "items"),
        ({"items": [{"type": "nonsense"}]}, "invalid_value", "items[0].type"),
        ({"items": [HELLO, {"role": "nobody", "content": "x"}]}, "invalid_value", "items[1].role"),
        ({"items": [{"type": "item_reference"}]}, "missing_required_parameter", "items[0].id"),
        (
            {"items": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "missing_required_parameter",
            "items[0].content[0].image_url",
        ),
        ({"items": [{"id": "x" * 513, **HELLO}]}, "invalid_value", "items[0].id"),
        ({"items": [{"id": "a\0b", **HELLO}]}, "invalid_value", "items[0].id"),
    ],
)
def test_an_invalid_item_is_reported_with_its_index(sent: Any, code: str, param: str) -> None:
    for decode in (decode_conversation, decode_items):
        with pytest.raises(BadRequest) as raised:
            decode(encode_body(sent), LIMITS)
        assert (raised.value.code, raised.value.param) == (code, param)


def test_items_are_required_where_only_items_are_sent() -> None:
    for sent in ({}, {"items": None}):
        with pytest.raises(BadRequest) as raised:
            decode_items(encode_body(sent), LIMITS)
        assert raised.value.param == "items"


METADATA: list[tuple[Any, str, str]] = [
    ([], "invalid_type", "metadata"),
    ({"a": 1}, "invalid_type", "metadata"),
    ({str(number): "x" for number in range(17)}, "invalid_value", "metadata"),
    ({"": "x"}, "invalid_value", "metadata"),
    ({"k" * 65: "x"}, "invalid_value", "metadata"),
    ({"k": "v" * 513}, "invalid_value", "metadata.k"),
    ({"k": "a\0b"}, "invalid_value", "metadata"),
]


@pytest.mark.parametrize(("metadata", "code", "param"), METADATA)
def test_metadata_has_the_limits_of_all_endpoints(metadata: Any, code: str, param: str) -> None:
    for decode in (decode_conversation, decode_conversation_update):
        with pytest.raises(BadRequest) as raised:
            decode(encode_body({"metadata": metadata}), LIMITS)
        assert (raised.value.code, raised.value.param) == (code, param)


def test_an_update_without_metadata_is_rejected() -> None:
    with pytest.raises(BadRequest) as raised:
        decode_conversation_update(b"{}", LIMITS)
    assert (raised.value.code, raised.value.param) == ("missing_required_parameter", "metadata")


@pytest.mark.shows("B.24")
def test_a_malformed_conversation_id_is_rejected_with_the_expected_prefix() -> None:
    for sent in ("invalid-id", {"id": "invalid-id"}):
        with pytest.raises(BadRequest) as raised:
            decode_create(encode_body({"model": "m", "input": "x", "conversation": sent}), LIMITS)
        error = raised.value
        assert error.message == "Invalid 'conversation': 'invalid-id'. Expected an ID that begins with 'conv_'."
        assert (error.code, error.param) == ("invalid_conversation_id", "conversation")
