"""Tests /v1/files and /v1/uploads on the complete application; the openai package's types check every reply.

Covers `service/files.py`, `protocol/bodies/files.py` and `transport/http/forms.py`.
"""

import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from antiphon.limits import Limits
from tests.api.app import ApiServer, run_api
from tests.oracles.files import check_file, check_file_deleted, check_upload, check_upload_part
from tests.support.asgi_client import AsgiResponse, Header, call
from tests.support.media_files import png
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.anyio
BOUNDARY = "XX"
FORM: Header = (b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode())


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


def build_form(fields: Mapping[str, str], content: bytes | None, name: str = "file", filename: str = "a.txt") -> bytes:
    """Build a form whose file comes first, as some SDKs send it."""
    parts = []
    if content is not None:
        head = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'
        parts.append(head.encode() + content)
    for field, value in fields.items():
        parts.append(f'Content-Disposition: form-data; name="{field}"\r\n\r\n{value}'.encode())
    delimiter = f"--{BOUNDARY}\r\n".encode()
    return b"".join([delimiter + part + b"\r\n" for part in parts]) + f"--{BOUNDARY}--\r\n".encode()


async def send_form(server: ApiServer, path: str, body: bytes, piece_bytes: int = 65536) -> AsgiResponse:
    pieces = [body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes)]
    length = (b"content-length", b"%d" % len(body))
    return await call(server.app, "POST", f"/v1/{path}", FORM, length, body=pieces)


async def upload(
    server: ApiServer, content: bytes = b"hello", purpose: str = "user_data", fields: Mapping[str, str] = {}
) -> Any:
    answer = await send_form(server, "files", build_form({"purpose": purpose, **fields}, content))
    assert answer.status == 200, answer.body
    check_file(answer.json())
    return answer.json()


def list_stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def read_content(server: ApiServer, file_id: str, *headers: Header) -> AsgiResponse:
    return await call(server.app, "GET", f"/v1/files/{file_id}/content", *headers)


@pytest.mark.shows("E.17")
async def test_a_file_is_stored_retrieved_read_and_deleted(server: ApiServer) -> None:
    file = await upload(server, b"hello")
    assert (file["bytes"], file["filename"], file["purpose"]) == (5, "a.txt", "user_data")
    assert file["id"].startswith("file-")
    assert file["expires_at"] is None
    assert (await server.get(f"files/{file['id']}")).json() == file
    answer = await read_content(server, file["id"])
    assert (answer.status, answer.body) == (200, b"hello")
    assert answer.header(b"content-disposition") == b"attachment; filename*=UTF-8''a.txt"
    deleted = await server.delete(f"files/{file['id']}")
    check_file_deleted(deleted.json())
    for answer in (await server.get(f"files/{file['id']}"), await read_content(server, file["id"])):
        assert (answer.status, answer.error["param"]) == (404, "id")
    assert (await server.delete(f"files/{file['id']}")).status == 404


async def test_contents_can_be_in_a_bucket(s3: S3Server, bucket_url: str) -> None:
    content = os.urandom(6 * 1024 * 1024)  # two parts
    folder = s3.folder / "data" / "bucket"
    async with run_api(files=bucket_url) as server:
        before = len(list_stored(folder))
        file = await upload(server, content)
        assert len(list_stored(folder)) == before + 1
        assert (await read_content(server, file["id"])).body == content
        answer = await read_content(server, file["id"], (b"range", b"bytes=5242870-5242889"))
        assert (answer.status, answer.body) == (206, content[5242870:5242890])
        await server.delete(f"files/{file['id']}")
        assert len(list_stored(folder)) == before


async def test_a_file_whose_content_is_missing_is_a_503(tmp_path: Path) -> None:
    async with run_api(store=None, files=str(tmp_path)) as server:
        file = await upload(server, b"hello")
        for path in list_stored(tmp_path):
            path.unlink()
        answer = await read_content(server, file["id"])
        assert (answer.status, answer.error["type"]) == (503, "service_unavailable")
        assert "content of the file cannot be read" in answer.error["message"]


