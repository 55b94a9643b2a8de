"""What a prompt wants to show is had here: pictures and files are fetched by egress, vetted, and become data and text.

An engine never sees a URL. What the client sent stays in the store as it was sent.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from antiphon.admission import Admission
from antiphon.core.media.data_urls import Unreadable, is_data_url, read_base64, read_data_url
from antiphon.core.media.documents import clean_name, fenced, is_pdf
from antiphon.egress import Caps, Egress
from antiphon.errors import FetchFailed, InvalidFile, InvalidImageUrl, InvalidValue, UrlRefused
from antiphon.limits import Limits
from antiphon.render.attachments import Attached, FileSource, ImageSource, Source, Wish
from antiphon.service.attachments.documents import Documents
from antiphon.service.attachments.images import picture_from_bytes, picture_from_url
from antiphon.service.attachments.ttl_cache import Lately

T = TypeVar("T")
Wishes = Mapping[Source, Wish]

_AT_ONCE = 4  # of one request
_REQUESTS, _QUEUE = 16, 256  # that bring something at once; that wait
_ALL_SECONDS = 30.0  # for all that one request wants
_SMALL = 256 * 1024  # bytes that are looked at where they are; more goes to a thread
_PICTURES = ("image/", "application/octet-stream", "binary/octet-stream")
_ACCEPTED = "image/png, image/jpeg, image/webp, image/gif"


class Attachments:
    def __init__(self, egress: Egress | None = None, limits: Limits | None = None, seconds: float = 10.0) -> None:
        """`seconds`: for one fetch."""
        self._egress = egress or Egress()
        self._limits = limits or Limits()
        self._pictures = Caps(bytes=self._limits.image_bytes, seconds=seconds, types=_PICTURES, accept=_ACCEPTED)
        self._files = Caps(bytes=self._limits.file_bytes, seconds=seconds)
        self._documents = Documents(self._limits)
        self._lately = Lately()
        self._room = Admission(_REQUESTS, _QUEUE)

    async def bring(self, tenant: str, attached: Attached) -> None:
        """All that is wanted is found after this, or an error names the field of what cannot be had."""
        wanted, attached.wanted = attached.wanted, {}
        self._check_numbers(wanted)
        try:
            with self._room.enter() as ticket:
                async with asyncio.timeout(_ALL_SECONDS):
                    await ticket.ready()
                    await self._bring(tenant, wanted, attached)
        except TimeoutError:
            param = next(iter(wanted.values())).param
            raise FetchFailed(f"What the request shows took longer than {_ALL_SECONDS:g} seconds.", param=param)
        self._check_size(wanted, attached)

    async def _bring(self, tenant: str, wanted: Wishes, attached: Attached) -> None:
        """The first that fails is raised when the group of them is forgotten: else each would keep the other, and with
        it all that the request shows, until somebody looks for cycles."""
        gate = asyncio.Semaphore(_AT_ONCE)
        first: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for source, wish in wanted.items():
                    group.create_task(self._find(tenant, source, wish.param, attached, gate))
        except ExceptionGroup as failed:
            first = failed.exceptions[0]
            failed.__traceback__ = None  # leads to the group's own frame, which knows the error
        try:
            if first is not None:
                raise first
        finally:
            del first

    async def _find(self, tenant: str, source: Source, param: str, attached: Attached, gate: asyncio.Semaphore) -> None:
        async with gate:
            if isinstance(source, ImageSource):
                attached.found[source] = await self._picture(tenant, source.url, param)
            else:
                attached.found[source] = await self._file(tenant, source, param)

    async def _picture(self, tenant: str, url: str, param: str) -> str:
        if is_data_url(url):
            return await _looked_at(len(url), partial(picture_from_url, url, self._limits, param))
        key = (tenant, "picture", url)
        if (known := self._lately.get(key)) is not None:
            return known
        try:
            fetched = await self._egress.fetch(url, param, self._pictures)
        except (UrlRefused, FetchFailed) as refused:
            raise InvalidImageUrl(refused.message, param=param)
        body = fetched.body
        shown = await _looked_at(len(body), partial(picture_from_bytes, body, self._limits, param))
        self._lately.put(key, shown)
        return shown

    async def _file(self, tenant: str, source: FileSource, param: str) -> str:
        if source.url is None:
            data = source.data
            body = await _looked_at(len(data), partial(_decoded, data, self._limits.file_bytes, param))
            return fenced(clean_name(source.name), await self._read(tenant, body, param))
        name = clean_name(source.name or _last_part(source.url))
        key = (tenant, "file", source.url)
        text = self._lately.get(key)
        if text is None:
            fetched = await self._egress.fetch(source.url, param, self._files)
            text = await self._documents.text(fetched.body, param)
            self._lately.put(key, text)
        return fenced(name, text)

    async def _read(self, tenant: str, body: bytes, param: str) -> str:
        """A PDF that every turn of a conversation shows is read once."""
        if not is_pdf(body):
            return await self._documents.text(body, param)
        key = (tenant, "data", await _looked_at(len(body), partial(_digest, body)))
        text = self._lately.get(key)
        if text is None:
            text = await self._documents.text(body, param)
            self._lately.put(key, text)
        return text

    def _check_numbers(self, wanted: Wishes) -> None:
        limits = self._limits
        for kind, name, most in ((ImageSource, "images", limits.images), (FileSource, "files", limits.files)):
            shown = [wish for source, wish in wanted.items() if isinstance(source, kind)]
            if (count := sum(wish.times for wish in shown)) > most:
                sentence = f"The request shows {count} {name}; at most {most} are allowed."
                raise InvalidValue(sentence, param=shown[0].param)

    def _check_size(self, wanted: Wishes, attached: Attached) -> None:
        """Each time that something is shown counts: an engine gets it as often."""
        room = self._limits.attached_bytes
        for source, wish in wanted.items():
            room -= len(attached.found[source]) * wish.times
            if room < 0:
                most = f"{self._limits.attached_bytes:,} bytes"
                raise InvalidValue(f"All images and files together have more than {most}.", param=wish.param)


async def _looked_at(size: int, look: Callable[[], T]) -> T:
    return look() if size < _SMALL else await asyncio.to_thread(look)


def _decoded(data: str, most: int, param: str) -> bytes:
    try:
        return (read_data_url(data, most) if is_data_url(data) else read_base64(data, most)).body
    except Unreadable as reason:
        raise InvalidFile(str(reason), param=param)


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def _last_part(url: str) -> str:
    """Of its path, as a name for the file."""
    try:
        return unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    except ValueError:
        return ""
