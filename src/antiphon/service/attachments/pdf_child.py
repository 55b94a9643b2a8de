"""The child that reads one PDF from stdin and says its text, or what is wrong with it, as JSON on stdout.

It runs by itself, with bounds on time and memory that the system keeps. Whatever pypdf raises is its end.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO

_MEMORY = 1024 * 1024 * 1024


def main() -> None:
    pages, characters, seconds = map(int, sys.argv[1:4])
    _bound(seconds)
    try:
        said = {"text": "\n\n".join(_read(pages, characters))}
    except _Fault as fault:
        said = {"fault": str(fault)}
    sys.stdout.write(json.dumps(said))


class _Fault(Exception):
    """What the parent has a sentence for."""


def _bound(seconds: int) -> None:
    os.nice(10)
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # not every system keeps every bound
            resource.setrlimit(kind, (most, most))


def _read(pages: int, characters: int) -> Iterator[str]:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError
    except ModuleNotFoundError:
        raise _Fault("missing")
    reader = PdfReader(BytesIO(sys.stdin.buffer.read()))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise _Fault("encrypted")
    except DependencyError:
        raise _Fault("encrypted")
    if len(reader.pages) > pages:
        raise _Fault("pages")
    length = found = 0
    for number, page in enumerate(reader.pages, 1):
        text = _clean(page.extract_text())
        found += len(text.strip())
        length += len(text)
        if length > characters:
            raise _Fault("characters")
        yield f"[page {number}]\n{text}"
    if not found:
        raise _Fault("empty")


def _clean(text: str) -> str:
    """Without halves of characters, which cannot be sent on, and NULs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


if __name__ == "__main__":
    main()
