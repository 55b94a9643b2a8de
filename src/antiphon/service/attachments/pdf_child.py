"""Child process that reads one PDF from stdin and writes its text, or its fault, as JSON to stdout.

It runs with time and memory limits that the operating system enforces. Any exception of pypdf ends it.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO

_MAX_MEMORY = 1024 * 1024 * 1024


def main() -> None:
    pages, characters, seconds = map(int, sys.argv[1:4])
    _set_limits(seconds)
    try:
        report = {"text": "\n\n".join(_read_pages(pages, characters))}
    except _PdfError as fault:
        report = {"fault": str(fault)}
    sys.stdout.write(json.dumps(report))


class _PdfError(Exception):
    """A fault for which the parent process has a message."""


def _set_limits(seconds: int) -> None:
    os.nice(10)
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, _MAX_MEMORY), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # not every system supports every limit
            resource.setrlimit(kind, (limit, limit))


def _read_pages(pages: int, characters: int) -> Iterator[str]:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError
    except ModuleNotFoundError:
        raise _PdfError("missing")
    reader = PdfReader(BytesIO(sys.stdin.buffer.read()))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise _PdfError("encrypted")
    except DependencyError:
        raise _PdfError("encrypted")
    if len(reader.pages) > pages:
        raise _PdfError("pages")
    length = found = 0
    for number, page in enumerate(reader.pages, 1):
        text = _clean(page.extract_text())
        found += len(text.strip())
        length += len(text)
        if length > characters:
            raise _PdfError("characters")
        yield f"[page {number}]\n{text}"
    if not found:
        raise _PdfError("empty")


def _clean(text: str) -> str:
    """Remove NULs and unpaired surrogates, which cannot be encoded as UTF-8."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


if __name__ == "__main__":
    main()
