"""Tests `protocol/bodies/forms.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidValue
from antiphon.protocol.bodies.forms import MAX_PARTS, PART_END, FormParser, PartHead

MEDIA_TYPE = b"multipart/form-data; boundary=XX"
FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xa4.txt"\r\nContent-Type: text/plain\r\n\r\n'
    b"line 1\r\n--X\r\n--XY line 2\r\n--XX--\r\n"
)
PARTS = [
    (PartHead("purpose", None), b"user_data"),
    (PartHead("file", "ä.txt"), b"line 1\r\n--X\r\n--XY line 2"),
]


def parse(*pieces: bytes) -> list[tuple[PartHead, bytes]]:
    """Return the heads and the contents of the parts."""
    parser = FormParser(MEDIA_TYPE)
    parts: list[tuple[PartHead, bytes]] = []
    for piece in pieces:
        for event in parser.feed(piece):
            if isinstance(event, PartHead):
                parts.append((event, b""))
            elif event is not PART_END:
                parts[-1] = (parts[-1][0], parts[-1][1] + event)
    parser.finish()
    return parts


@given(st.sets(st.integers(1, len(FORM) - 1)))
def test_a_form_is_read_alike_wherever_it_is_cut(cuts: set[int]) -> None:
    ends = [*sorted(cuts), len(FORM)]
    assert parse(*[FORM[start:end] for start, end in zip([0, *ends], ends, strict=False)]) == PARTS


@pytest.mark.parametrize("written", [b"a %22b%22.txt", rb"a \"b\".txt"])
def test_a_name_may_contain_quotation_marks(written: bytes) -> None:
    [(_, _), (head, _)] = parse(FORM.replace("ä.txt".encode(), written))
    assert head.filename == 'a "b".txt'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not a complete form"),
        (b"{}", "not a valid form"),
        (FORM[:-8], "not a complete form"),
        (b"--XX\r\nX: 1\r\n\r\nvalue\r\n--XX--\r\n", "has no name"),
        (b'--XX\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (MAX_PARTS + 1), "at most 64 fields"),
        (b"--XX\r\n" + b"X: 1\r\n" * 100, "not a valid form"),
        (b"--XX\r\nX: " + b"1" * 10_000, "not a valid form"),
    ],
)
def test_a_body_that_is_no_form_is_rejected_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        parse(body)


@pytest.mark.parametrize("parameters", [b"", b"; boundary=", b"; boundary=" + b"x" * 71, b"; boundary=\xe4"])
def test_a_boundary_has_1_to_70_characters(parameters: bytes) -> None:
    with pytest.raises(InvalidValue, match="1 to 70"):
        FormParser(b"multipart/form-data" + parameters)
