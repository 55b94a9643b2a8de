"""A page of the web → its text. HTML is read in a child process, which can be killed: whoever wrote a page may have
written it to keep a reader busy for ever. What is text already is taken as it is; anything else is refused.
"""

import asyncio
import codecs
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.child_process import said_by
from antiphon.core.media.documents import kind_of, text_in
from antiphon.egress import Caps, Egress, Fetched
from antiphon.errors import FetchFailed

MOST_BYTES = 5 * 1024 * 1024
MOST_CHARACTERS = 400_000  # of one page; the rest of a longer one is not shown
_AT_ONCE, _QUEUE = 2, 256  # children
_WIDEST = 12  # bytes of a character in the child's answer
_CHILD = str(Path(__file__).with_name("html_child.py"))
_HTML: Final = ("text/html", "application/xhtml")
_TEXTS: Final = ("text/", "application/json", "application/xml", "application/rss+xml", "application/atom+xml",
                 "application/x-ndjson", "application/yaml", "application/markdown")  # fmt: skip
_ACCEPT: Final = "text/html,application/xhtml+xml,text/plain;q=0.9,text/*;q=0.8,application/json;q=0.5,*/*;q=0.1"
_HEADS: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<?xml")
# What pages are written in. Python knows more, and some of that is slow or no encoding of text at all.
_CHARSETS: Final = frozenset({
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "iso8859-1", "iso8859-2", "iso8859-5", "iso8859-7",
    "iso8859-9", "iso8859-15", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8-r",
    "koi8-u", "gbk", "gb2312", "gb18030", "big5", "shift_jis", "cp932", "euc_jp", "euc_kr", "cp949", "iso2022_jp",
})  # fmt: skip


class Read(Struct, frozen=True):
    """What the child says, too."""

    title: str = ""
    text: str = ""
    links: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(Read)


def is_installed() -> bool:
    return find_spec("trafilatura") is not None


class Reader:
    """One for the server: pages of all responses share the children."""

    def __init__(self, egress: Egress, fetch_seconds: float, read_seconds: float) -> None:
        self._egress = egress
        self._seconds = read_seconds
        self._room = Admission(_AT_ONCE, _QUEUE)
        self._caps = Caps(bytes=MOST_BYTES, seconds=fetch_seconds, types=(*_HTML, *_TEXTS), accept=_ACCEPT,
                          wanted="a text that can be read here")  # fmt: skip

    async def open(self, url: str) -> tuple[Read, str]:
        """What it says, and where that was in the end. Raises UrlRefused or FetchFailed."""
        fetched = await self._egress.fetch(url, "web_search", self._caps)
        read = await self._html(fetched) if _is_html(fetched) else await asyncio.to_thread(_plain, fetched)
        if not read.text.strip():
            raise FetchFailed(f"{fetched.url[:200]} holds no text that can be read here.")
        return read, fetched.url

    async def _html(self, fetched: Fetched) -> Read:
        with self._room.enter() as ticket:
            await ticket.ready()
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._told(fetched)
            except TimeoutError:
                raise FetchFailed(f"{fetched.url[:200]} could not be read within {self._seconds:g} seconds.") from None

    async def _told(self, fetched: Fetched) -> Read:
        bounds = (str(MOST_CHARACTERS), str(int(self._seconds) + 1))
        program = (_CHILD, fetched.url, _charset(fetched.charset), *bounds)
        said = await said_by(program, fetched.body, MOST_CHARACTERS * _WIDEST + MOST_BYTES)
        try:
            return _decoder.decode(said)
        except msgspec.MsgspecError:
            raise FetchFailed(f"{fetched.url[:200]} is a page that cannot be read.") from None


def _is_html(fetched: Fetched) -> bool:
    if fetched.media_type:
        return fetched.media_type.startswith(_HTML)
    return fetched.body[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HEADS)


def _plain(fetched: Fetched) -> Read:
    """The bytes have the last word: text without a charset, or with a wrong one, is UTF-8 or UTF-16."""
    text = text_in(fetched.body)
    charset = _charset(fetched.charset)
    if text is None and charset and b"\0" not in fetched.body:
        text = fetched.body.decode(charset, "replace")
    if text is None:
        raise FetchFailed(f"{fetched.url[:200]} is {kind_of(fetched.body)}, and no text.")
    return Read("", text[:MOST_CHARACTERS])


def _charset(declared: str) -> str:
    """ "" for one that is not taken; then the page itself is asked."""
    try:
        return declared if codecs.lookup(declared).name in _CHARSETS else ""
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        return ""
