"""Fetch a web page and extract its text.

HTML is parsed in a child process, which can be killed, because a page may be crafted to keep a parser busy forever.
Plain text is taken as it is; other types are rejected.
"""

import asyncio
import codecs
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.admission import Admission
from antiphon.core.documents import decode_text, describe_kind, is_html
from antiphon.egress import EgressClient, FetchLimits, FetchResult
from antiphon.errors import FetchFailed
from antiphon.offload import run_python

MAX_PAGE_BYTES = 5 * 1024 * 1024
MAX_CHARACTERS = 400_000  # per page; the rest of a longer page is not shown
_MAX_CHILDREN, _MAX_QUEUED = 2, 256  # child processes
_MAX_CHARACTER_BYTES = 12  # bytes per character in the child's JSON
_CHILD = str(Path(__file__).with_name("html_child.py"))
_HTML_TYPES: Final = ("text/html", "application/xhtml")
_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/rss+xml", "application/atom+xml",
                 "application/x-ndjson", "application/yaml", "application/markdown")  # fmt: skip
_ACCEPT: Final = "text/html,application/xhtml+xml,text/plain;q=0.9,text/*;q=0.8,application/json;q=0.5,*/*;q=0.1"
# Encodings in use on the web. Python has more codecs, some of which are slow or not text encodings at all.
_CHARSETS: Final = frozenset({
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "iso8859-1", "iso8859-2", "iso8859-5", "iso8859-7",
    "iso8859-9", "iso8859-15", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8-r",
    "koi8-u", "gbk", "gb2312", "gb18030", "big5", "shift_jis", "cp932", "euc_jp", "euc_kr", "cp949", "iso2022_jp",
})  # fmt: skip


class PageText(Struct, frozen=True):
    """The text of a page; also the JSON that the child process returns."""

    title: str = ""
    text: str = ""
    links: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(PageText)


def is_installed() -> bool:
    return find_spec("trafilatura") is not None


class PageReader:
    """Reads pages for all responses of the server, which share the child processes."""

    def __init__(self, egress: EgressClient, fetch_seconds: float, read_seconds: float) -> None:
        self._egress = egress
        self._seconds = read_seconds
        self._admission = Admission(_MAX_CHILDREN, _MAX_QUEUED)
        self._limits = FetchLimits(
            bytes=MAX_PAGE_BYTES,
            seconds=fetch_seconds,
            media_types=(*_HTML_TYPES, *_TEXT_TYPES),
            accept=_ACCEPT,
            expected="a text that can be read here",
        )

    async def read_page(self, url: str) -> tuple[PageText, str]:
        """Return the text of a page and its final URL. Raises UrlRefused or FetchFailed."""
        fetched = await self._egress.fetch(url, "web_search", self._limits)
        page = await self._read_html(fetched) if _is_html(fetched) else await asyncio.to_thread(_read_plain, fetched)
        if not page.text.strip():
            raise FetchFailed(f"{fetched.url[:200]} holds no text that can be read here.")
        return page, fetched.url

    async def _read_html(self, fetched: FetchResult) -> PageText:
        with self._admission.enter() as ticket:
            await ticket.wait_turn()
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._read_in_child(fetched)
            except TimeoutError:
                raise FetchFailed(f"{fetched.url[:200]} could not be read within {self._seconds:g} seconds.") from None

    async def _read_in_child(self, fetched: FetchResult) -> PageText:
        limits = (str(MAX_CHARACTERS), str(int(self._seconds) + 1))
        program = (_CHILD, fetched.url, _normalise_charset(fetched.charset), *limits)
        output = await run_python(program, fetched.body, MAX_CHARACTERS * _MAX_CHARACTER_BYTES + MAX_PAGE_BYTES)
        try:
            return _decoder.decode(output)
        except msgspec.MsgspecError:
            raise FetchFailed(f"{fetched.url[:200]} is a page that cannot be read.") from None


def _is_html(fetched: FetchResult) -> bool:
    if fetched.media_type:
        return fetched.media_type.startswith(_HTML_TYPES)
    return is_html("", fetched.body) or fetched.body.startswith(b"<?xml")


def _read_plain(fetched: FetchResult) -> PageText:
    """Decode a text body. Its bytes take precedence over a missing or wrong charset: UTF-8 and UTF-16 are tried."""
    text = decode_text(fetched.body)
    charset = _normalise_charset(fetched.charset)
    if text is None and charset and b"\0" not in fetched.body:
        text = fetched.body.decode(charset, "replace")
    if text is None:
        raise FetchFailed(f"{fetched.url[:200]} cannot be read: it is {describe_kind(fetched.body)}.")
    return PageText("", text[:MAX_CHARACTERS])


def _normalise_charset(declared: str) -> str:
    """Return the charset if it is accepted, otherwise "": then the page's own declaration is used."""
    try:
        return declared if codecs.lookup(declared).name in _CHARSETS else ""
    except (LookupError, ValueError):  # ValueError: the name contains a NUL
        return ""
