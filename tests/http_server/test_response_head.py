"""Rendering of HTTP response heads."""

import pytest

from antiphon.http_server.response_head import ResponseHeads

DEFAULT_HEADERS = [(b"date", b"Mon, 16 Nov 2026 00:00:00 GMT")]


def test_default_headers_come_first_and_may_change() -> None:
    heads = ResponseHeads()
    first = heads.render(200, DEFAULT_HEADERS, [(b"a", b"b")])
    assert first == b"HTTP/1.1 200 OK\r\ndate: Mon, 16 Nov 2026 00:00:00 GMT\r\na: b\r\n\r\n"
    assert heads.render(404, [(b"date", b"later")], []) == b"HTTP/1.1 404 Not Found\r\ndate: later\r\n\r\n"
    assert heads.render(200, [(b"date", b"later")], []) == b"HTTP/1.1 200 OK\r\ndate: later\r\n\r\n"


@pytest.mark.parametrize("byte", [0x00, 0x08, 0x0A, 0x0D, 0x1F, 0x7F])
@pytest.mark.parametrize("index", [0, 1])
def test_control_characters_in_a_header_are_rejected(byte: int, index: int) -> None:
    header = [b"x-name", b"a value"]
    header[index] += bytes([byte]) + b"set-cookie: a=b"
    with pytest.raises(ValueError, match="control characters"):
        ResponseHeads().render(200, DEFAULT_HEADERS, [(b"a", b"b"), (header[0], header[1])])


def test_tabs_and_non_ascii_bytes_are_allowed_in_a_header() -> None:
    assert b"\r\nx: a\tb\xff\r\n\r\n" in ResponseHeads().render(200, DEFAULT_HEADERS, [(b"x", b"a\tb\xff")])