async def test_fields_of_a_form_without_effect_are_told(server: ApiServer) -> None:
    fields = {
        "purpose": "user_data", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600",
        "expires_after[days]": "1", "other": "x",
    }  # fmt: skip
    answer = await send_form(server, "files", build_form(fields, b"hello"))
    assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"other, expires_after.days")


async def test_a_file_expires_when_the_client_says_and_batches_after_30_days(server: ApiServer) -> None:
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = await upload(server, fields=fields)
    assert file["expires_at"] == file["created_at"] + 3600
    batch = await upload(server, b"{}", "batch")
    assert batch["expires_at"] - batch["created_at"] == 30 * 86400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "other"}, "purpose"),
        ({"purpose": "user_data", "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        (
            {"purpose": "vision", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after.seconds",
        ),
        ({"purpose": "user_data", "expires_after": "never"}, "expires_after"),
    ],
)
async def test_a_form_with_invalid_fields_is_rejected_by_name_and_stores_nothing(
    tmp_path: Path, fields: dict[str, str], param: str
) -> None:
    async with run_api(store=None, files=str(tmp_path)) as server:
        answer = await send_form(server, "files", build_form(fields, b"hello"))
        assert (answer.status, answer.error["param"]) == (400, param)
        assert (await server.get("files")).json()["data"] == []
    assert list_stored(tmp_path) == []


@pytest.mark.parametrize(
    ("form", "status", "param"),
    [
        (build_form({"purpose": "user_data"}, None), 400, "file"),
        (build_form({"purpose": "user_data"}, b"hello", filename=""), 400, "file"),
        (build_form({"purpose": "user_data"}, b"hello", filename="a\0b"), 400, "file"),
        (build_form({"purpose": "user_data"}, b"hello", filename="x" * 513), 400, "file"),
        (build_form({"purpose": "x" * 70_000}, b"hello"), 400, "purpose"),
        (build_form({"purpose": "user_data"}, b"hello")[:-10], 400, None),
        (build_form({"purpose": "user_data"}, b"x" * 1001), 413, None),
        (build_form({"purpose": "user_data"}, b"x" * 5_000_000), 413, None),
    ],
)
async def test_a_form_without_a_valid_file_is_rejected(form: bytes, status: int, param: str | None) -> None:
    async with run_api(limits=Limits(stored_file_bytes=1000)) as server:
        answer = await send_form(server, "files", form)
        assert (answer.status, answer.error["param"]) == (status, param)
        assert (await server.get("files")).json()["data"] == []


async def test_a_json_body_is_rejected_where_a_form_is_expected(server: ApiServer) -> None:
    assert (await server.post("files", {"purpose": "user_data"})).status == 415


async def test_unknown_fields_of_a_form_are_reported_as_ignored(server: ApiServer) -> None:
    answer = await send_form(server, "files", build_form({"purpose": "vision", "colour": "red"}, b"hello"))
    assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"colour")


async def test_a_file_that_arrives_byte_by_byte_is_stored_unchanged(server: ApiServer) -> None:
    content = b"line\r\n--XY\r\n" * 20
    answer = await send_form(server, "files", build_form({"purpose": "user_data"}, content), piece_bytes=1)
    assert (await read_content(server, answer.json()["id"])).body == content


