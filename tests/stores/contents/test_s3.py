"""Content in a bucket: uploads in parts, failures, and credentials. The contract suite tests all other operations."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from antiphon.errors import StartupError, Unavailable
from antiphon.stores.contents.s3 import PART_BYTES, S3Contents
from antiphon.stores.registry import make_contents, make_store
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = [pytest.mark.anyio, pytest.mark.needs("s3")]
FAR_FUTURE = 1e12
SECONDS = 60  # in which everything here has to end


@pytest.fixture
async def contents(bucket_url: str) -> S3Contents:
    contents = S3Contents(bucket_url)
    await contents.open()
    return contents


async def list_keys(contents: S3Contents) -> list[str]:
    return [key async for page in contents.list_keys(FAR_FUTURE) for key in page]


async def send_parts(number: int, then: asyncio.Future[None] | None = None) -> AsyncIterator[bytes]:
    """Yield whole parts, then wait for `then`, which may raise."""
    for _ in range(number):
        yield b"x" * PART_BYTES
    if then is not None:
        await then


def count_aborted(s3: S3Server, contents: S3Contents) -> int:
    prefix = contents._url.removeprefix("s3://bucket/").partition("?")[0]
    return s3.read_log().count(f"abort multipart upload bucket {prefix}/")


async def test_an_upload_whose_content_fails_to_arrive_is_aborted(contents: S3Contents, s3: S3Server) -> None:
    failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failure.set_exception(ZeroDivisionError())
    async with asyncio.timeout(SECONDS):
        with pytest.raises(ZeroDivisionError):
            await contents.write("key_1", send_parts(3, failure))
    assert count_aborted(s3, contents) == 1
    assert await list_keys(contents) == []


async def test_a_cancelled_upload_is_aborted(contents: S3Contents, s3: S3Server) -> None:
    arrived = asyncio.Event()

    async def hang() -> AsyncIterator[bytes]:
        async for part in send_parts(3):
            yield part
        arrived.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(contents.write("key_1", hang()))
    async with asyncio.timeout(SECONDS):
        await arrived.wait()
        writing.cancel()
        await asyncio.wait([writing])
    assert writing.cancelled()
    assert count_aborted(s3, contents) == 1
    assert await list_keys(contents) == []


@pytest.mark.parametrize("parts", [0, 2])
async def test_an_upload_that_is_cancelled_at_its_end_leaves_nothing(contents: S3Contents, parts: int) -> None:
    async def end() -> AsyncIterator[bytes]:
        async for part in send_parts(parts):
            yield part
        yield b"the end"
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(writing.cancel))

    writing = asyncio.create_task(contents.write("key_1", end()))
    async with asyncio.timeout(SECONDS):
        await asyncio.wait([writing])
    assert writing.cancelled()
    assert await list_keys(contents) == []


async def test_a_server_that_stops_during_an_upload_is_an_error_within_the_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    server = S3Server(tmp_path)
    server.start()
    contents = S3Contents(server.make_url(), request_seconds=2.0)

    async def stop() -> AsyncIterator[bytes]:
        yield b"x" * PART_BYTES
        await asyncio.to_thread(server.stop)
        async for part in send_parts(4):
            yield part

    async with asyncio.timeout(SECONDS):
        with pytest.raises(Unavailable, match=r"cannot be stored: the bucket does not answer"):
            await contents.write("key_1", stop())
        await contents.delete(["key_1"])  # the next sweep deletes it
        assert "a file could not be deleted: the bucket does not answer" in caplog.text
        with pytest.raises(StartupError, match="does not answer"):
            await contents.open()


async def test_a_server_that_never_answers_is_an_error_within_the_deadline(bucket_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"s3://bucket?endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        async with asyncio.timeout(SECONDS):
            with pytest.raises(Unavailable, match="does not answer"):
                await anext(S3Contents(url, request_seconds=0.2).read("key_1", 0, 1))


async def test_denied_access_is_an_error_without_credentials(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    contents = S3Contents(bucket_url)
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(StartupError, match="denies access") as denied:
            await contents.open()
        with pytest.raises(Unavailable, match="denies access") as rejected:
            await contents.write("key_1", send_parts(2))
    shown = f"{denied.value} {rejected.value} {caplog.text}"
    assert "denies access" in caplog.text
    assert ACCESS_KEY not in shown
    assert "another-secret" not in shown


async def test_a_bucket_that_does_not_exist_prevents_the_start(bucket_url: str) -> None:
    with pytest.raises(StartupError, match="is missing"):
        await S3Contents(bucket_url.replace("s3://bucket", "s3://other")).open()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "names no bucket"),
        ("s3://key:secret@bucket/x", "contains credentials"),
        ("s3://bucket?endpoint=localhost:9000", "not an http:// or https:// URL"),
        ("s3://bucket?secret_access_key=x", "unknown parameter 'secret_access_key'"),
        ("gs://bucket", "gs:// is not supported"),
    ],
)
def test_an_invalid_url_is_rejected_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(StartupError, match=message) as rejected:
        make_contents(url, "memory", make_store("memory", 1.0))
    assert "key:secret" not in str(rejected.value)
