"""A response is read from bytes however they are cut, and the next one may follow on the same connection."""

import pytest

from antiphon.http1 import MAX_HEAD_BYTES, HttpResponseReader, InvalidResponse

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


class Collector(HttpResponseReader):
    """A reader that collects the body."""

    def __init__(self) -> None:
        self.body = b""
        super().__init__({})
        self.expect_response()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name] = value

    def on_body(self, body: bytes) -> None:
        self.body += body


def test_single_bytes_are_a_response_that_leaves_the_connection_reusable() -> None:
    reader = Collector()
    for byte in b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD + b"ok":
        assert not reader.complete
        reader.feed(bytes((byte,)))
    assert (reader.status, reader.body, reader.complete, reader.reusable) == (200, b"ok", True, True)
    assert (reader.get_header(b"content-length"), reader.get_header(b"link")) == (b"2", b"")


def test_a_second_response_follows_a_second_request() -> None:
    reader = Collector()
    reader.feed(HEAD + b"ok")
    reader.expect_response()
    reader.feed(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    assert (reader.status, reader.body, reader.complete, reader.reusable) == (204, b"ok", True, False)


def test_data_after_a_response_does_not_change_it_but_prevents_reuse() -> None:
    reader = Collector()
    reader.feed(HEAD + b"ok" + HEAD + b"no")
    assert (reader.body, reader.complete, reader.reusable) == (b"ok", True, False)


@pytest.mark.parametrize(
    ("data", "complete"),
    [(b"HTTP/1.1 200 OK\r\n\r\nok", True), (HEAD + b"o", False), (b"HTTP/1.1 200 OK\r\n", False), (b"", False)],
)
def test_the_end_of_the_connection_completes_a_body_without_a_length_only(data: bytes, complete: bool) -> None:
    reader = Collector()
    reader.feed(data)
    assert reader.end() is complete
    assert not reader.reusable


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.7\r\n", "invalid HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "invalid HTTP"),
        (HEAD[:-2] + b"Content-Length: 3\r\n\r\n", "invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES, "exceed the size limit"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n", "exceed the size limit"),
    ],
)
def test_invalid_data_is_rejected_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidResponse, match=reason):
        Collector().feed(data)
