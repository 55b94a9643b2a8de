import pytest

from antiphon.transport.server.http_exchange import Heads

OWN = [(b"date", b"Mon, 16 Nov 2026 00:00:00 GMT")]


def test_the_servers_own_headers_come_first_and_change_with_it() -> None:
    heads = Heads()
    first = heads.make(200, OWN, [(b"a", b"b")], b"{}")
    assert first == b"HTTP/1.1 200 OK\r\ndate: Mon, 16 Nov 2026 00:00:00 GMT\r\na: b\r\n\r\n{}"
    assert heads.make(404, [(b"date", b"later")], []) == b"HTTP/1.1 404 Not Found\r\ndate: later\r\n\r\n"
    assert heads.make(200, [(b"date", b"later")], []) == b"HTTP/1.1 200 OK\r\ndate: later\r\n\r\n"


@pytest.mark.parametrize("byte", [0x00, 0x08, 0x0A, 0x0D, 0x1F, 0x7F])
@pytest.mark.parametrize("place", [0, 1])
def test_what_could_begin_another_header_is_none(byte: int, place: int) -> None:
    header = [b"x-name", b"a value"]
    header[place] += bytes([byte]) + b"set-cookie: a=b"
    with pytest.raises(ValueError, match="control characters"):
        Heads().make(200, OWN, [(b"a", b"b"), (header[0], header[1])])


def test_a_tab_and_what_is_not_ascii_are_no_harm() -> None:
    assert b"\r\nx: a\tb\xff\r\n\r\n" in Heads().make(200, OWN, [(b"x", b"a\tb\xff")])
