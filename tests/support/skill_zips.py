"""Zip files of skills for tests."""

import base64
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

MANIFEST = b"---\nname: island-rescue\ndescription: How to be rescued.\n---\n\nShout STOP.\n"


def make_zip(files: dict[str, bytes] | None = None, folder: str = "rescue/", manifest: bytes = MANIFEST) -> bytes:
    """Return a zip file with a manifest and other files in one folder."""
    buffer = BytesIO()
    with ZipFile(buffer, "w") as archive:
        for path, data in {"SKILL.md": manifest, **(files or {})}.items():
            archive.writestr(ZipInfo(folder + path), data, ZIP_DEFLATED)  # without the time, so that it is always equal
    return buffer.getvalue()


def add_entry(data: bytes, info: ZipInfo, content: bytes = b"") -> bytes:
    """Return the zip file with one more entry, however hostile."""
    buffer = BytesIO(data)
    with ZipFile(buffer, "a") as archive:
        archive.writestr(info, content)
    return buffer.getvalue()


def make_inline(data: bytes, name: str = "island-rescue", description: str = "How to be rescued.") -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/zip", "data": base64.b64encode(data).decode()}
    return {"type": "inline", "name": name, "description": description, "source": source}
