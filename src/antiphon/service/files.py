"""Files of clients: stored, listed, read and deleted; and uploads, by which a file arrives in parts.

Content is written first, then the row that refers to it; a failure in between leaves content without a row, which
`FileSweeper` (store_maintenance.py) deletes. A file is durable when its request is answered.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from time import time

from msgspec import Struct

from antiphon.errors import BodyTooLarge, InvalidValue, NotFound
from antiphon.ids import new_dashed_id, new_id, quote_id
from antiphon.protocol.types import files as wire
from antiphon.service.persistence.stored_responses import check_store_enabled
from antiphon.stores.base import FileQuota, FileRow, SkillVersionRow, UploadRow
from antiphon.stores.contents.base import ContentStore
from antiphon.stores.sql.store import Store

_UPLOAD_SECONDS = 3600.0  # until an upload expires
_BATCH_LIFETIME = 2_592_000  # seconds; files for batches expire after 30 days unless the client says otherwise


class StoredContent(Struct, frozen=True):
    """Content that was written, to which no row refers yet."""

    key: str
    size: int  # in bytes
    sha256: bytes


class Files:
    def __init__(self, store: Store, contents: ContentStore, quota: FileQuota, store_enabled: bool = True) -> None:
        self._store = store
        self._contents = contents
        self._quota = quota
        self._store_enabled = store_enabled

    def check_enabled(self) -> None:
        check_store_enabled(self._store_enabled)

    async def write(self, pieces: AsyncIterator[bytes], max_bytes: int) -> StoredContent:
        """Write content while it arrives. Raises BodyTooLarge above `max_bytes`."""
        check_store_enabled(self._store_enabled)
        key, meter = new_dashed_id("file"), ContentMeter(pieces, max_bytes)
        await self._contents.write(key, meter.measure())
        return StoredContent(key, meter.size, meter.sha256.digest())

    async def delete_contents(self, keys: Sequence[str]) -> None:
        """Delete content to which no row refers any more."""
        await self._contents.delete(keys)

    async def discard(self, content: StoredContent) -> None:
        """Delete content to which no row will refer."""
        await self._contents.delete([content.key])

    async def create(
        self, tenant: str, filename: str, request: wire.FileFields, content: StoredContent
    ) -> wire.FileObject:
        """Add a file whose content was written."""
        row = self._make_row(filename, request.purpose, _lifetime(request), content)
        added = await self._store.add_file(tenant, row, self._quota)
        if added.content != content.key:  # an earlier file has the same content
            await self.discard(content)
        return _to_file(added)

    async def list_files(self, tenant: str, query: wire.FilesQuery) -> wire.FileList:
        check_store_enabled(self._store_enabled)
        page = await self._store.page_files(tenant, query.after, query.limit, query.order == "desc", query.purpose)
        return wire.FileList.make(map(_to_file, page.rows), page.has_more)

    async def get(self, tenant: str, file_id: str) -> wire.FileObject:
        return _to_file(await self.find(tenant, file_id))

    async def find(self, tenant: str, file_id: str) -> FileRow:
        row = await self._store.file(tenant, file_id)
        if row is None:
            raise _unknown_error(file_id)
        return row

    def read(self, row: FileRow | SkillVersionRow, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield a range of the content of a file, in pieces."""
        return self._contents.read(row.content, start, end)

    async def load(self, tenant: str, file_id: str, max_bytes: int, param: str) -> tuple[str, bytes]:
        """Return the name and the whole content of a file. Raises InvalidValue above `max_bytes`."""
        row = await self._store.file(tenant, file_id)
        if row is None:
            raise InvalidValue(f"There is no file {quote_id(file_id)}.", param=param)
        if row.size > max_bytes:
            raise InvalidValue(f"The file has {row.size:,} bytes; at most {max_bytes:,} are allowed here.", param=param)
        async with aclosing(self.read(row, 0, row.size)) as pieces:
            return row.filename, b"".join([piece async for piece in pieces])

    async def delete(self, tenant: str, file_id: str) -> wire.FileDeleted:
        unused = await self._store.delete_file(tenant, file_id)
        if unused is None:
            raise _unknown_error(file_id)
        await self._contents.delete(unused)
        return wire.FileDeleted(id=file_id)

    async def create_upload(self, tenant: str, request: wire.CreateUpload) -> wire.Upload:
        check_store_enabled(self._store_enabled)
        now = time()
        row = UploadRow(
            id=new_id("upload"),
            created=now,
            expires=now + _UPLOAD_SECONDS,
            status="pending",
            size=request.bytes,
            filename=request.filename,
            purpose=request.purpose,
            lifetime=_lifetime(request),
        )
        await self._store.create_upload(tenant, row)
        return _to_upload(row)

    async def add_part(self, tenant: str, upload_id: str, content: StoredContent) -> wire.UploadPart:
        await self.find_upload(tenant, upload_id)
        part_id = new_id("part")
        if not await self._store.add_part(tenant, upload_id, part_id, content.size, content.key):
            raise _not_pending_error(upload_id)
        return wire.UploadPart(id=part_id, created_at=int(time()), upload_id=upload_id)

    async def complete_upload(self, tenant: str, upload_id: str, request: wire.CompleteUpload) -> wire.Upload:
        """Join the parts, in the order of the request, and add the file. Repeating it returns the same file."""
        upload = await self.find_upload(tenant, upload_id)
        if upload.status == "completed" and upload.file is not None:
            return _to_upload(upload, await self.find(tenant, upload.file))
        parts = await self._select_parts(tenant, upload, request.part_ids)
        md5 = hashlib.md5(usedforsecurity=False)
        content = await self.write(self._join(parts, md5.update), upload.size)
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self.discard, content)
            if request.md5 is not None and request.md5.lower() != md5.hexdigest():
                raise InvalidValue(f"The MD5 of the content is {md5.hexdigest()}.", param="md5")
            row = self._make_row(upload.filename, upload.purpose, upload.lifetime, content)
            completed = await self._store.complete_upload(tenant, upload_id, row, self._quota)
            if completed is None:
                raise _not_pending_error(upload_id)
            cleanup.pop_all()
        await self._contents.delete(completed[1])
        return _to_upload(await self.find_upload(tenant, upload_id), completed[0])

    async def cancel_upload(self, tenant: str, upload_id: str) -> wire.Upload:
        await self.find_upload(tenant, upload_id)
        unused = await self._store.cancel_upload(tenant, upload_id)
        if unused is None:
            raise _not_pending_error(upload_id)
        await self._contents.delete(unused)
        return _to_upload(await self.find_upload(tenant, upload_id))

    async def find_upload(self, tenant: str, upload_id: str) -> UploadRow:
        upload = await self._store.upload(tenant, upload_id)
        if upload is None:
            raise NotFound(f"No such Upload object: {quote_id(upload_id)}.", param="upload_id")
        return upload

    async def _select_parts(self, tenant: str, upload: UploadRow, part_ids: Sequence[str]) -> list[tuple[int, str]]:
        """Return size and content of the parts in the order of `part_ids`, and check that they are the whole file."""
        parts = await self._store.parts(tenant, upload.id)
        for index, part_id in enumerate(part_ids):
            if part_id not in parts:
                raise InvalidValue(f"The upload has no part {quote_id(part_id)}.", param=f"part_ids[{index}]")
        if len({*part_ids}) < len(part_ids):
            raise InvalidValue("'part_ids' names a part twice.", param="part_ids")
        selected = [parts[part_id] for part_id in part_ids]
        if (size := sum(size for size, _ in selected)) != upload.size:
            raise InvalidValue(
                f"The parts have {size:,} bytes together; the upload was created for {upload.size:,}.", param="part_ids"
            )
        return selected

    async def _join(self, parts: Sequence[tuple[int, str]], inspect: Callable[[bytes], None]) -> AsyncIterator[bytes]:
        for size, content in parts:
            async with aclosing(self._contents.read(content, 0, size)) as pieces:
                async for piece in pieces:
                    inspect(piece)
                    yield piece

    def _make_row(self, filename: str, purpose: str, lifetime: int | None, content: StoredContent) -> FileRow:
        now = time()
        return FileRow(
            id=content.key,
            created=now,
            expires=None if lifetime is None else now + lifetime,
            size=content.size,
            filename=filename,
            purpose=purpose,
            digest=content.sha256,
            content=content.key,
        )


