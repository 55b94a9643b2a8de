"""Forms are divided and named in one pass, however they are written."""

from contextlib import suppress

import pytest

from antiphon.errors import BadRequest, InvalidValue, MissingParameter
from antiphon.protocol.bodies.multipart import read_form
from tests.support.cpu import cpu_time

KIND = b"multipart/form-data; boundary=x"
MEBIBYTE = 1024 * 1024


def part(disposition: str, value: str = "fake") -> bytes:
    return f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{value}\r\n".encode()


@pytest.mark.parametrize(
    "disposition", ["name=model", 'name="model"', 'NAME="model"', 'filename="a;b=c"; name="model"', 'name="mo\\del"']
)
def test_a_field_is_known_by_its_name_however_that_is_written(disposition: str) -> None:
    form = read_form(part(disposition) + b"--x--", KIND, "model")
    assert form.value == "fake"
    assert form.saying("other") == part(disposition, "other") + b"--x--"


def test_of_two_names_the_first_counts() -> None:
    with pytest.raises(MissingParameter):
        read_form(part("name=x; name=model") + b"--x--", KIND, "model")


@pytest.mark.parametrize("before", [b"", b"\r\n", b"hello\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("after", [b"", b"\r\n", b"\r\nhello"])
def test_what_stands_before_and_behind_a_form_is_passed_on(before: bytes, after: bytes) -> None:
    sent = before + part("name=model") + b"--x--" + after
    told = read_form(sent, KIND, "model").saying("other")
    assert told.removeprefix(b"\r\n") == sent.replace(b"\r\nfake\r\n", b"\r\nother\r\n").removeprefix(b"\r\n")


@pytest.mark.parametrize(
    "kind", [b"multipart/form-data", KIND + b"y" * 70, KIND[:-1] + b'"', b"a;" * 30_000, KIND[:-1]]
)
def test_a_form_that_does_not_say_how_it_is_divided_is_refused(kind: bytes) -> None:
    with pytest.raises(InvalidValue):
        read_form(part("name=model") + b"--x--", kind, "model")


@pytest.mark.parametrize("piece", [";", '"', "\\", "; a=b", "; name*0=b", "=", ' ; name="', ";name", "\r\nX: y"])
@pytest.mark.parametrize("size", [8_000, MEBIBYTE])
def test_what_stands_before_a_part_is_read_in_no_time(piece: str, size: int) -> None:
    """Readers of mail take minutes for a megabyte of semicolons."""
    sent = part("name=y" + piece * (size // len(piece))) + part("name=model") + b"--x--"
    with cpu_time() as spent, suppress(BadRequest):
        read_form(sent, KIND, "model")
    assert spent.seconds < 0.1


def test_a_part_without_a_head_that_ends_is_refused() -> None:
    with pytest.raises(InvalidValue, match="no head"):
        read_form(b"--x\r\nContent-Disposition: form-data; name=model\r\n--x--", KIND, "model")


@pytest.mark.parametrize("piece", [b"--", b"\r\n", b"\r\n--", b"\r", b"-"])
def test_what_is_nearly_a_boundary_takes_no_more_time_than_anything_else(piece: bytes) -> None:
    sent = piece * (5 * MEBIBYTE // len(piece)) + b"\r\n" + part("name=model") + b"--x--"
    with cpu_time() as spent:
        assert read_form(sent, KIND, "model").value == "fake"
    assert spent.seconds < 0.2
