"""Content in a bucket of an S3-compatible service, one object each: s3://BUCKET/PREFIX?endpoint=URL&region=NAME.

Credentials are not part of the URL: the client reads those of the environment (AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY, a web identity, or the role of the machine). Content larger than one part is uploaded in parts
while it arrives. Errors of the client are not shown: they contain the service's answer, which may name the access key.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from antiphon.errors import StartupError, Unavailable
from antiphon.stores.contents.base import MAX_KEYS, regroup

log = logging.getLogger(__name__)

PART_BYTES = 5 * 1024 * 1024  # the minimum of S3; a file of the default limit has 103 of at most 10,000 parts
_CONCURRENT_PARTS = 2  # of one upload
_CONNECT_SECONDS = 5.0
_REQUEST_SECONDS = 30.0  # for one request, of at most PART_BYTES
_RETRY_SECONDS = 10.0  # after which a failed request is not repeated
_MAX_RETRIES = 3
_STATUS = re.compile(r"status code: (\d{3})")  # in messages of the client, whose types differ between operations
_PartQueue: TypeAlias = "asyncio.Queue[bytes | Exception | None]"  # None: the end
_Upload: TypeAlias = "asyncio.Future[obstore.PutResult]"
_PARAMETERS = frozenset({"endpoint", "region"})


class S3Contents:
    def __init__(self, url: str, request_seconds: float = _REQUEST_SECONDS) -> None:
        """Raises StartupError if the URL is invalid. `request_seconds`: time limit of one request."""
        self._url = url
        self._bucket = _make_bucket(url, request_seconds)

    async def open(self) -> None:
        try:
            await anext(aiter(obstore.list(self._bucket, chunk_size=1)), None)
        except (BaseError, OSError) as error:
            raise StartupError(f"The bucket of --files {self._url} cannot be used: {_describe(error)}.") from None

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        parts = regroup(pieces, PART_BYTES)
        first = await anext(parts, b"")
        if len(first) < PART_BYTES:
            await self._finish(key, asyncio.ensure_future(obstore.put_async(self._bucket, key, first)))
        else:
            await self._upload(key, first, parts)

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        while start < end:
            stop = min(end, start + PART_BYTES)
            with _convert_errors("read"):
                block = await obstore.get_range_async(self._bucket, key, start=start, end=stop)
            if len(block) < stop - start:
                raise Unavailable("The content of the file is shorter than it was.", retry_after=5.0)
            start = stop
            yield bytes(block)

    async def delete(self, keys: Sequence[str]) -> None:
        with suppress(Unavailable), _convert_errors("deleted"):  # what cannot be deleted is found by the next sweep
            await obstore.delete_async(self._bucket, keys)

    async def list_keys(self, before: float) -> AsyncIterator[list[str]]:
        with _convert_errors("listed"):
            async for page in obstore.list(self._bucket, chunk_size=MAX_KEYS):
                if found := [entry["path"] for entry in page if entry["last_modified"].timestamp() < before]:
                    yield found

    async def _upload(self, key: str, first: bytes, others: AsyncIterator[bytes]) -> None:
        """Upload content in parts. The client deletes them again if its source of parts raises, but not if it is
        cancelled itself, so this task reads the content and passes failures on.
        """
        parts: _PartQueue = asyncio.Queue(1)
        source = _iterate(parts)
        upload = asyncio.ensure_future(
            obstore.put_async(self._bucket, key, source, chunk_size=PART_BYTES, max_concurrency=_CONCURRENT_PARTS)
        )
        upload.add_done_callback(lambda _: _empty(parts))  # this task may wait to put a part
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(_abort, parts, upload)
            await parts.put(first)
            async for part in others:
                if upload.done():
                    break
                await parts.put(part)
            if not upload.done():
                await parts.put(None)
            cleanup.pop_all()
        await self._finish(key, upload)

    async def _finish(self, key: str, upload: _Upload) -> None:
        """Wait for the end of an upload, also if the task is cancelled; then the content is deleted."""
        try:
            with _convert_errors("stored"):
                await asyncio.shield(upload)
        except asyncio.CancelledError:
            await asyncio.gather(upload, return_exceptions=True)
            await self.delete([key])
            raise


class _UploadAborted(Exception):
    """Ends an upload whose content does not arrive completely."""


def _make_bucket(url: str, request_seconds: float) -> S3Store:
    parsed = urlsplit(url)
    settings: Any = dict(parse_qsl(parsed.query, keep_blank_values=True))  # keys of S3Config, as checked below
    if "@" in parsed.netloc:
        _reject("contains credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment instead")
    if not parsed.netloc:
        _reject("names no bucket")
    if unknown := settings.keys() - _PARAMETERS:
        _reject(f"has the unknown parameter {min(unknown)!r}: `endpoint` and `region` are supported")
    endpoint = settings.get("endpoint", "")
    if "endpoint" in settings and not endpoint.startswith(("http://", "https://")):
        _reject("has an `endpoint` that is not an http:// or https:// URL")
    return S3Store(
        parsed.netloc,
        prefix=parsed.path.strip("/") or None,
        config=settings,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, request_seconds)),
            "timeout": timedelta(seconds=request_seconds),
        },
        retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
    )


def _reject(problem: str) -> NoReturn:
    raise StartupError(f"--files takes s3://BUCKET/PREFIX?endpoint=URL&region=NAME; the URL {problem}.")


async def _abort(parts: _PartQueue, upload: _Upload) -> None:
    _empty(parts)
    parts.put_nowait(_UploadAborted())
    await asyncio.gather(upload, return_exceptions=True)


async def _iterate(parts: _PartQueue) -> AsyncIterator[bytes]:
    while (part := await parts.get()) is not None:
        if isinstance(part, Exception):
            raise part
        yield part


def _empty(parts: _PartQueue) -> None:
    while not parts.empty():
        parts.get_nowait()


@contextmanager
def _convert_errors(action: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        log.warning("a file could not be %s: %s", action, _describe(error))
        raise Unavailable(f"The file cannot be {action}: {_describe(error)}.", retry_after=5.0) from None


def _describe(error: Exception) -> str:
    status = _STATUS.search(str(error))
    match status and status[1]:
        case "401" | "403":
            return "the bucket denies access"
        case "404":
            return "the bucket, or the content in it, is missing"
        case None:
            return "the bucket does not answer"
        case other:
            return f"the bucket answers with status {other}"
