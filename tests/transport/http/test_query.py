"""Query strings are validated as strictly as bodies, and errors name the parameter."""

from typing import Any

import pytest
from msgspec import Struct

from antiphon.errors import BadRequest
from antiphon.protocol.types.lists import ItemsQuery
from antiphon.transport.endpoints.stored_responses import RetrieveQuery
from antiphon.transport.http.channel import HttpChannel
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, build_request
from tests.support.asgi_client import HOST, build_http_scope


async def _unused(*_: Any) -> Any:
    raise AssertionError("nothing is read or sent")


def make_request(query: str) -> Request:
    return build_request(
        HttpChannel(build_http_scope("GET", f"/x?{query}".encode(), [HOST]), _unused, _unused), Request
    )


def read(query: str, kind: type[Struct] = ItemsQuery) -> Any:
    return read_query(make_request(query), kind)


def test_an_empty_query_has_the_defaults() -> None:
    assert read("") == ItemsQuery(limit=20, order="desc", after=None, include=[])
    assert read("", RetrieveQuery) == RetrieveQuery()


def test_values_are_converted_to_their_types() -> None:
    assert read("limit=5&order=asc&after=msg_1") == ItemsQuery(limit=5, order="asc", after="msg_1")
    query = read("stream=true&starting_after=42&include_obfuscation=false", RetrieveQuery)
    assert query == RetrieveQuery(stream=True, starting_after=42, include_obfuscation=False)


@pytest.mark.parametrize(
    "query",
    [
        "include[]=message.output_text.logprobs&include[]=file_search_call.results",
        "include=message.output_text.logprobs&include=file_search_call.results",
        "include%5B%5D=message.output_text.logprobs&include=file_search_call.results",
    ],
)
@pytest.mark.shows("A4.2")
def test_lists_are_accepted_with_and_without_brackets(query: str) -> None:
    assert read(query).include == ["message.output_text.logprobs", "file_search_call.results"]


def test_unknown_parameters_are_reported_and_ignored() -> None:
    http_request = make_request("beta=true&limit=3&limt=4&limit[]=5&beta=1")
    assert read_query(http_request, ItemsQuery) == ItemsQuery(limit=3)
    assert http_request.ignored == ["beta", "limt", "limit[]"]


@pytest.mark.parametrize(
    ("query", "param", "message"),
    [
        ("limit=0", "limit", "expected an integer >= 1"),
        ("limit=101", "limit", "expected an integer <= 100"),
        ("limit=x", "limit", "'x' is not an integer"),
        ("limit=", "limit", "'' is not an integer"),
        ("limit=" + "9" * 5000, "limit", "out of range"),
        ("limit=1&limit=2", "limit", "given twice"),
        ("order=up", "order", "'up' is not one of 'asc', 'desc'"),
        ("order=asc&order=asc", "order", "given twice"),
        ("include[]=everything", "include[0]", "'everything' is not one of 'code_interpreter_call.outputs'"),
        ("include=", "include[0]", "not one of"),
    ],
)
def test_an_invalid_value_is_a_400_that_names_the_parameter(query: str, param: str, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read(query)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert message in raised.value.message


@pytest.mark.parametrize("value", ["-1", "-100", "x", "", "1.5", "9" * 30, "nan", "1e400", "0x10", "%00"])
@pytest.mark.shows("A.5")
def test_starting_after_must_be_a_non_negative_integer(value: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read(f"stream=true&starting_after={value}", RetrieveQuery)
    assert raised.value.param == "starting_after"


@pytest.mark.parametrize("value", ["yes", "2", "", "null"])
def test_stream_must_be_a_boolean(value: str) -> None:
    with pytest.raises(BadRequest) as raised:
        read(f"stream={value}", RetrieveQuery)
    assert raised.value.param == "stream"
    assert "is not a boolean" in raised.value.message


def test_a_query_with_too_many_parameters_is_rejected() -> None:
    with pytest.raises(BadRequest, match="more than 64"):
        read("&".join(f"a{number}=1" for number in range(65)))


@pytest.mark.parametrize("query", ["%ff=%fe", "&&&", "=x", "a=%zz", "\xff=1", "after=%00"])
def test_malformed_escapes_and_pairs_are_tolerated(query: str) -> None:
    assert read(query).limit == 20
