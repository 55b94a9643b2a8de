import msgspec
import pytest

from antiphon import errors
from antiphon.errors import AntiphonError, Busy, InvalidValue, MethodNotAllowed, Unavailable
from antiphon.transport.http import error_responses


def kinds() -> list[type[AntiphonError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, AntiphonError)]
    assert len(found) > 15
    return found


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.shows("H.14", "H.15")
def test_every_error_has_the_one_shape(kind: type[AntiphonError]) -> None:
    error = MethodNotAllowed("No.", allow="GET") if kind is MethodNotAllowed else kind("No.")
    assert msgspec.json.decode(error_responses.body(error)) == {
        "error": {"message": "No.", "type": kind.type, "param": None, "code": kind.code}
    }
    assert 400 <= kind.status < 600
    assert all(isinstance(name, bytes) and name.islower() for name, _ in error_responses.headers(error))


def test_the_field_to_blame_is_named() -> None:
    body = msgspec.json.decode(error_responses.body(InvalidValue("Too hot.", param="temperature")))
    assert body["error"]["param"] == "temperature"
    assert body["error"]["code"] == "invalid_value"


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"),
    [(0.0, b"1", b"1"), (0.2, b"1", b"200"), (1.0, b"1", b"1000"), (1.2, b"2", b"1200"), (60.0, b"60", b"60000")],
)
@pytest.mark.shows("H2.6")
def test_when_to_come_back_is_at_least_a_second_in_the_header_that_counts_seconds(
    seconds: float, whole: bytes, milliseconds: bytes
) -> None:
    for kind in (Busy, Unavailable):
        headers = dict(error_responses.headers(kind("Later.", retry_after=seconds)))
        assert headers == {b"retry-after": whole, b"retry-after-ms": milliseconds}
    assert error_responses.headers(Busy("Later.")) == []


def test_a_known_error_is_told_as_it_is_and_an_unknown_one_is_not() -> None:
    known = Busy("Later.")
    assert error_responses.as_client_error(known, "req_1") is known
    told = error_responses.as_client_error(KeyError("/home/secret"), "req_1")
    assert told.status == 500
    assert "req_1" in told.message
    assert "secret" not in told.message
