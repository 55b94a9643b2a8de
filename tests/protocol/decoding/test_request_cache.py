"""What is known of a kind is what would have been read: every request is decoded both ways."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import AntiphonError
from antiphon.limits import Limits
from antiphon.protocol.decoding import request_cache
from antiphon.protocol.decoding.codec import Decoded, decode_create
from antiphon.protocol.decoding.request_cache import Kinds
from tests.protocol.decoding.recorded_requests import creates

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
    "items with names that nobody knows": {"input": [{"role": "user", "content": "hi", "colour": "red"}]},
    "no items": {"input": []},
    "what it continues": {"input": "hi", "previous_response_id": "resp_1"},
    "that it continues nothing": {"input": "hi", "previous_response_id": None},
}
OTHERS: dict[str, dict[str, Any]] = {
    "a model": {"model": "m"},
    "settings": {"model": "m", "temperature": 0.5, "metadata": {"a": "b"}, "store": False, "stream": True},
    "tools": {"model": "m", "tools": [FUNCTION], "instructions": "Be brief.", "tool_choice": "required"},
    "nulls": {"model": "m", "tools": None, "temperature": None, "reasoning": {"effort": None}},
    "a name that nobody knows": {"model": "m", "colour": "red"},
}
WRONG: dict[str, dict[str, Any]] = {
    "of another type": {"input": 7},
    "an object": {"input": {"role": "user"}},
    "an item of no type": {"input": [{"content": "hi"}]},
    "an item that is none": {"input": ["hi"]},
    "too many items": {"input": [{"role": "user", "content": "hi"}] * (LIMITS.items + 1)},
    "too long a name before it": {"input": "hi", "previous_response_id": "r" * (LIMITS.id_length + 1)},
    "a NUL in the name before it": {"input": "hi", "previous_response_id": "r\0"},
    "a number before it": {"input": "hi", "previous_response_id": 7},
}


def body(*parts: dict[str, Any]) -> bytes:
    return msgspec.json.encode({name: value for part in parts for name, value in part.items()})


def told(decoded: Decoded) -> tuple[Any, ...]:
    return decoded.request, decoded.sent, sorted(decoded.ignored)


def refusal(decode: Any, sent: bytes) -> tuple[Any, ...]:
    with pytest.raises(AntiphonError) as refused:
        decode(sent, LIMITS)
    return type(refused.value), refused.value.message, refused.value.param


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_each_of_a_kind_is_read_as_it_would_be_alone(others: dict[str, Any]) -> None:
    known = Kinds()
    for _ in range(2):
        for asked in INPUTS.values():
            sent = body(others, asked)
            assert told(known.decode(sent, LIMITS)) == told(decode_create(sent, LIMITS))


def test_what_clients_really_send_is_read_as_it_would_be_alone() -> None:
    known = Kinds()
    for _, asked in creates():
        sent = msgspec.json.encode(asked)
        for _ in range(2):
            assert told(known.decode(sent, LIMITS)) == told(decode_create(sent, LIMITS))


def test_requests_of_one_kind_have_it_in_common() -> None:
    known, others = Kinds(), OTHERS["tools"]
    first = known.decode(body(others, {"input": "a"}), LIMITS)
    second = known.decode(body(others, {"input": [{"role": "user", "content": "b"}]}), LIMITS)
    assert first.kind is not None
    assert first.kind is second.kind
    continued = [known.decode(body(others, {"previous_response_id": name}), LIMITS) for name in ("resp_1", "resp_2")]
    assert continued[0].kind is continued[1].kind
    assert [one.request.previous_response_id for one in continued] == ["resp_1", "resp_2"]


def test_what_becomes_of_one_leaves_the_others_as_they_are() -> None:
    known, sent = Kinds(), body(OTHERS["settings"], {"input": "hi"})
    for _ in range(3):
        decoded = known.decode(sent, LIMITS)
        assert told(decoded) == told(decode_create(sent, LIMITS))
        decoded.request.input.clear()
        decoded.request.service_tier = "flex"
        decoded.request.stream = False


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_in_the_same_words_whether_its_kind_is_known_or_not(wrong: dict[str, Any]) -> None:
    known, others = Kinds(), OTHERS["a model"]
    for asked in INPUTS.values():
        known.decode(body(others, asked), LIMITS)
    sent = body(others, wrong)
    assert refusal(known.decode, sent) == refusal(decode_create, sent) == refusal(Kinds().decode, sent)


@pytest.mark.parametrize(
    "sent", [b"", b"{", b"[]", b'{"model":}', b'{"input":"\xff"}', b'{"model":"m","input":"\\ud800"}']
)
def test_what_is_no_json_is_refused_in_the_same_words(sent: bytes) -> None:
    assert refusal(Kinds().decode, sent) == refusal(decode_create, sent)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_bytes_are_taken_for_a_kind_that_they_are_not_of(data: st.DataObject) -> None:
    known, sent = Kinds(), body(OTHERS["settings"], {"input": "hi", "previous_response_id": "resp_1"})
    known.decode(sent, LIMITS)
    place, byte = data.draw(st.integers(0, len(sent) - 1)), data.draw(st.integers(0, 255))
    changed = sent[:place] + bytes([byte]) + sent[place + 1 :]
    try:
        expected = told(decode_create(changed, LIMITS))
    except AntiphonError:
        refusal(known.decode, changed)
    else:
        assert told(known.decode(changed, LIMITS)) == expected


def assert_decoded_alike(known: Kinds, sent: bytes) -> None:
    """As by the way that knows nothing: to the same request, or to the same refusal."""
    try:
        expected = told(decode_create(sent, LIMITS))
    except AntiphonError:
        assert refusal(known.decode, sent) == refusal(decode_create, sent)
    else:
        assert told(known.decode(sent, LIMITS)) == expected


def usual(sent: bytes) -> Kinds:
    """A server to which it is."""
    known = Kinds()
    for _ in range(request_cache.OFTEN + 1):
        known.decode(sent, LIMITS)
    assert len(known._usual) == 1
    return known


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("first", [True, False])
def test_what_is_usual_is_read_as_it_would_be_alone(others: dict[str, Any], first: bool) -> None:
    def whole(asked: dict[str, Any]) -> bytes:
        return body(asked, others) if first else body(others, asked)

    known = usual(whole({"input": "hi"}))
    for asked in INPUTS.values():
        assert told(known.decode(whole(asked), LIMITS)) == told(decode_create(whole(asked), LIMITS))
    for wrong in WRONG.values():
        assert refusal(known.decode, whole(wrong)) == refusal(decode_create, whole(wrong))


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
    "given", [b'"hello"', b"[]", b'[{"role":"user","content":"hi"}]', b"null", b"7", b'"a" "b"', b""]
)
def test_the_input_is_found_wherever_it_is(sent: bytes, given: bytes) -> None:
    known = usual(sent)
    (found,) = known._usual
    changed = found.before + given + found.after
    assert_decoded_alike(known, changed)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_nothing_is_taken_for_what_is_usual_that_is_not(data: st.DataObject) -> None:
    sent = body(OTHERS["settings"], {"input": "hi"}, {"instructions": "hi"})
    known, pieces = usual(sent), [b'"', b"\\", b",", b"]", b"[", b'","user":"', b'"input":', b"\xff", b"{}", b" ", b""]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(sent))] * 2)))
    changed = sent[:start] + b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=3))) + sent[stop:]
    assert_decoded_alike(known, changed)


@pytest.mark.parametrize("depth", range(LIMITS.json_depth - 3, LIMITS.json_depth + 2))
def test_what_is_usual_is_nested_as_deep_as_anything_may_be(depth: int) -> None:
    sent = body({"model": "m", "input": "hi"})
    nested = sent.replace(b'"hi"', b"[" * depth + b"{" * 70 + b"]" * depth)
    known = usual(sent)
    assert refusal(known.decode, nested) == refusal(decode_create, nested)
    nested = sent.replace(b'"hi"', b"[" * depth + b"]" * depth + b" " * 2000)
    assert refusal(known.decode, nested) == refusal(decode_create, nested)


def test_one_that_is_usual_may_begin_and_end_like_another() -> None:
    known, few, more = Kinds(), {"input": "hi"}, {"input": "hi", "model": "m"}
    for _ in range(2 * request_cache.OFTEN):
        for asked in (few, more):
            sent = body(asked)
            assert told(known.decode(sent, LIMITS)) == told(decode_create(sent, LIMITS))
    assert {one.after for one in known._usual} == {b"}", b',"model":"m"}'}


def test_little_is_kept_of_what_is_usual_and_no_secret() -> None:
    known = Kinds()
    for number in range(request_cache.MOST_USUAL + 3):
        for _ in range(request_cache.OFTEN + 1):
            known.decode(body({"model": f"m{number}", "input": "hi"}), LIMITS)
    assert len(known._usual) == request_cache.MOST_USUAL
    for others in (
        {"model": "m", "tools": [MCP]},
        {"model": "m", "instructions": "x" * request_cache.MOST_BYTES_OF_ONE},
    ):
        known = Kinds()
        for _ in range(2 * request_cache.OFTEN):
            known.decode(body(others, {"input": "hi"}), LIMITS)
        assert not known._usual


def test_no_more_kinds_are_kept_than_there_is_room_for() -> None:
    known = Kinds()
    for number in range(request_cache.MOST + 10):
        known.decode(body({"model": f"m{number}"}), LIMITS)
    assert len(known._known) == request_cache.MOST
    large = "x" * (request_cache.MOST_BYTES_OF_ONE - 1000)
    for number in range(20):
        known.decode(body({"model": f"m{number}", "instructions": large}), LIMITS)
    assert known._bytes == sum(len(b"".join([*map(str.encode, names), values])) for names, values in known._known)
    assert known._bytes <= request_cache.MOST_BYTES
    assert len(known._known) < 20


@pytest.mark.parametrize(
    "asked",
    [
        {"instructions": "x" * request_cache.MOST_BYTES_OF_ONE},
        {"x" * request_cache.MOST_BYTES_OF_ONE: 1},
        {"tools": [MCP]},
    ],
    ids=["much", "long names", "secrets"],
)
def test_what_is_large_or_may_hold_secrets_is_not_kept(asked: dict[str, Any]) -> None:
    known = Kinds()
    assert known.decode(body({"model": "m"}, asked), LIMITS).kind is None
    assert not known._known
