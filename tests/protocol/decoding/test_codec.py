"""Whatever bytes arrive become a request or a refusal, and what nobody knows is named."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.items import InputItem, InputText, Message
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tool_choice import ToolChoice
from antiphon.protocol.types.tools import Tool
from tests.protocol.decoding.recorded_requests import creates
from tests.protocol.decoding.requests import LIMITS, decode
from tests.protocol.types.samples import fullest, members
from tests.support.cpu import cpu_time


@pytest.mark.shows("A.18")
def test_unknown_fields_are_named_wherever_they_are() -> None:
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
        "tools[0].zap",
        "tools[1].tools[0].zop",
        "text.format.zup",
        "reasoning.zep",
    ]


@pytest.mark.parametrize(("name", "value", "empty"), [("logit_bias", {"7": -100}, {}), ("min_tokens", 3, 0),
                                                      ("stop_token_ids", [2], []), ("return_token_ids", True, False),
                                                      ("structured_outputs", {"regex": "a"}, None)])  # fmt: skip
def test_what_only_chats_can_ask_an_engine_for_is_refused_by_name_and_not_lost(
    name: str, value: Any, empty: Any
) -> None:
    with pytest.raises(UnsupportedParameter, match=f"'{name}' is not taken here: /v1/chat/completions") as caught:
        decode({"input": "hi", name: value})
    assert caught.value.param == name
    decode({"input": "hi", name: empty})


def test_at_most_twenty_unknown_fields_are_named_and_none_at_full_length() -> None:
    ignored = decode({f"unknown{number}{'x' * 1000}": 1 for number in range(100)}).ignored
    assert len(ignored) == 20
    assert max(map(len, ignored)) <= 64


@pytest.mark.shows("A.13", "A.66")
def test_what_only_openai_acts_on_is_known() -> None:
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


def status(body: bytes) -> int:
    """What a client would be answered."""
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
def test_no_value_of_any_field_is_more_than_a_bad_request(body: dict[str, Any]) -> None:
    assert status(json.dumps(body).encode()) in (200, 400)


BODIES = [
    *(body for _name, body in creates()),
    *({"input": [fullest(cls)]} for cls in members(InputItem)),
    *({"tools": [fullest(cls)]} for cls in members(Tool)),
    *({"tool_choice": fullest(cls)} for cls in members(ToolChoice)),
]
junk = anything | st.sampled_from([{"type": "x"}, {"type": []}, [{"type": "text"}], {"id": "a"}, {"role": "user"}])


@pytest.mark.shows("H6.9")
@given(st.data())
def test_no_change_to_a_good_request_is_more_than_a_bad_request(data: st.DataObject) -> None:
    body = json.loads(json.dumps(data.draw(st.sampled_from(BODIES))))
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = body
        key: Any = data.draw(st.sampled_from(sorted(place)))
        while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(keys))
        place[key] = deepcopy(data.draw(junk))
    assert status(json.dumps(body).encode()) in (200, 400)


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_a_bad_request(body: bytes) -> None:
    assert status(body) in (200, 400)


def test_long_text_is_refused_only_where_one_of_a_few_words_belongs() -> None:
    text = "x" * 2_000_000
    fine: list[Any] = [
        {"input": text, "instructions": text},
        {"chat_template_kwargs": {"context": text}, "client_metadata": {"status": text}},
        {"input": [{"type": "tool_search_call", "arguments": {"action": text}}]},
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}]},
        {"tools": [{"type": "function", "name": "f", "description": text, "parameters": {"description": "x"}}]},
    ]
    assert [status(json.dumps(body).encode()) for body in fine] == [200] * len(fine)
    odd: list[Any] = [
        {"truncation": text},
        {"input": [{"role": "user", "content": [{"type": text}]}]},
        {"include": [text]},
    ]
    for body in odd:
        with pytest.raises(InvalidValue, match="2000000 characters long"):
            decode(body)


def test_a_small_request_is_read_in_a_few_microseconds() -> None:
    body = b'{"model":"m","input":"hello","stream":true}'
    with cpu_time() as spent:
        for _ in range(5000):
            decode_create(body, LIMITS)
    assert spent.seconds / 5000 < 60e-6  # 8 µs on a quiet machine


@pytest.mark.shows("A.19")
def test_a_hint_that_has_no_effect_is_named_and_decoded() -> None:
    part = {"type": "input_text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    decoded = decode({"input": [{"role": "user", "content": [part]}]})
    assert decoded.ignored == ["input[0].content[0].prompt_cache_breakpoint"]
    message = decoded.request.input[0]
    assert isinstance(message, Message)
    assert isinstance(message.content[0], InputText)
    assert message.content[0].prompt_cache_breakpoint is not UNSET
