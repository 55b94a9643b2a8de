"""Child process that reads a PDF, an office document or HTML from stdin and writes its text, or its fault, to stdout.

It runs with time and memory limits that the operating system enforces. Any exception of a parser ends it.
"""

import json
import sys
from collections.abc import Iterator
from io import BytesIO
from zipfile import BadZipFile, ZipFile

from antiphon.child_limits import limit_resources
from antiphon.core.documents import is_archive
from antiphon.service.attachments.html_text import extract_html_text
from antiphon.service.attachments.office_text import Section, UnreadableDocument, extract_office_text


def main() -> None:
    kind = sys.argv[1]
    pages, characters, seconds = map(int, sys.argv[2:5])
    limit_resources(seconds)
    body = sys.stdin.buffer.read()
    try:
        report = {"text": "\n\n".join(_bound(_read(kind, body, pages), characters))}
    except _DocumentFault as fault:
        report = {"fault": str(fault)}
    sys.stdout.buffer.write(json.dumps(report, ensure_ascii=False).encode())


class _DocumentFault(Exception):
    """A fault for which the parent process has a message."""


def _read(kind: str, body: bytes, pages: int) -> Iterator[Section]:
    if kind == "html":
        return iter([("", extract_html_text(body.decode()))])
    return _read_office(BytesIO(body)) if is_archive(body) else _read_pages(BytesIO(body), pages)


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
