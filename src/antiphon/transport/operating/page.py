"""The page at /: files of `antiphon/ui`, which a browser loads without a key.

They are the same for everyone and contain no data. The page reads and changes everything through the API, with the key
that its user enters, so it shows nothing that the key could not read. Paths below /ui/ that are no files are links into
the page.

The page names its files relatively, so it works below any prefix, also one that a proxy removes.
"""

import asyncio
from functools import cache
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from antiphon.errors import NotFound
from antiphon.transport.http.channel import Header
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.routing import Route

FOLDER = Path(__file__).parents[2] / "ui"
INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
}
# `blob:` is for images that the user attaches. Trusted types: no script can turn a string into markup or code.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    b"trusted-types lit-html"
)
_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # stored, and checked by its ETag at each use
)


class PageFile(Struct, frozen=True):
    body: bytes
    etag: bytes
    headers: tuple[Header, ...]


class PageEndpoint:
    """Serves the page and its files."""

    @Route("GET", "/", media_type="text/html", gives=str, needs=None)
    async def index(self, request: Request) -> None:
        """Show the page of this server."""
        await _send(request, "")

    @Route("GET", "/ui", media_type="text/html", gives=str, needs=None)
    async def root(self, request: Request) -> None:
        """Show the page of this server."""
        await _send(request, "")

    @Route("GET", "/ui/{path...}", media_type="text/html", gives=str, errors=(404,), needs=None)
    async def file(self, request: Request) -> None:
        """Get a file of the page, or the page itself."""
        await _send(request, request.params["path"])


async def _send(request: Request, path: str) -> None:
    files = await asyncio.to_thread(load_files)
    if path not in files and Path(path).suffix in _MEDIA_TYPES:
        raise NotFound("The page has no such file.")
    request.reads_query = True  # the page reads it
    file = files[path] if path in files else _make_index(request.path.count(b"/"))
    if request.headers.get(b"if-none-match") == file.etag:
        await request.begin(304, [(b"etag", file.etag), *_HEADERS])
        await request.end()
    else:
        await request.reply(200, file.body, file.headers)


@cache
def load_files() -> dict[str, PageFile]:
    """Return the files of the page by their paths."""
    paths = [path for path in FOLDER.rglob("*") if path.suffix in _MEDIA_TYPES and path.name != INDEX]
    return {path.relative_to(FOLDER).as_posix(): _make_file(path.suffix, path.read_bytes()) for path in paths}


def _make_index(slashes: int) -> PageFile:
    """Return the page for a path with this many slashes, with the way up from there to its files."""
    return _make_file(".html", _load_index().replace(b'"ui/', b'"' + b"../" * (slashes - 1) + b"ui/"))


@cache
def _load_index() -> bytes:
    return (FOLDER / INDEX).read_bytes()


def _make_file(suffix: str, body: bytes) -> PageFile:
    etag = f'"{sha256(body).hexdigest()[:32]}"'.encode()
    return PageFile(body, etag, ((b"content-type", _MEDIA_TYPES[suffix]), (b"etag", etag), *_HEADERS))