@pytest.mark.shows("E.17")
async def test_files_are_listed_in_pages_and_by_purpose(server: ApiServer) -> None:
    ids = [(await upload(server, purpose=purpose))["id"] for purpose in ("vision", "batch", "vision")]
    page = (await server.get("files?order=asc&limit=10000")).json()
    assert sorted(file["id"] for file in page["data"]) == sorted(ids)
    assert (page["object"], page["has_more"], page["first_id"]) == ("list", False, page["data"][0]["id"])
    first = (await server.get("files?limit=2")).json()
    second = (await server.get(f"files?limit=2&after={first['last_id']}")).json()
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert {file["id"] for file in first["data"] + second["data"]} == {*ids}
    assert len((await server.get("files?purpose=vision")).json()["data"]) == 2
    for query, param in (("limit=10001", "limit"), ("after=file-x", "after"), ("order=up", "order")):
        answer = await server.get(f"files?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("value", "status", "body", "content_range"),
    [
        (b"bytes=0-0", 206, b"0", b"bytes 0-0/10"),
        (b"bytes=2-4", 206, b"234", b"bytes 2-4/10"),
        (b"bytes=8-99", 206, b"89", b"bytes 8-9/10"),
        (b"bytes=8-", 206, b"89", b"bytes 8-9/10"),
        (b"bytes=-3", 206, b"789", b"bytes 7-9/10"),
        (b"bytes=0-9", 200, b"0123456789", None),
        (b"bytes=-99", 200, b"0123456789", None),
        (b"bytes=0-1,4-5", 200, b"0123456789", None),
        (b"items=0-1", 200, b"0123456789", None),
        (b"bytes=-", 200, b"0123456789", None),
    ],
)
async def test_a_range_of_the_content_is_sent(
    server: ApiServer, value: bytes, status: int, body: bytes, content_range: bytes | None
) -> None:
    file = await upload(server, b"0123456789")
    answer = await read_content(server, file["id"], (b"range", value))
    assert (answer.status, answer.body, answer.header(b"content-range")) == (status, body, content_range)


@pytest.mark.parametrize("value", [b"bytes=10-", b"bytes=5-4", b"bytes=-0"])
async def test_a_range_outside_of_the_content_is_rejected(server: ApiServer, value: bytes) -> None:
    file = await upload(server, b"0123456789")
    assert (await read_content(server, file["id"], (b"range", value))).status == 416


async def test_files_of_the_same_content_are_stored_once_and_deleted_separately(tmp_path: Path) -> None:
    async with run_api(files=str(tmp_path)) as server:
        first, second = [await upload(server, b"same") for _ in range(2)]
        assert len(list_stored(tmp_path)) == 1
        await server.delete(f"files/{first['id']}")
        assert (await read_content(server, second["id"])).body == b"same"
        await server.delete(f"files/{second['id']}")
        assert list_stored(tmp_path) == []


async def test_the_quota_of_a_tenant_is_an_error_with_its_figures() -> None:
    async with run_api(files_max_bytes=8) as server:
        await upload(server, b"hello")
        answer = await send_form(server, "files", build_form({"purpose": "user_data"}, b"world"))
        assert (answer.status, answer.error["code"]) == (400, "storage_limit_reached")
        assert "8 bytes, of which 5 are used" in answer.error["message"]


async def test_without_a_store_files_are_rejected() -> None:
    async with run_api(disable_store=True) as server:
        for answer in (
            await send_form(server, "files", build_form({"purpose": "user_data"}, b"hello")),
            await server.get("files"),
        ):
            assert answer.status in (400, 404)
            assert "--disable-store" in answer.error["message"]


async def test_a_stored_file_is_an_input_by_its_id(server: ApiServer) -> None:
    file = await upload(server, b"The answer is 42.")
    part = {"type": "input_file", "file_id": file["id"]}
    response = await server.create(input=[{"role": "user", "content": [part]}])
    assert "The answer is 42." in response["output"][0]["content"][0]["text"]
    await server.delete(f"files/{file['id']}")
    answer = await server.post("responses", {"model": "fake", "input": [{"role": "user", "content": [part]}]})
    assert (answer.status, answer.error["param"]) == (400, "input[0].content[0].file_id")


async def test_a_stored_image_is_an_input_by_its_id(server: ApiServer) -> None:
    image, text = await upload(server, png(), "vision"), await upload(server, b"no image", "vision")
    parts = [{"type": "input_image", "file_id": file["id"], "detail": "auto"} for file in (image, text)]
    response = await server.create(input=[{"role": "user", "content": parts[:1]}])
    assert response["status"] == "completed"
    answer = await server.post("responses", {"model": "fake", "input": [{"role": "user", "content": parts}]})
    assert (answer.status, answer.error["param"]) == (400, "input[0].content[1].file_id")