class ContentMeter:
    """Counts and hashes content that passes through `measure`."""

    def __init__(self, pieces: AsyncIterator[bytes], max_bytes: int) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()
        self._pieces = pieces
        self._max_bytes = max_bytes

    async def measure(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            self.size += len(piece)
            if self.size > self._max_bytes:
                raise BodyTooLarge(f"The file is larger than the limit of {self._max_bytes:,} bytes.")
            self.sha256.update(piece)
            yield piece


def _lifetime(request: wire.FileFields) -> int | None:
    """Return the seconds until the file expires; files for batches have a default, as in OpenAI's API."""
    if request.expires_after is not None:
        return request.expires_after.seconds
    return _BATCH_LIFETIME if request.purpose == "batch" else None


def _to_file(row: FileRow) -> wire.FileObject:
    return wire.FileObject(
        id=row.id,
        bytes=row.size,
        created_at=int(row.created),
        expires_at=None if row.expires is None else int(row.expires),
        filename=row.filename,
        purpose=row.purpose,
    )


def _to_upload(row: UploadRow, file: FileRow | None = None) -> wire.Upload:
    return wire.Upload(
        id=row.id,
        bytes=row.size,
        created_at=int(row.created),
        expires_at=int(row.expires),
        filename=row.filename,
        purpose=row.purpose,
        status=row.status,
        file=None if file is None else _to_file(file),
    )


def _unknown_error(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {file_id[:64]}", param="id")


def _not_pending_error(upload_id: str) -> InvalidValue:
    return InvalidValue(f"The upload '{upload_id}' is no longer pending.", param="upload_id")
