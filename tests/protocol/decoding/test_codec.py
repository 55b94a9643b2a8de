"""Any bytes decode to a request or are a client error, and unknown fields are reported by name.

Covers `protocol/decoding/checks.py`, `protocol/decoding/error_messages.py` and
`protocol/decoding/unknown_fields.py`.
"""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.parts import InputText
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Tool
from tests.protocol.decoding.recorded_requests import iter_create_requests
from tests.protocol.decoding.requests import LIMITS, decode
from tests.protocol.types.samples import list_members, make_full
from tests.support.cpu import cpu_timer


@pytest.mark.shows("A.18")
def test_unknown_fields_are_reported_at_every_level() -> None:
    sent = {
        "foo": 1,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "", "zip": 1}], "bar": 1}],
        "tools": [
            {"type": "function", "name": "f", "parameters": {"x-mine": 1}, "zap": 1},
            {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c", "zop": 1}]},
        ],
        "text": {"format": {"type": "text", "zup": 1}},
        "reasoning": {"zep": 1},
        "metadata": {"free": "text"},
        "client_metadata": {"free": {"form": 1}},
    }
    assert decode(sent).ignored == [
        "foo",
        "input[0].content[0].zip",
        "input[0].bar",
        "reasoning.zep",
        "tools[0].zap",
        "tools[1].tools[0].zop",
        "text.format.zup",
    ]


@pytest.mark.parametrize(("name", "value", "empty"), [("logit_bias", {"7": -100}, {}), ("min_tokens", 3, 0),
                                                      ("stop_token_ids", [2], []), ("return_token_ids", True, False),
                                                      ("structured_outputs", {"regex": "a"}, None)])  # fmt: skip
def test_parameters_of_chat_completions_only_are_rejected_by_name(name: str, value: Any, empty: Any) -> None:
    with pytest.raises(UnsupportedParameter, match=f"'{name}' is not supported here: /v1/chat/completions") as caught:
        decode({"input": "hi", name: value})
    assert caught.value.param == name
    decode({"input": "hi", name: empty})


def test_at_most_twenty_unknown_fields_are_reported_with_truncated_names() -> None:
    ignored = decode({f"unknown{number}{'x' * 1000}": 1 for number in range(100)}).ignored
    assert len(ignored) == 20
    assert max(map(len, ignored)) <= 64


@pytest.mark.shows("A.13", "A.66")
def test_fields_that_only_openai_supports_are_known() -> None:
    knobs = {
        "access_programs": {"cyber": "standard"},
        "image": {"context_compression": "auto"},
        "moderation": {"model": "m"},
        "prompt_cache_options": {"mode": "implicit"},
        "prompt_cache_retention": "in-memory",
        "safety_identifier": "s",
        "service_tier": "flex",
        "user": "u",
        "client_metadata": {},
        "stream_options": {"include_obfuscation": True},
    }
    assert decode(knobs).ignored == []


def get_status(body: bytes) -> int:
    """Return the HTTP status for this body."""
    try:
        decode(body)
    except AntiphonError as error:
        return error.status
    return 200


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(CreateResponse.__struct_fields__), anything, max_size=4))
def test_any_field_value_is_accepted_or_a_bad_request(body: dict[str, Any]) -> None:
    assert get_status(json.dumps(body).encode()) in (200, 400)


BODIES = [
    *(body for _name, body in iter_create_requests()),
    *({"input": [make_full(cls)]} for cls in list_members(InputItem)),
    *({"tools": [make_full(cls)]} for cls in list_members(Tool)),
    *({"tool_choice": make_full(cls)} for cls in list_members(ToolChoice)),
]
junk = anything | st.sampled_from([{"type": "x"}, {"type": []}, [{"type": "text"}], {"id": "a"}, {"role": "user"}])


@pytest.mark.shows("H6.9")
@given(st.data())
def test_any_change_to_a_valid_request_is_accepted_or_a_bad_request(data: st.DataObject) -> None:
    body = json.loads(json.dumps(data.draw(st.sampled_from(BODIES))))
    for _ in range(data.draw(st.integers(1, 3))):
        parent: Any = body
        key: Any = data.draw(st.sampled_from(sorted(parent)))
        while isinstance(parent[key], dict | list) and parent[key] and data.draw(st.booleans()):
            parent = parent[key]
            keys = sorted(parent) if isinstance(parent, dict) else range(len(parent))
            key = data.draw(st.sampled_from(keys))
        parent[key] = deepcopy(data.draw(junk))
    assert get_status(json.dumps(body).encode()) in (200, 400)


@given(st.binary(max_size=200))
def test_any_bytes_are_accepted_or_a_bad_request(body: bytes) -> None:
    assert get_status(body) in (200, 400)


def test_long_text_is_rejected_only_in_enum_fields() -> None:
    text = "x" * 2_000_000
    accepted: list[Any] = [
        {"input": text, "instructions": text},
        {"chat_template_kwargs": {"context": text}, "client_metadata": {"status": text}},
        {"input": [{"type": "tool_search_call", "arguments": {"action": text}}]},
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}]},
        {"tools": [{"type": "function", "name": "f", "description": text, "parameters": {"description": "x"}}]},
    ]
    assert [get_status(json.dumps(body).encode()) for body in accepted] == [200] * len(accepted)
    rejected: list[Any] = [
        {"truncation": text},
        {"input": [{"role": "user", "content": [{"type": text}]}]},
        {"include": [text]},
    ]
    for body in rejected:
        with pytest.raises(InvalidValue, match="2000000 characters long"):
            decode(body)


def test_a_small_request_is_decoded_in_microseconds() -> None:
    body = b'{"model":"m","input":"hello","stream":true}'
    with cpu_timer() as spent:
        for _ in range(5000):
            decode_create(body, LIMITS)
    assert spent.seconds / 5000 < 60e-6  # 8 µs on an idle machine


@pytest.mark.shows("A.19")
def test_a_hint_without_effect_is_reported_and_decoded() -> None:
    part = {"type": "input_text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    decoded = decode({"input": [{"role": "user", "content": [part]}]})
    assert decoded.ignored == ["input[0].content[0].prompt_cache_breakpoint"]
    message = decoded.request.input[0]
    assert isinstance(message, Message)
    assert isinstance(message.content[0], InputText)
    assert message.content[0].prompt_cache_breakpoint is not UNSET


@pytest.mark.shows("A.19")
def test_the_detail_of_a_file_is_reported_with_its_position() -> None:
    files = [{"type": "input_file", "file_data": "aGk=", "detail": detail} for detail in ("auto", "low", "high")]
    image = {"type": "input_image", "image_url": "data:,", "detail": "low"}
    decoded = decode({"input": [{"role": "user", "content": [image, *files]}]})
    assert decoded.ignored == ["input[0].content[2].detail", "input[0].content[3].detail"]