async def begin_upload(server: ApiServer, size: int, **fields: Any) -> Any:
    body = {"bytes": size, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data", **fields}
    created = await server.post_ok("uploads", body)
    check_upload(created)
    return created


async def add_part(server: ApiServer, upload_id: str, content: bytes) -> str:
    answer = await send_form(server, f"uploads/{upload_id}/parts", build_form({}, content, "data"))
    assert answer.status == 200, answer.body
    check_upload_part(answer.json())
    return str(answer.json()["id"])


async def test_parts_become_a_file_in_the_order_of_the_client(tmp_path: Path) -> None:
    async with run_api(files=str(tmp_path)) as server:
        begun = await begin_upload(server, 8, expires_after={"anchor": "created_at", "seconds": 3600})
        assert begun["status"] == "pending"
        second, first = [await add_part(server, begun["id"], content) for content in (b"5678", b"1234")]
        body = {"part_ids": [first, second], "md5": hashlib.md5(b"12345678").hexdigest()}
        completed = await server.post_ok(f"uploads/{begun['id']}/complete", body)
        check_upload(completed)
        file = completed["file"]
        assert (completed["status"], file["bytes"]) == ("completed", 8)
        assert file["expires_at"] == file["created_at"] + 3600
        assert (await read_content(server, file["id"])).body == b"12345678"
        assert await server.post_ok(f"uploads/{begun['id']}/complete", body) == completed
        assert len(list_stored(tmp_path)) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"part_ids": []}, "part_ids"),
        ({"part_ids": ["part_x"]}, "part_ids[0]"),
        ({"part_ids": ["FIRST", "FIRST"]}, "part_ids"),
        ({"part_ids": ["FIRST"], "md5": "0"}, "md5"),
        ({}, "part_ids"),
    ],
)
async def test_an_upload_with_other_parts_is_not_completed(server: ApiServer, body: dict[str, Any], param: str) -> None:
    begun = await begin_upload(server, 4)
    part = await add_part(server, begun["id"], b"1234")
    body = {**body, **({"part_ids": [part if one == "FIRST" else one for one in body["part_ids"]]} if body else {})}
    answer = await server.post(f"uploads/{begun['id']}/complete", body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert (await server.post_ok(f"uploads/{begun['id']}/complete", {"part_ids": [part]}))["status"] == "completed"


async def test_a_cancelled_upload_takes_no_parts_and_frees_those_it_has(tmp_path: Path) -> None:
    async with run_api(files=str(tmp_path)) as server:
        begun = await begin_upload(server, 4)
        part = await add_part(server, begun["id"], b"1234")
        cancelled = (await server.post(f"uploads/{begun['id']}/cancel")).json()
        check_upload(cancelled)
        assert cancelled["status"] == "cancelled"
        assert list_stored(tmp_path) == []
        for path, body in (("complete", {"part_ids": [part]}), ("cancel", None)):
            assert (await server.post(f"uploads/{begun['id']}/{path}", body)).status == 400
        answer = await send_form(server, f"uploads/{begun['id']}/parts", build_form({}, b"1234", "data"))
        assert (answer.status, answer.error["param"]) == (400, "upload_id")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bytes": 0}, "bytes"),
        ({"bytes": 2**40}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"purpose": "x"}, "purpose"),
    ],
)
async def test_an_invalid_upload_is_rejected_by_name(server: ApiServer, fields: dict[str, Any], param: str) -> None:
    body = {"bytes": 4, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data", **fields}
    answer = await server.post("uploads", body)
    assert (answer.status, answer.error["param"]) == (400, param)


async def test_an_unknown_upload_is_not_found(server: ApiServer) -> None:
    for path in ("parts", "complete", "cancel"):
        body = build_form({}, b"1234", "data") if path == "parts" else b'{"part_ids": []}'
        send = send_form if path == "parts" else ApiServer.post
        answer = await send(server, f"uploads/upload_x/{path}", body)
        assert (answer.status, answer.error["param"]) == (404, "upload_id")
