"""Multipart forms are split into fields in one pass, in every spelling."""

from contextlib import suppress

import pytest

from antiphon.errors import BadRequest, InvalidValue, MissingParameter
from antiphon.protocol.bodies.passthrough import read_form
from tests.support.cpu import cpu_timer

CONTENT_TYPE = b"multipart/form-data; boundary=x"
MEBIBYTE = 1024 * 1024


def make_part(disposition: str, value: str = "fake") -> bytes:
    return f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{value}\r\n".encode()


@pytest.mark.parametrize(
    "disposition", ["name=model", 'name="model"', 'NAME="model"', 'filename="a;b=c"; name="model"', 'name="mo\\del"']
)
def test_a_field_is_found_by_every_spelling_of_its_name(disposition: str) -> None:
    form = read_form(make_part(disposition) + b"--x--", CONTENT_TYPE, "model")
    assert form.value == "fake"
    assert form.encode_with("other") == make_part(disposition, "other") + b"--x--"


def test_the_first_of_two_names_counts() -> None:
    with pytest.raises(MissingParameter):
        read_form(make_part("name=x; name=model") + b"--x--", CONTENT_TYPE, "model")


@pytest.mark.parametrize("before", [b"", b"\r\n", b"hello\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("after", [b"", b"\r\n", b"\r\nhello"])
def test_preamble_and_epilogue_are_passed_on(before: bytes, after: bytes) -> None:
    sent = before + make_part("name=model") + b"--x--" + after
    encoded = read_form(sent, CONTENT_TYPE, "model").encode_with("other")
    assert encoded.removeprefix(b"\r\n") == sent.replace(b"\r\nfake\r\n", b"\r\nother\r\n").removeprefix(b"\r\n")


@pytest.mark.parametrize(
    "content_type",
    [b"multipart/form-data", CONTENT_TYPE + b"y" * 70, CONTENT_TYPE[:-1] + b'"', b"a;" * 30_000, CONTENT_TYPE[:-1]],
)
def test_a_form_without_a_valid_boundary_is_rejected(content_type: bytes) -> None:
    with pytest.raises(InvalidValue):
        read_form(make_part("name=model") + b"--x--", content_type, "model")


@pytest.mark.parametrize("piece", [";", '"', "\\", "; a=b", "; name*0=b", "=", ' ; name="', ";name", "\r\nX: y"])
@pytest.mark.parametrize("size", [8_000, MEBIBYTE])
def test_part_headers_are_parsed_quickly(piece: str, size: int) -> None:
    """Mail parsers take minutes for a megabyte of semicolons."""
    sent = make_part("name=y" + piece * (size // len(piece))) + make_part("name=model") + b"--x--"
    with cpu_timer() as spent, suppress(BadRequest):
        read_form(sent, CONTENT_TYPE, "model")
    assert spent.seconds < 0.1


def test_a_part_with_unterminated_headers_is_rejected() -> None:
    with pytest.raises(InvalidValue, match="no head"):
        read_form(b"--x\r\nContent-Disposition: form-data; name=model\r\n--x--", CONTENT_TYPE, "model")


@pytest.mark.parametrize("piece", [b"--", b"\r\n", b"\r\n--", b"\r", b"-"])
def test_near_boundaries_are_scanned_quickly(piece: bytes) -> None:
    sent = piece * (5 * MEBIBYTE // len(piece)) + b"\r\n" + make_part("name=model") + b"--x--"
    with cpu_timer() as spent:
        assert read_form(sent, CONTENT_TYPE, "model").value == "fake"
    assert spent.seconds < 0.2
