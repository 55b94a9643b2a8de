"""Cached parts of requests: the same results as without the cache, per tenant, bounded, least recently used first.

Covers `protocol/decoding/part_cache.py` and `protocol/types/shared_list.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.dialects.anthropic_request import read_message
from antiphon.core.dialects.chat_request import read_chat
from antiphon.errors import AntiphonError
from antiphon.limits import Limits
from antiphon.protocol.bodies.websocket import read_message as read_socket_message
from antiphon.protocol.bodies.websocket import read_socket_create
from antiphon.protocol.decoding import part_cache
from antiphon.protocol.decoding.codec import DecodedRequest, decode_create, encode
from antiphon.protocol.decoding.part_cache import PartCache, RequestPart, TenantParts
from antiphon.protocol.types.shared_list import SharedList, SharedTuple, derive
from antiphon.protocol.types.tools import Tool
from tests.protocol.decoding.recorded_requests import iter_create_requests

LIMITS = Limits()
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
SCHEMA: dict[str, Any] = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}


def make_body(**fields: Any) -> bytes:
    return encode({"model": "m", "input": "hi", **fields})


def get_outcome(body: bytes, cache: TenantParts | None) -> Any:
    """Return the decoded request or the error."""
    try:
        return decode_create(body, LIMITS, cache)
    except AntiphonError as error:
        return type(error), error.message, error.param


def decode_repeatedly(cache: TenantParts, body: bytes, times: int = 3) -> list[DecodedRequest]:
    return [decode_create(body, LIMITS, cache) for _ in range(times)]


def count_decodings(cache: TenantParts, *raw_parts: bytes) -> int:
    """Return how many of the parts had to be decoded."""
    decoded: list[bytes] = []

    def decode(raw: bytes) -> RequestPart:
        decoded.append(raw)
        return RequestPart(raw)

    for raw in raw_parts:
        cache.find((dict, "tools", raw), decode)
    return len(decoded)


def test_recorded_requests_are_decoded_as_without_the_cache() -> None:
    cache = TenantParts()
    for _, body in iter_create_requests():
        expected = decode_create(encode(body), LIMITS)
        assert decode_repeatedly(cache, encode(body)) == [expected] * 3


tools = st.lists(
    st.sampled_from(
        [FUNCTION, {**FUNCTION, "name": "g", "zap": 1}, {"type": "function"}, {"type": "web_search"}, {"type": 7}, None]
    ),
    max_size=3,
)
texts = st.sampled_from([SCHEMA, {"verbosity": "low"}, {"verbosity": "none"}, {"format": {"type": "text", "zip": 1}}])


@given(st.lists(st.fixed_dictionaries({}, optional={"tools": tools, "text": texts, "user": st.text()}), max_size=8))
def test_any_requests_are_decoded_as_without_the_cache(requests: list[dict[str, Any]]) -> None:
    cache = TenantParts()
    for fields in requests * 3:
        body = make_body(**fields)
        assert get_outcome(body, cache) == get_outcome(body, None)


def test_a_format_beside_its_alias_is_checked_against_it() -> None:
    cache, other = TenantParts(), {"type": "json_object"}
    for _ in range(3):
        same = decode_create(make_body(text=SCHEMA, response_format=SCHEMA["format"]), LIMITS, cache)
        assert same == decode_create(make_body(text=SCHEMA), LIMITS)
        with pytest.raises(AntiphonError) as refused:
            decode_create(make_body(text=SCHEMA, response_format=other), LIMITS, cache)
        assert refused.value.param == "response_format"


def test_tools_are_shared_from_the_third_request_whatever_else_differs() -> None:
    cache = TenantParts()
    decoded = [decode_create(make_body(tools=[FUNCTION], user=str(n)), LIMITS, cache) for n in range(4)]
    lists = [each.request.tools for each in decoded]
    assert lists[0] is not lists[1]
    assert lists[1] is lists[2] is lists[3]


def test_tools_are_shared_by_chat_messages_and_websocket_requests() -> None:
    cache = TenantParts()
    chat = encode({"model": "m", "messages": [{"role": "user", "content": "hi"}],
                   "tools": [{"type": "function", "function": {"name": "f"}}]})  # fmt: skip
    message = encode({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
                      "tools": [{"name": "f", "input_schema": {"type": "object"}}]})  # fmt: skip
    event = encode({"type": "response.create", "model": "m", "input": "hi", "tools": [FUNCTION]})
    readers: tuple[Callable[[], DecodedRequest], ...] = (
        lambda: read_chat(chat, LIMITS, cache).decoded,
        lambda: read_message(message, LIMITS, cache).decoded,
        lambda: read_socket_create(read_socket_message(event, LIMITS), LIMITS, cache),
    )
    for read in readers:
        lists = [read().request.tools for _ in range(4)]
        assert lists[1] is lists[2] is lists[3]


def test_tools_with_an_mcp_server_are_not_cached_because_they_may_hold_secrets() -> None:
    server = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example", "authorization": "secret"}
    lists = [each.request.tools for each in decode_repeatedly(TenantParts(), make_body(tools=[server]), 4)]
    assert len({id(each) for each in lists}) == 4


def test_one_tenant_does_not_find_the_parts_of_another() -> None:
    cache = PartCache()
    assert count_decodings(cache.for_tenant("a"), b"[1]", b"[1]", b"[1]") == 2
    assert count_decodings(cache.for_tenant("b"), b"[1]", b"[1]", b"[1]") == 2


def test_parts_that_are_used_stay_when_others_are_dropped() -> None:
    cache, size = TenantParts(), part_cache.MAX_PART_BYTES // 2
    used, *others = [str(n).encode() * size for n in range(6)]
    count_decodings(cache, used, used)
    for other in others:
        count_decodings(cache, other, other)
        assert count_decodings(cache, used) == 0
    assert cache.total_bytes <= part_cache.MAX_TENANT_BYTES
    assert count_decodings(cache, others[0]) == 1


def test_parts_that_are_too_large_are_not_cached() -> None:
    large = b"1" * (part_cache.MAX_PART_BYTES + 1)
    assert count_decodings(TenantParts(), large, large, large) == 3


def test_parts_that_do_not_repeat_are_not_cached() -> None:
    cache = TenantParts()
    count_decodings(cache, *[str(n).encode() for n in range(2 * part_cache.MAX_SEEN)])
    assert (cache.total_bytes, len(cache._seen)) == (0, part_cache.MAX_SEEN)


def test_the_parts_of_the_tenant_that_sent_nothing_for_longest_are_dropped() -> None:
    cache = PartCache()
    for tenant in range(part_cache.MAX_TENANTS + 1):
        count_decodings(cache.for_tenant(str(tenant)), b"[1]", b"[1]")
        cache.for_tenant("0")
    assert count_decodings(cache.for_tenant("0"), b"[1]") == 0
    assert count_decodings(cache.for_tenant("2"), b"[1]") == 0
    assert count_decodings(cache.for_tenant("1"), b"[1]") == 1


def test_values_are_derived_once_from_a_shared_list_and_each_time_from_others() -> None:
    kinds: list[tuple[Sequence[Tool], int]] = [(SharedList[Tool]([]), 1), (SharedTuple[Tool](()), 1), ([], 3)]
    for entries, expected in kinds:
        built: list[int] = []
        for _ in range(3):
            derive(entries, "key", lambda built=built: built.append(1))  # type: ignore[misc]
        assert len(built) == expected


TOOLS_OF_APIS: list[list[dict[str, Any]]] = [
    [{"type": "image_generation"}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    [{"type": "custom", "name": "f", "input_schema": {"type": "object"}}],
]


@pytest.mark.parametrize("tools", TOOLS_OF_APIS)
def test_the_same_tools_mean_something_else_in_each_api(tools: list[dict[str, Any]]) -> None:
    messages = [{"role": "user", "content": "hi"}]
    bodies: list[tuple[Callable[..., object], bytes]] = [
        (decode_create, make_body(tools=tools)),
        (read_chat, encode({"model": "m", "messages": messages, "tools": tools})),
        (read_message, encode({"model": "m", "max_tokens": 9, "messages": messages, "tools": tools})),
    ]

    def get_error(read: Callable[..., object], body: bytes, cache: TenantParts | None) -> str:
        try:
            read(body, LIMITS, cache)
        except AntiphonError as error:
            return error.message
        return ""

    cache = TenantParts()
    for read, body in [*bodies, *bodies, *bodies]:
        assert get_error(read, body, cache) == get_error(read, body, None)
