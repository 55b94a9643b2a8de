"""Files, and the uploads by which large ones arrive in parts."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.protocol.types.lists import ListPage, ListQuery

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class ExpiresAfter(Struct, frozen=True, kw_only=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class FileFields(Struct, frozen=True, kw_only=True):
    """The fields of the form, besides the file itself."""

    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class FileObject(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileDeleted(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileList(ListPage, kw_only=True):
    data: list[FileObject]


class FilesQuery(ListQuery, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    purpose: str | None = None


class CreateUpload(FileFields, frozen=True, kw_only=True):
    bytes: Annotated[int, Meta(ge=1)]
    filename: str
    mime_type: str


class CompleteUpload(Struct, frozen=True, kw_only=True):
    part_ids: list[str]
    md5: str | None = None


class Upload(Struct, kw_only=True):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None = None


class UploadPart(Struct, kw_only=True):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str
