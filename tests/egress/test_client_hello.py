"""The server name in the first message of a TLS client, as this Python sends it."""

import ssl
import struct

import pytest

from antiphon.egress.client_hello import MAX_RECORD, measure_record, read_server_name


def make_hello(name: str | None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    output = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), output, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return output.read()


def extend(hello: bytes, kind: int, data: bytes) -> bytes:
    """Add an extension, and correct the lengths of the record, the message and its extensions."""
    extension = struct.pack(">HH", kind, len(data)) + data
    body = hello[5:]
    position = 38 + 1 + body[38]
    position += 2 + int.from_bytes(body[position : position + 2], "big")
    position += 1 + body[position]
    size = int.from_bytes(body[position : position + 2], "big") + len(extension)
    body = body[:position] + struct.pack(">H", size) + body[position + 2 :] + extension
    body = body[:1] + (len(body) - 4).to_bytes(3, "big") + body[4:]
    return hello[:3] + struct.pack(">H", len(body)) + body


def test_the_name_is_found() -> None:
    hello = make_hello("a.example")
    assert measure_record(hello[:5]) == len(hello)
    assert read_server_name(hello) == "a.example"
    assert read_server_name(extend(hello, 0x3A3A, b"x")) == "a.example"


def test_a_message_without_a_name_or_with_two_or_with_a_hidden_one_is_rejected() -> None:
    hello = make_hello("a.example")
    other = b"b.example"
    second = struct.pack(">HBH", len(other) + 3, 0, len(other)) + other
    for changed in (make_hello(None), extend(hello, 0, second), extend(hello, 0xFE0D, b"\0")):
        with pytest.raises(ValueError, match="exactly one server name"):
            read_server_name(changed)


@pytest.mark.parametrize(
    "names",
    [
        struct.pack(">HBH", 12, 1, 9) + b"b.example",  # of another kind
        struct.pack(">HBH", 12, 0, 8) + b"b.example",
        struct.pack(">HBH", 11, 0, 8) + b"b.example",
        struct.pack(">HBH", 24, 0, 9) + b"b.example" + struct.pack(">BH", 0, 9) + b"c.example",
    ],
)
def test_a_list_that_is_not_exactly_one_host_name_is_rejected(names: bytes) -> None:
    with pytest.raises(ValueError, match="exactly one server name"):
        read_server_name(extend(make_hello(None), 0, names))


def test_a_record_has_at_most_the_size_that_tls_allows() -> None:
    assert measure_record(b"\x16\x03\x01\x40\x00") == MAX_RECORD
    with pytest.raises(ValueError, match="not the beginning of TLS"):
        measure_record(b"\x16\x03\x01\x40\x01")


@pytest.mark.parametrize("name", ["a.example", "b" * 60 + ".example"])
def test_a_message_that_is_cut_or_changed_anywhere_is_rejected_or_has_its_own_name(name: str) -> None:
    hello = make_hello(name)
    for count in range(5, len(hello)):
        with pytest.raises(ValueError, match="not a whole one"):
            read_server_name(hello[:count])
    for index in range(5, len(hello)):
        changed = hello[:index] + bytes([hello[index] ^ 0xFF]) + hello[index + 1 :]
        try:
            found = read_server_name(changed)
        except ValueError:
            continue
        assert found.encode() in changed


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\x15\x03\x01\0\x02", b"\x16\x03\x01\xff\xff"]
)
def test_another_protocol_is_rejected_at_its_first_bytes(data: bytes) -> None:
    with pytest.raises(ValueError, match="not the beginning of TLS"):
        measure_record(data)
