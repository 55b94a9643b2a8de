"""Attachments of a prompt: images and files are fetched through egress, checked, and converted to data URLs and text.

Engines never receive a client's URL. The store retains what the client sent. No pixel is decoded here: the headers
suffice to detect images that are too large for an engine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from urllib.parse import unquote, urlsplit

from msgspec import UNSET

from antiphon import errors
from antiphon.admission import Admission
from antiphon.core.data_urls import Correction, UnreadableMedia, is_data_url, read_data_url, read_file_data, to_data_url
from antiphon.core.documents import CONTAINER_FOLDER, clean_name, fence_text, name_in_container, name_sent_file
from antiphon.core.image_generation import SourceImage, StoredImage, parse_image_reference
from antiphon.core.images import ImageInfo, read_image_info
from antiphon.egress import EgressClient, FetchLimits
from antiphon.limits import Limits
from antiphon.offload import MAX_INLINE_BYTES, run_sized
from antiphon.protocol.types.parts import InputImage
from antiphon.render.content import (
    AttachmentLookup,
    AttachmentRequest,
    AttachmentSource,
    FileAttachment,
    ImageAttachment,
)
from antiphon.service.attachments.text_extraction import ExtractionBounds, ExtractionFailed, TextExtractor, is_parsed
from antiphon.service.attachments.ttl_cache import TtlCache

MissingSources = Mapping[AttachmentSource, AttachmentRequest]

_MAX_CONCURRENT = 4  # per request
_MAX_REQUESTS, _MAX_WAITING = 16, 256  # requests that load at once, and that wait
_TOTAL_TIMEOUT = 30.0  # for all sources of one request
_IMAGE_TYPES = ("image/", "application/octet-stream", "binary/octet-stream")
_ACCEPT_HEADER = "image/png, image/jpeg, image/webp, image/gif"

LoadFile = Callable[[str, str, int, str], Awaitable[tuple[str, bytes]]]  # (tenant, id, bytes, param) → name, content
LoadGenerated = Callable[[str, StoredImage], Awaitable[bytes | None]]  # with the tenant


class Attachments:
    def __init__(
        self,
        egress: EgressClient | None = None,
        limits: Limits | None = None,
        timeout: float = 10.0,
        load_stored: LoadFile | None = None,
        load_generated: LoadGenerated | None = None,
    ) -> None:
        """`timeout`: seconds per fetch. `load_stored` loads files by id, `load_generated` images of the history."""
        self._egress = egress or EgressClient()
        self._limits = limits or Limits()
        self._image_limits = FetchLimits(
            bytes=self._limits.image_bytes, seconds=timeout, media_types=_IMAGE_TYPES, accept=_ACCEPT_HEADER
        )
        self._file_limits = FetchLimits(bytes=self._limits.file_bytes, seconds=timeout)
        self._load_stored_file = load_stored
        self._load_generated = load_generated
        self._extractor = TextExtractor(
            ExtractionBounds(
                pages=self._limits.file_pages, characters=self._limits.file_characters, seconds=15.0, children=2
            )
        )
        self._cache = TtlCache()
        self._admission = Admission(_MAX_REQUESTS, _MAX_WAITING)

    async def load(self, tenant: str, lookup: AttachmentLookup) -> None:
        """Load all missing sources. Raises with the request field of a source that cannot be loaded."""
        missing, lookup.missing = lookup.missing, {}
        self._check_counts(missing)
        try:
            with self._admission.enter() as ticket:
                async with asyncio.timeout(_TOTAL_TIMEOUT):
                    await ticket.wait_turn()
                    await self._load_all(tenant, missing, lookup)
        except TimeoutError:
            param = next(iter(missing.values())).param
            raise errors.FetchFailed(
                f"The images and files of the request could not be loaded within {_TOTAL_TIMEOUT:g} seconds.",
                param=param,
            )
        self._check_size(missing, lookup)

    async def load_images(self, tenant: str, images: Sequence[tuple[InputImage, str]]) -> list[SourceImage]:
        """Load images that an image service is to edit, each with the request field that has it."""
        lookup, sources = AttachmentLookup(), [_to_attachment(image) for image, _ in images]
        for source, (_, param) in zip(sources, images, strict=True):
            lookup.resolve(source, param)
        await self.load(tenant, lookup)
        urls = [lookup.found[source] for source in sources]
        return await run_sized(sum(map(len, urls)), _to_source_images, urls, self._limits)

    async def check_source(self, body: bytes, param: str) -> SourceImage:
        """Check an image that a client uploads. Raises InvalidImage."""
        if len(body) > self._limits.image_bytes:
            raise errors.InvalidImage(f"An image has at most {self._limits.image_bytes:,} bytes.", param=param)
        return SourceImage(body, (await run_sized(len(body), _read_image, body, self._limits, param)).media_type)

    async def _load_all(self, tenant: str, missing: MissingSources, lookup: AttachmentLookup) -> None:
        """Load the sources concurrently and raise the first failure.

        It is raised outside of the exception group: otherwise a reference cycle would keep the request's data in memory
        until the next garbage collection.
        """
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT)
        first: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for source, request in missing.items():
                    group.create_task(self._load_one(tenant, source, request.param, lookup, semaphore))
        except ExceptionGroup as failed:
            first = failed.exceptions[0]
            failed.__traceback__ = None  # references the group's frame, which references the error
        try:
            if first is not None:
                raise first
        finally:
            del first

    async def _load_one(
        self, tenant: str, source: AttachmentSource, param: str, lookup: AttachmentLookup, semaphore: asyncio.Semaphore
    ) -> None:
        async with semaphore:
            if isinstance(source, ImageAttachment):
                lookup.found[source] = await self._load_image(tenant, source, param, lookup)
            else:
                lookup.found[source] = await self._load_file(tenant, source, param)

    async def _load_stored(self, tenant: str, file_id: str, max_bytes: int, param: str) -> tuple[str, bytes]:
        if self._load_stored_file is None:
            raise errors.UnsupportedParameter("This server stores no files: send the content itself.", param=param)
        return await self._load_stored_file(tenant, file_id, max_bytes, param)

    async def _load_image(self, tenant: str, source: ImageAttachment, param: str, lookup: AttachmentLookup) -> str:
        url = source.url
        if source.file_id is not None:
            _, body = await self._load_stored(tenant, source.file_id, self._limits.image_bytes, param)
            return await run_sized(len(body), _image_from_bytes, body, self._limits, param)
        if is_data_url(url):
            defers = lookup.defers_corrections and len(url) > MAX_INLINE_BYTES
            url, correction = await run_sized(len(url), _image_from_url, url, self._limits, param, defers)
            if correction is not None:
                lookup.corrections[source] = correction
            return url
        if self._load_generated is not None and (reference := parse_image_reference(url)) is not None:
            if (made := await self._load_generated(tenant, reference)) is None:
                raise errors.InvalidImage("This image is not stored any more.", param=param)
            return await run_sized(len(made), _image_from_bytes, made, self._limits, param)
        key = (tenant, "picture", url)
        if (cached := self._cache.get(key)) is not None:
            return cached
        try:
            fetched = await self._egress.fetch(url, param, self._image_limits)
        except (errors.UrlRefused, errors.FetchFailed) as error:
            raise errors.InvalidImageUrl(error.message, param=param)
        body = fetched.body
        image = await run_sized(len(body), _image_from_bytes, body, self._limits, param)
        self._cache.put(key, image)
        return image

    async def _load_file(self, tenant: str, source: FileAttachment, param: str) -> str:
        path = ""
        if source.url is not None:
            name = source.name or _file_name(source.url)
            text = await self._read_url(tenant, source.url, param)
        elif source.file_id is not None:
            stored_name, body = await self._load_stored(tenant, source.file_id, self._limits.file_bytes, param)
            name, path = source.name or stored_name, name_in_container(source.file_id, stored_name)
            text = await self._read_body(tenant, name, body, param)
        else:
            name, data = source.name, source.data
            body = await run_sized(len(data), _decode_data, data, self._limits.file_bytes, param)
            text = await self._read_body(tenant, name, body, param)
            path = await run_sized(len(body), name_sent_file, body, name) if source.in_container else ""
        return fence_text(clean_name(name), text, CONTAINER_FOLDER + path if path and source.in_container else "")

    async def _read_url(self, tenant: str, url: str, param: str) -> str:
        key = (tenant, "file", url)
        if (text := self._cache.get(key)) is None:
            fetched = await self._egress.fetch(url, param, self._file_limits)
            text = await self._extract(_file_name(url), fetched.body, param)
            self._cache.put(key, text)
        return text

    async def _read_body(self, tenant: str, name: str, body: bytes, param: str) -> str:
        """Extract the text of a body. What a parser extracts is cached, since every later turn sends it again."""
        if not is_parsed(name, body):
            return await self._extract(name, body, param)
        key = (tenant, "data", await run_sized(len(body), _digest, body))
        if (text := self._cache.get(key)) is None:
            text = await self._extract(name, body, param)
            self._cache.put(key, text)
        return text

    async def _extract(self, name: str, body: bytes, param: str) -> str:
        try:
            return await self._extractor.extract_text(name, body)
        except ExtractionFailed as failed:
            raise errors.InvalidFile(failed.message, param=param) from None

    def _check_counts(self, missing: MissingSources) -> None:
        limits = self._limits
        for kind, name, limit in ((ImageAttachment, "images", limits.images), (FileAttachment, "files", limits.files)):
            requests = [request for source, request in missing.items() if isinstance(source, kind)]
            if (count := sum(request.uses for request in requests)) > limit:
                sentence = f"The request contains {count} {name}; at most {limit} are allowed."
                raise errors.InvalidValue(sentence, param=requests[0].param)

    def _check_size(self, missing: MissingSources, lookup: AttachmentLookup) -> None:
        """Check the total size; each use of a source counts, since the engine receives it as often."""
        remaining = self._limits.attached_bytes
        for source, request in missing.items():
            remaining -= len(lookup.found[source]) * request.uses
            if remaining < 0:
                limit = f"{self._limits.attached_bytes:,} bytes"
                raise errors.InvalidValue(f"All images and files together exceed {limit}.", param=request.param)


def _to_attachment(image: InputImage) -> ImageAttachment:
    if image.image_url is UNSET:
        return ImageAttachment(file_id="" if image.file_id is UNSET else image.file_id)
    return ImageAttachment(image.image_url)


def _to_source_images(urls: Sequence[str], limits: Limits) -> list[SourceImage]:
    decoded = [read_data_url(url, limits.image_bytes) for url in urls]
    return [SourceImage(data.body, data.media_type) for data in decoded]


def _image_from_url(url: str, limits: Limits, param: str, defers: bool) -> tuple[str, Correction | None]:
    """Check a data URL; it is returned unchanged if it is correct, or with its correction if that is deferred."""
    try:
        data = read_data_url(url, limits.image_bytes)
    except UnreadableMedia as reason:
        raise errors.InvalidImage(str(reason), param=param)
    image = _read_image(data.body, limits, param)
    if data.is_canonical and url.startswith(f"data:{image.media_type};base64,"):
        return url, None
    if defers:
        return url, Correction(image.media_type, decodes=not data.is_canonical)
    return to_data_url(image.media_type, data.body), None


def _image_from_bytes(body: bytes, limits: Limits, param: str) -> str:
    return to_data_url(_read_image(body, limits, param).media_type, body)


def _read_image(body: bytes, limits: Limits, param: str) -> ImageInfo:
    """Read the header of an image and check it. Raises InvalidImage."""
    try:
        image = read_image_info(body)
    except UnreadableMedia as reason:
        raise errors.InvalidImage(str(reason), param=param)
    size = f"{image.width}×{image.height}"
    if min(image.width, image.height) < limits.image_side:
        raise errors.InvalidImage(
            f"The image has {size} pixels; each side needs at least {limits.image_side}.", param=param
        )
    if image.frames > limits.image_frames:
        raise errors.InvalidImage(
            f"The image has {image.frames} frames; at most {limits.image_frames} are allowed.", param=param
        )
    if image.pixels > limits.image_pixels:
        frames = f" in {image.frames} frames" if image.frames > 1 else ""
        raise errors.InvalidImage(
            f"The image has {size} pixels{frames}; at most {limits.image_pixels:,} are allowed.", param=param
        )
    return image


def _decode_data(data: str, max_bytes: int, param: str) -> bytes:
    try:
        return read_file_data(data, max_bytes)
    except UnreadableMedia as reason:
        raise errors.InvalidFile(str(reason), param=param)


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def _file_name(url: str) -> str:
    """Return the last path segment of the URL as a file name."""
    try:
        return unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    except ValueError:
        return ""
