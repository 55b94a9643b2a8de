"""Child process that reads a PDF or an office document from stdin and writes its text, or its fault, as JSON to stdout.

It runs with time and memory limits that the operating system enforces. Any exception of a parser ends it.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from zipfile import BadZipFile, ZipFile

from antiphon.core.documents import is_archive
from antiphon.service.attachments.office_text import (
    Section,
    UnreadableDocument,
    extract_office_text,
)

_MAX_MEMORY = 1024 * 1024 * 1024


def main() -> None:
    pages, characters, seconds = map(int, sys.argv[1:4])
    _set_limits(seconds)
    body = BytesIO(sys.stdin.buffer.read())
    try:
        sections = _read_office(body) if is_archive(body.getvalue()) else _read_pages(body, pages)
        report = {"text": "\n\n".join(_bound(sections, characters))}
    except _DocumentFault as fault:
        report = {"fault": str(fault)}
    sys.stdout.write(json.dumps(report))


class _DocumentFault(Exception):
    """A fault for which the parent process has a message."""


def _bound(sections: Iterator[Section], characters: int) -> Iterator[str]:
    """Yield the sections with their titles. Raises if they are too long together, or without any text."""
    length = found = 0
    for title, text in sections:
        text = _clean(text)
        found += len(text.strip())
        length += len(text)
        if length > characters:
            raise _DocumentFault("characters")
        yield f"[{title}]\n{text}" if title else text
    if not found:
        raise _DocumentFault("empty")


def _set_limits(seconds: int) -> None:
    os.nice(10)
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, _MAX_MEMORY), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # not every system supports every limit
            resource.setrlimit(kind, (limit, limit))


def _read_office(body: BytesIO) -> Iterator[Section]:
    try:
        yield from extract_office_text(ZipFile(body))
    except BadZipFile:
        raise _DocumentFault("archive")
    except UnreadableDocument as fault:
        raise _DocumentFault(*fault.args)


def _read_pages(body: BytesIO, pages: int) -> Iterator[Section]:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError
    except ModuleNotFoundError:
        raise _DocumentFault("missing")
    reader = PdfReader(body)
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise _DocumentFault("encrypted")
    except DependencyError:
        raise _DocumentFault("encrypted")
    if len(reader.pages) > pages:
        raise _DocumentFault("pages")
    for number, page in enumerate(reader.pages, 1):
        yield f"page {number}", page.extract_text()


def _clean(text: str) -> str:
    """Remove NULs and unpaired surrogates, which cannot be encoded as UTF-8."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


if __name__ == "__main__":
    main()
