"""/v1/files and /v1/uploads: receives and sends contents; service/files.py implements the operations."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec import Struct

from antiphon.errors import RangeNotSatisfiable
from antiphon.limits import Limits
from antiphon.protocol.bodies.files import check_filename, decode_completion, decode_file_fields, decode_upload
from antiphon.protocol.types import files as wire
from antiphon.service.files import Files, StoredContent
from antiphon.transport.http.forms import ReceivedForm, read_form
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, read_json
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route

_FILE = "/v1/files/{file_id}"
_UPLOAD = "/v1/uploads/{upload_id}"
_FORM = "multipart/form-data"
_BYTES = "application/octet-stream"
_RANGE = re.compile(rb"bytes=(\d{0,18})-(\d{0,18})")  # RFC 9110 §14.1.2; several ranges are answered with the whole


class FileForm(wire.FileFields, frozen=True, kw_only=True):
    """The form of a file, for the description of the API."""

    file: bytes


class PartForm(Struct, frozen=True, kw_only=True):
    """The form of a part of an upload, for the description of the API."""

    data: bytes


class FilesEndpoint(Struct, frozen=True):
    service: Files
    limits: Limits

    @Route("POST", "/v1/files", takes=FileForm, takes_media_type=_FORM, new_work=True)
    async def create(self, request: Request) -> wire.FileObject:
        """Upload a file. A form with `file`, `purpose` and, optionally, `expires_after[anchor]` and
        `expires_after[seconds]`.
        """
        async with self._receive(request, "file", self.limits.stored_file_bytes) as (form, content):
            check_filename(form.filename, self.limits, "file")
            fields, request.ignored = decode_file_fields(form.fields)
            return await self.service.create(request.tenant, form.filename, fields, content)

    @Route("GET", "/v1/files", query=wire.FilesQuery, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> wire.FileList:
        """List files."""
        return await self.service.list_files(request.tenant, read_query(request, wire.FilesQuery))

    @Route("GET", _FILE, errors=READ_ERRORS)
    async def get(self, request: Request) -> wire.FileObject:
        """Retrieve a file."""
        return await self.service.get(request.tenant, **request.params)

    @Route("DELETE", _FILE, errors=READ_ERRORS)
    async def delete(self, request: Request) -> wire.FileDeleted:
        """Delete a file."""
        return await self.service.delete(request.tenant, **request.params)

    @Route("GET", f"{_FILE}/content", gives_too=(_BYTES,), errors=(*READ_ERRORS, 416))
    async def content(self, request: Request) -> None:
        """Retrieve the content of a file. A `Range` header of one range of bytes is honoured."""
        row = await self.service.find(request.tenant, **request.params)
        start, end = _parse_range(request.headers.get(b"range"), row.size)
        headers = [(b"content-length", b"%d" % (end - start)), (b"accept-ranges", b"bytes")]
        status = 200
        if (start, end) != (0, row.size):
            status = 206
            headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, row.size)))
        pieces = self.service.read(row, start, end)
        await request.send_file(row.filename, _BYTES, pieces, *headers, status=status)

    @Route("POST", "/v1/uploads", takes=wire.CreateUpload, errors=WRITE_ERRORS)
    async def create_upload(self, request: Request) -> wire.Upload:
        """Begin an upload in parts. It expires after an hour."""
        parsed, request.ignored = await read_json(request, decode_upload, self.limits)
        return await self.service.create_upload(request.tenant, parsed)

    @Route("POST", f"{_UPLOAD}/parts", takes=PartForm, takes_media_type=_FORM, new_work=True)
    async def add_part(self, request: Request) -> wire.UploadPart:
        """Add a part to an upload. A form with the field `data`."""
        await self.service.find_upload(request.tenant, **request.params)
        async with self._receive(request, "data", self.limits.upload_part_bytes) as (form, content):
            request.ignored = [*form.fields]
            return await self.service.add_part(request.tenant, **request.params, content=content)

    @Route("POST", f"{_UPLOAD}/complete", takes=wire.CompleteUpload, errors=WRITE_ERRORS)
    async def complete_upload(self, request: Request) -> wire.Upload:
        """Complete an upload. The parts become a file, in the order of `part_ids`."""
        parsed, request.ignored = await read_json(request, decode_completion, self.limits)
        return await self.service.complete_upload(request.tenant, **request.params, request=parsed)

    @Route("POST", f"{_UPLOAD}/cancel", errors=READ_ERRORS)
    async def cancel_upload(self, request: Request) -> wire.Upload:
        """Cancel an upload."""
        return await self.service.cancel_upload(request.tenant, **request.params)

    @asynccontextmanager
    async def _receive(
        self, request: Request, field: str, max_bytes: int
    ) -> AsyncIterator[tuple[ReceivedForm[StoredContent], StoredContent]]:
        """Receive a form and its file, whose content is deleted again if the block raises."""
        form = ReceivedForm[StoredContent]()
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self._discard, form)
            await read_form(request, field, max_bytes, self.service.write, form)
            assert form.file is not None
            yield form, form.file
            cleanup.pop_all()

    async def _discard(self, form: ReceivedForm[StoredContent]) -> None:
        if form.file is not None:
            await self.service.discard(form.file)


def _parse_range(header: bytes | None, size: int) -> tuple[int, int]:
    """Return start and end of the requested range. Anything but one range of bytes is ignored (RFC 9110 §14.2)."""
    found = _RANGE.fullmatch(header or b"")
    if found is None or found[0] == b"bytes=-":
        return 0, size
    if not found[1]:
        start, end = max(0, size - int(found[2])), size
    else:
        start, end = int(found[1]), min(size, int(found[2] or size) + 1)
    if start >= end:
        raise RangeNotSatisfiable(f"The file has {size} bytes.")
    return start, end
