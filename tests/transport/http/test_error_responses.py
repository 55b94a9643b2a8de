"""The body and the headers of HTTP error responses."""

import msgspec
import pytest

from antiphon import errors
from antiphon.errors import AntiphonError, Busy, InvalidValue, MethodNotAllowed, Unavailable, UnknownVectorStore
from antiphon.transport.http import error_responses

OWN_ARGUMENTS: dict[type[AntiphonError], AntiphonError] = {
    MethodNotAllowed: MethodNotAllowed("No.", allow="GET"),
    UnknownVectorStore: UnknownVectorStore("vs_1"),
}


def list_error_types() -> list[type[AntiphonError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, AntiphonError)]
    assert len(found) > 15
    return found


@pytest.mark.parametrize("error_type", list_error_types())
@pytest.mark.shows("H.14", "H.15")
def test_every_error_has_the_standard_format(error_type: type[AntiphonError]) -> None:
    error = OWN_ARGUMENTS.get(error_type) or error_type("No.")
    assert msgspec.json.decode(error_responses.render_body(error)) == {
        "error": {"message": str(error), "type": error_type.type, "param": error.param, "code": error_type.code}
    }
    assert 400 <= error_type.status < 600
    assert all(isinstance(name, bytes) and name.islower() for name, _ in error_responses.render_headers(error))


def test_an_unknown_vector_store_is_named_with_its_parameter() -> None:
    body = msgspec.json.decode(error_responses.render_body(UnknownVectorStore("vs_1")))
    assert (body["error"]["message"], body["error"]["param"]) == ("There is no vector store 'vs_1'.", "vector_store_id")


def test_the_invalid_field_is_named() -> None:
    body = msgspec.json.decode(error_responses.render_body(InvalidValue("Too hot.", param="temperature")))
    assert body["error"]["param"] == "temperature"
    assert body["error"]["code"] == "invalid_value"


@pytest.mark.parametrize(
    ("seconds", "whole_seconds", "milliseconds"),
    [(0.0, b"1", b"1"), (0.2, b"1", b"200"), (1.0, b"1", b"1000"), (1.2, b"2", b"1200"), (60.0, b"60", b"60000")],
)
@pytest.mark.shows("H2.6")
def test_retry_after_is_rounded_up_to_at_least_one_second(
    seconds: float, whole_seconds: bytes, milliseconds: bytes
) -> None:
    for error_type in (Busy, Unavailable):
        headers = dict(error_responses.render_headers(error_type("Later.", retry_after=seconds)))
        assert headers == {b"retry-after": whole_seconds, b"retry-after-ms": milliseconds}
    assert error_responses.render_headers(Busy("Later.")) == []


def test_unexpected_exceptions_are_hidden_from_the_client() -> None:
    error = Busy("Later.")
    assert error_responses.to_client_error(error, "req_1") is error
    replacement = error_responses.to_client_error(KeyError("/home/secret"), "req_1")
    assert replacement.status == 500
    assert "req_1" in replacement.message
    assert "secret" not in replacement.message
