"""`RequestCache` decodes every request to the same result, or the same error, as `decode_create`."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import AntiphonError
from antiphon.limits import Limits
from antiphon.protocol.decoding import request_cache
from antiphon.protocol.decoding.codec import DecodedRequest, decode_create
from antiphon.protocol.decoding.request_cache import RequestCache
from tests.protocol.decoding.recorded_requests import iter_create_requests

LIMITS = Limits()
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
MCP = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example", "authorization": "a secret"}

INPUTS: dict[str, dict[str, Any]] = {
    "none": {},
    "null": {"input": None},
    "text": {"input": "hi"},
    "empty text": {"input": ""},
    "escaped text": {"input": 'a "quote", a \n and a \u00e9 and a \U0001f600'},
    "items": {"input": [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": "msg_1"}]},
    "items with unknown fields": {"input": [{"role": "user", "content": "hi", "colour": "red"}]},
    "no items": {"input": []},
    "a previous response": {"input": "hi", "previous_response_id": "resp_1"},
    "no previous response": {"input": "hi", "previous_response_id": None},
}
OTHERS: dict[str, dict[str, Any]] = {
    "a model": {"model": "m"},
    "settings": {"model": "m", "temperature": 0.5, "metadata": {"a": "b"}, "store": False, "stream": True},
    "tools": {"model": "m", "tools": [FUNCTION], "instructions": "Be brief.", "tool_choice": "required"},
    "nulls": {"model": "m", "tools": None, "temperature": None, "reasoning": {"effort": None}},
    "an unknown field": {"model": "m", "colour": "red"},
}
WRONG: dict[str, dict[str, Any]] = {
    "of another type": {"input": 7},
    "an object": {"input": {"role": "user"}},
    "an item without a type": {"input": [{"content": "hi"}]},
    "an item that is a string": {"input": ["hi"]},
    "too many items": {"input": [{"role": "user", "content": "hi"}] * (LIMITS.items + 1)},
    "a long previous id": {"input": "hi", "previous_response_id": "r" * (LIMITS.id_length + 1)},
    "a NUL in the previous id": {"input": "hi", "previous_response_id": "r\0"},
    "a number as the previous id": {"input": "hi", "previous_response_id": 7},
}


def encode_body(*parts: dict[str, Any]) -> bytes:
    return msgspec.json.encode({name: value for part in parts for name, value in part.items()})


def to_comparable(decoded: DecodedRequest) -> tuple[Any, ...]:
    return decoded.request, decoded.sent, sorted(decoded.ignored)


def get_error(decode: Any, sent: bytes) -> tuple[Any, ...]:
    with pytest.raises(AntiphonError) as refused:
        decode(sent, LIMITS)
    return type(refused.value), refused.value.message, refused.value.param


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_requests_with_the_same_settings_decode_as_without_the_cache(others: dict[str, Any]) -> None:
    cache = RequestCache()
    for _ in range(2):
        for fields in INPUTS.values():
            sent = encode_body(others, fields)
            assert to_comparable(cache.decode(sent, LIMITS)) == to_comparable(decode_create(sent, LIMITS))


def test_recorded_requests_decode_as_without_the_cache() -> None:
    cache = RequestCache()
    for _, fields in iter_create_requests():
        sent = msgspec.json.encode(fields)
        for _ in range(2):
            assert to_comparable(cache.decode(sent, LIMITS)) == to_comparable(decode_create(sent, LIMITS))


def test_requests_with_the_same_settings_share_a_cached_request() -> None:
    cache, others = RequestCache(), OTHERS["tools"]
    first = cache.decode(encode_body(others, {"input": "a"}), LIMITS)
    second = cache.decode(encode_body(others, {"input": [{"role": "user", "content": "b"}]}), LIMITS)
    assert first.cached is not None
    assert first.cached is second.cached
    continued = [
        cache.decode(encode_body(others, {"previous_response_id": name}), LIMITS) for name in ("resp_1", "resp_2")
    ]
    assert continued[0].cached is continued[1].cached
    assert [one.request.previous_response_id for one in continued] == ["resp_1", "resp_2"]


def test_changes_to_a_decoded_request_do_not_reach_the_cache() -> None:
    cache, sent = RequestCache(), encode_body(OTHERS["settings"], {"input": "hi"})
    for _ in range(3):
        decoded = cache.decode(sent, LIMITS)
        assert to_comparable(decoded) == to_comparable(decode_create(sent, LIMITS))
        decoded.request.input.clear()
        decoded.request.service_tier = "flex"
        decoded.request.stream = False


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_invalid_input_gives_the_same_error_whether_its_settings_are_cached_or_not(wrong: dict[str, Any]) -> None:
    cache, others = RequestCache(), OTHERS["a model"]
    for fields in INPUTS.values():
        cache.decode(encode_body(others, fields), LIMITS)
    sent = encode_body(others, wrong)
    assert get_error(cache.decode, sent) == get_error(decode_create, sent) == get_error(RequestCache().decode, sent)


@pytest.mark.parametrize(
    "sent", [b"", b"{", b"[]", b'{"model":}', b'{"input":"\xff"}', b'{"model":"m","input":"\\ud800"}']
)
def test_invalid_json_gives_the_same_error(sent: bytes) -> None:
    assert get_error(RequestCache().decode, sent) == get_error(decode_create, sent)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_bytes_never_match_a_wrong_cached_request(data: st.DataObject) -> None:
    cache, sent = RequestCache(), encode_body(OTHERS["settings"], {"input": "hi", "previous_response_id": "resp_1"})
    cache.decode(sent, LIMITS)
    position, byte = data.draw(st.integers(0, len(sent) - 1)), data.draw(st.integers(0, 255))
    changed = sent[:position] + bytes([byte]) + sent[position + 1 :]
    try:
        expected = to_comparable(decode_create(changed, LIMITS))
    except AntiphonError:
        get_error(cache.decode, changed)
    else:
        assert to_comparable(cache.decode(changed, LIMITS)) == expected


def assert_same_result(cache: RequestCache, sent: bytes) -> None:
    """Assert that the cache gives the same request or the same error as `decode_create`."""
    try:
        expected = to_comparable(decode_create(sent, LIMITS))
    except AntiphonError:
        assert get_error(cache.decode, sent) == get_error(decode_create, sent)
    else:
        assert to_comparable(cache.decode(sent, LIMITS)) == expected


def make_warm_cache(sent: bytes) -> RequestCache:
    """Return a cache that holds the envelope of `sent`."""
    cache = RequestCache()
    for _ in range(request_cache.ENVELOPE_INTERVAL + 1):
        cache.decode(sent, LIMITS)
    assert len(cache._envelopes) == 1
    return cache


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("first", [True, False])
def test_requests_with_a_cached_envelope_decode_as_without_the_cache(others: dict[str, Any], first: bool) -> None:
    def build_body(fields: dict[str, Any]) -> bytes:
        return encode_body(fields, others) if first else encode_body(others, fields)

    cache = make_warm_cache(build_body({"input": "hi"}))
    for fields in INPUTS.values():
        assert to_comparable(cache.decode(build_body(fields), LIMITS)) == to_comparable(
            decode_create(build_body(fields), LIMITS)
        )
    for wrong in WRONG.values():
        assert get_error(cache.decode, build_body(wrong)) == get_error(decode_create, build_body(wrong))


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model":"m","instructions":"hi","input":"hi"}',
        b'{"input":"hi","model":"m","instructions":"hi"}',
        b'{"model":"m","input":"not this one","input":"hi"}',
        b' { "model" : "m" ,\n "metadata":{"input":"no"}, "input" :  "hi" , "store":false } ',
        b'{"model":"m","input":", ","stop":["a", "b"]}',
    ],
)
@pytest.mark.parametrize(
    "value", [b'"hello"', b"[]", b'[{"role":"user","content":"hi"}]', b"null", b"7", b'"a" "b"', b""]
)
def test_the_input_is_found_at_any_position(sent: bytes, value: bytes) -> None:
    cache = make_warm_cache(sent)
    (found,) = cache._envelopes
    changed = found.prefix + value + found.suffix
    assert_same_result(cache, changed)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_never_match_a_wrong_envelope(data: st.DataObject) -> None:
    sent = encode_body(OTHERS["settings"], {"input": "hi"}, {"instructions": "hi"})
    cache, pieces = (
        make_warm_cache(sent),
        [b'"', b"\\", b",", b"]", b"[", b'","user":"', b'"input":', b"\xff", b"{}", b" ", b""],
    )
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(sent))] * 2)))
    changed = sent[:start] + b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=3))) + sent[stop:]
    assert_same_result(cache, changed)


@pytest.mark.parametrize("depth", range(LIMITS.json_depth - 3, LIMITS.json_depth + 2))
def test_the_depth_limit_applies_to_requests_with_a_cached_envelope(depth: int) -> None:
    sent = encode_body({"model": "m", "input": "hi"})
    nested = sent.replace(b'"hi"', b"[" * depth + b"{" * 70 + b"]" * depth)
    cache = make_warm_cache(sent)
    assert get_error(cache.decode, nested) == get_error(decode_create, nested)
    nested = sent.replace(b'"hi"', b"[" * depth + b"]" * depth + b" " * 2000)
    assert get_error(cache.decode, nested) == get_error(decode_create, nested)


def test_envelopes_may_share_their_prefix_or_suffix() -> None:
    cache, few, more = RequestCache(), {"input": "hi"}, {"input": "hi", "model": "m"}
    for _ in range(2 * request_cache.ENVELOPE_INTERVAL):
        for fields in (few, more):
            sent = encode_body(fields)
            assert to_comparable(cache.decode(sent, LIMITS)) == to_comparable(decode_create(sent, LIMITS))
    assert {one.suffix for one in cache._envelopes} == {b"}", b',"model":"m"}'}


def test_envelopes_are_limited_in_number_and_size_and_hold_no_secrets() -> None:
    cache = RequestCache()
    for number in range(request_cache.MAX_ENVELOPES + 3):
        for _ in range(request_cache.ENVELOPE_INTERVAL + 1):
            cache.decode(encode_body({"model": f"m{number}", "input": "hi"}), LIMITS)
    assert len(cache._envelopes) == request_cache.MAX_ENVELOPES
    for others in (
        {"model": "m", "tools": [MCP]},
        {"model": "m", "instructions": "x" * request_cache.MAX_REQUEST_BYTES},
    ):
        cache = RequestCache()
        for _ in range(2 * request_cache.ENVELOPE_INTERVAL):
            cache.decode(encode_body(others, {"input": "hi"}), LIMITS)
        assert not cache._envelopes


def test_cached_requests_are_limited_in_number_and_bytes() -> None:
    cache = RequestCache()
    for number in range(request_cache.MAX_REQUESTS + 10):
        cache.decode(encode_body({"model": f"m{number}"}), LIMITS)
    assert len(cache._requests) == request_cache.MAX_REQUESTS
    large = "x" * (request_cache.MAX_REQUEST_BYTES - 1000)
    for number in range(20):
        cache.decode(encode_body({"model": f"m{number}", "instructions": large}), LIMITS)
    assert cache._total_bytes == sum(
        len(b"".join([*map(str.encode, names), values])) for names, values in cache._requests
    )
    assert cache._total_bytes <= request_cache.MAX_TOTAL_BYTES
    assert len(cache._requests) < 20


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": "x" * request_cache.MAX_REQUEST_BYTES},
        {"x" * request_cache.MAX_REQUEST_BYTES: 1},
        {"tools": [MCP]},
    ],
    ids=["long text", "long names", "secrets"],
)
def test_large_requests_and_requests_with_secrets_are_not_cached(fields: dict[str, Any]) -> None:
    cache = RequestCache()
    assert cache.decode(encode_body({"model": "m"}, fields), LIMITS).cached is None
    assert not cache._requests
