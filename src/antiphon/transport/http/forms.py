"""Reads forms: with one file, which goes to a function while it arrives, or with several, whose contents are returned.
Other fields are collected.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from antiphon.errors import BodyTooLarge, InvalidValue, missing_parameter
from antiphon.protocol.bodies.forms import MAX_PARTS, PART_END, FormEvent, FormParser, PartHead
from antiphon.transport.http.request import Request

T = TypeVar("T")
_MAX_FIELD_BYTES = 64 * 1024  # of a field that is not a file


class ReceivedForm(Struct, Generic[T]):
    filename: str = ""
    file: T | None = None  # what the function made of the file; None: it has not arrived
    fields: dict[str, str] = {}


async def read_form(
    request: Request,
    field: str,
    max_bytes: int,
    save: Callable[[AsyncIterator[bytes], int], Awaitable[T]],
    form: ReceivedForm[T],
) -> None:
    """Read the form into `form`, which is valid as far as the form was read if this raises.

    `field`: the name of the file. `save` reads its content to the end, and raises above `max_bytes`.
    """
    events = _read_events(request, max_bytes + MAX_PARTS * _MAX_FIELD_BYTES)
    async for event in events:
        assert isinstance(event, PartHead)
        if event.name == field:
            if form.file is not None:
                raise InvalidValue(f"'{field}' is given twice.", param=field)
            form.filename = event.filename or ""
            form.file = await save(_read_part(events), max_bytes)
        else:
            form.fields[event.name] = await _read_field(event.name, events)
    if form.file is None:
        raise missing_parameter(field)


class FormFile(Struct, frozen=True):
    field: str  # without []
    name: str
    content: bytes


async def read_files(
    request: Request, file_fields: Sequence[str], max_bytes: int, max_files: int
) -> tuple[list[FormFile], dict[str, str]]:
    """Return the files in these fields, which may also be written `field[]`, and the other fields. There must be a file
    in the first one.
    """
    files: list[FormFile] = []
    fields: dict[str, str] = {}
    total = 0
    events = _read_events(request, max_bytes + MAX_PARTS * _MAX_FIELD_BYTES, MAX_PARTS + max_files)
    async for event in events:
        assert isinstance(event, PartHead)
        field = event.name.partition("[")[0]
        if field not in file_fields or event.filename is None:
            fields[event.name] = await _read_field(event.name, events)
            continue
        content = bytearray()
        async for piece in _read_part(events):
            content += piece
            if total + len(content) > max_bytes:
                raise BodyTooLarge(f"The files are larger than the limit of {max_bytes:,} bytes.")
        total += len(content)
        files.append(FormFile(field, event.filename, bytes(content)))
    if not any(file.field == file_fields[0] for file in files):
        raise missing_parameter(file_fields[0])
    return files, fields


async def _read_events(request: Request, max_bytes: int, max_parts: int = MAX_PARTS) -> AsyncIterator[FormEvent]:
    parser, channel = FormParser(request.check_form(max_bytes), max_parts), request.channel
    while channel.more:
        for event in parser.feed(await channel.read()):
            yield event
    parser.finish()


async def _read_part(events: AsyncIterator[FormEvent]) -> AsyncIterator[bytes]:
    async for event in events:
        if event is PART_END:
            return
        assert isinstance(event, bytes)
        yield event


async def _read_field(name: str, events: AsyncIterator[FormEvent]) -> str:
    value = b""
    async for piece in _read_part(events):
        value += piece
        if len(value) > _MAX_FIELD_BYTES:
            raise InvalidValue(f"'{name[:64]}' has more than {_MAX_FIELD_BYTES} bytes.", param=name[:64])
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidValue(f"'{name[:64]}' is not valid UTF-8.", param=name[:64]) from None
