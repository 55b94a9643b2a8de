"""Forms with files (multipart/form-data, RFC 7578), parsed while they arrive: the content of a file is never complete
in memory.

    parser.feed(data) ──▶ PartHead, bytes, bytes …, PART_END, PartHead …
"""

import re
from enum import Enum
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct, ValidationError
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from antiphon.errors import InvalidValue
from antiphon.protocol.decoding.error_messages import explain

T = TypeVar("T", bound=Struct)

MAX_PARTS: Final = 64
_BOUNDARY: Final = re.compile(rb"[ -~]{1,70}")  # RFC 2046 §5.1.1


class _PartEnd(Enum):
    PART_END = "end"


PART_END: Final = _PartEnd.PART_END


class PartHead(Struct, frozen=True):
    """The beginning of a field, or of a file if it has a file name."""

    name: str
    filename: str | None


FormEvent = PartHead | bytes | Literal[_PartEnd.PART_END]


class FormParser:
    """Parses one form. Raises InvalidValue for a body that is not a form."""

    def __init__(self, media_type: bytes, max_parts: int = MAX_PARTS) -> None:
        _, parameters = parse_options_header(media_type)
        boundary = parameters.get(b"boundary", b"")
        if not _BOUNDARY.fullmatch(boundary):
            raise InvalidValue("The Content-Type of a form has a boundary of 1 to 70 characters.")
        self._events: list[FormEvent] = []
        self._part_count, self._max_parts = 0, max_parts
        self._header_name = self._header_value = b""
        self._disposition = b""
        self.ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_header_field": self._on_header_name,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_end": self._on_end,
            },
        )

    def feed(self, data: bytes) -> list[FormEvent]:
        """Return what is complete now."""
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise InvalidValue(f"The body is not a valid form: {error}.") from None
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """Check that the form is complete."""
        if not self.ended:
            raise InvalidValue("The body is not a complete form.")

    def _on_part_begin(self) -> None:
        self._part_count += 1
        self._disposition = b""
        if self._part_count > self._max_parts:
            raise InvalidValue(f"A form has at most {self._max_parts} fields.")

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, parameters = parse_options_header(self._disposition)
        name, filename = parameters.get(b"name"), parameters.get(b"filename")
        if name is None:
            raise InvalidValue("A field of the form has no name.")
        self._events.append(PartHead(_decode(name), None if filename is None else _decode(filename)))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(data[start:end])

    def _on_part_end(self) -> None:
        self._events.append(PART_END)

    def _on_end(self) -> None:
        self.ended = True


def _decode(name: bytes) -> str:
    """Decode a name, in which browsers and SDKs write a quotation mark in this way (HTML §4.10.21.8)."""
    return name.decode(errors="replace").replace("%22", '"')


def convert_fields(values: dict[str, Any], kind: type[T]) -> tuple[T, list[str]]:
    """Return the fields of a form, whose values are texts, as a struct, and the names of unknown ones."""
    try:
        request = msgspec.convert(values, kind, strict=False)
    except ValidationError as error:
        raise explain(error, values, kind) from None
    return request, [name for name in values if name not in kind.__struct_fields__]
