"""The images API on the fake image service: replies, streams, forms, refused fields, and failures.

Covers `protocol/bodies/images.py` and `transport/endpoints/images.py`.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai.types import image_create_variation_params, image_edit_params, image_generate_params

from antiphon.core.images import read_image_info
from antiphon.protocol.bodies import images as wire
from tests.api.app import ApiServer, run_api
from tests.image_services.stub_service import StubService, encode_image, make_reply
from tests.oracles.images import check_image_event, check_images
from tests.support.asgi_client import AsgiResponse, call
from tests.support.local_servers import serve_tcp
from tests.support.media_files import gif, jpeg, png

pytestmark = pytest.mark.anyio

PNG = png(16, 16)
BOUNDARY = b"b0undary"
FORM = (b"content-type", b"multipart/form-data; boundary=" + BOUNDARY)


@asynccontextmanager
async def run_fake(**settings: Any) -> AsyncIterator[ApiServer]:
    async with run_api(image_service=("fake",), **settings) as api:
        yield api


def make_form(*parts: tuple[str, bytes], files: tuple[str, ...] = ("image", "image[]", "mask")) -> bytes:
    pieces = []
    for name, content in parts:
        suffix = '; filename="x.png"' if name in files else ""
        head = f'Content-Disposition: form-data; name="{name}"{suffix}'.encode()
        pieces.append(b"--%b\r\n%b\r\n\r\n%b\r\n" % (BOUNDARY, head, content))
    return b"".join([*pieces, b"--%b--\r\n" % BOUNDARY])


async def post_form(api: ApiServer, path: str, *parts: tuple[str, bytes]) -> AsgiResponse:
    body = make_form(*parts)
    return await call(api.app, "POST", f"/v1/images/{path}", FORM, (b"content-length", b"%d" % len(body)), body=[body])


def read_events(answer: AsgiResponse) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    assert answer.header(b"content-type") == b"text/event-stream; charset=utf-8"
    events = []
    for frame in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def read_size(data: str) -> tuple[int, int]:
    info = read_image_info(base64.b64decode(data))
    return info.width, info.height


@pytest.mark.shows("E2.4")
async def test_a_reply_has_the_images_and_what_was_really_used() -> None:
    async with run_fake() as api:
        body = await api.post_ok(
            "images/generations",
            {"prompt": "a cat", "n": 2, "size": "64x32", "background": "opaque", "quality": "auto", "user": "me"},
        )
    check_images(body)
    assert [read_size(image["b64_json"]) for image in body["data"]] == [(64, 32)] * 2
    assert (body["size"], body["background"], body["output_format"]) == ("64x32", "opaque", "png")
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
    assert body["safety_identifier"] == "me"
    assert "quality" not in body


@pytest.mark.shows("E2.4")
async def test_a_stream_has_previews_and_one_event_for_each_image() -> None:
    async with run_fake() as api:
        body = {"prompt": "a cat", "n": 2, "stream": True, "partial_images": 2, "safety_identifier": "me"}
        events = read_events(await api.post("images/generations", body))
    for event in events:
        check_image_event(event)
    assert [event["type"].partition(".")[2] for event in events] == ["partial_image"] * 2 + ["completed"] * 2
    assert [event["partial_image_index"] for event in events[:2]] == [0, 1]
    assert len({event["b64_json"] for event in events}) == 4
    assert events[-1]["safety_identifier"] == "me"


@pytest.mark.shows("E2.5")
async def test_an_edit_takes_a_form_with_images_and_a_mask() -> None:
    async with run_fake() as api:
        one = await post_form(api, "edits", ("prompt", b"hat"), ("image", PNG), ("n", b"1"), ("extra", b"1"))
        two = await post_form(api, "edits", ("image[]", PNG), ("image[]", jpeg()), ("mask", PNG), ("prompt", b"hat"))
    for answer in (one, two):
        assert answer.status == 200, answer.body
        check_images(answer.json())
    assert one.header(b"x-antiphon-ignored") == b"extra"
    assert one.json()["data"][0]["b64_json"] != two.json()["data"][0]["b64_json"]


@pytest.mark.shows("E2.5")
async def test_an_edit_takes_json_with_data_urls_and_files() -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    async with run_fake() as api:
        upload = make_form(("purpose", b"vision"), ("file", PNG), files=("file",))
        length = (b"content-length", b"%d" % len(upload))
        file = (await call(api.app, "POST", "/v1/files", FORM, length, body=[upload])).json()
        fields = {"prompt": "hat", "images": [{"image_url": url}, {"file_id": file["id"]}], "mask": {"image_url": url}}
        body = await api.post_ok("images/edits", fields)
        stream = read_events(await api.post("images/edits", {**fields, "stream": True, "partial_images": 1}))
        same = await post_form(
            api, "edits", ("image[]", PNG), ("image[]", PNG), ("mask", PNG), ("prompt", b"hat"), ("stream", b"true")
        )
    check_images(body)
    for event in (*stream, *read_events(same)):
        check_image_event(event)
    assert [event["type"] for event in stream] == ["image_edit.partial_image", "image_edit.completed"]
    assert body["data"][0]["b64_json"] == stream[-1]["b64_json"] == read_events(same)[0]["b64_json"]


@pytest.mark.shows("E2.6")
async def test_a_variation_is_made_of_one_image() -> None:
    async with run_fake() as api:
        answer = await post_form(api, "variations", ("image", PNG), ("n", b"2"), ("size", b"256x256"))
        assert answer.status == 200, answer.body
        check_images(answer.json())
        several = await post_form(api, "variations", ("image", PNG), ("image", PNG))
        assert (several.status, several.error["param"]) == (400, "image")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "n": 11}, "n"),
        ({"prompt": "x", "size": "100x100"}, "size"),
        ({"prompt": "x", "size": "1x" * 300}, "size"),
        ({"prompt": "x", "quality": "best"}, "quality"),
        ({"prompt": "x", "quality": "high"}, "quality"),
        ({"prompt": "x", "output_format": "svg"}, "output_format"),
        ({"prompt": "x", "output_format": "webp"}, "output_format"),
        ({"prompt": "x", "output_compression": 101}, "output_compression"),
        ({"prompt": "x", "partial_images": 4, "stream": True}, "partial_images"),
        ({"prompt": "x", "partial_images": 1}, "partial_images"),
        ({"prompt": "x", "response_format": "url"}, "response_format"),
        ({"prompt": "x", "style": "vivid"}, "style"),
        ({"prompt": "x", "svg": {"model": "y"}}, "svg"),
        ({"prompt": "x", "frame_count": 2}, "frame_count"),
        ({"prompt": "x", "complexity": "low"}, "complexity"),
        ({"prompt": "x", "model": "other"}, "model"),
    ],
)
async def test_fields_that_cannot_be_honoured_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with run_fake() as api:
        answer = await api.post("images/generations", fields)
    assert answer.status == (404 if param == "model" else 400)
    assert answer.error["param"] == param


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([("image", PNG)], "prompt"),
        ([("prompt", b"x")], "image"),
        ([("prompt", b"x"), ("mask", PNG)], "image"),
        ([("prompt", b"x"), ("image", b"<html>")], "image"),
        ([("prompt", b"x"), ("image", PNG), ("mask", jpeg())], "mask"),
        ([("prompt", b"x"), ("image", PNG), ("mask", PNG), ("mask", PNG)], "mask"),
        ([("prompt", b"x"), *[("image[]", PNG)] * 17], "image"),
        ([("prompt", b"x"), ("image", PNG), ("n", b"many")], "n"),
        ([("prompt", b"x"), ("image", PNG), ("markup", b"y")], "markup"),
        ([("prompt", b"x"), ("image", png(16, 16) + b"x"), ("size", b"3x3")], "size"),
    ],
)
async def test_an_invalid_form_is_refused_by_name(parts: list[tuple[str, bytes]], param: str) -> None:
    async with run_fake() as api:
        answer = await post_form(api, "edits", *parts)
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x"}, "images"),
        ({"prompt": "x", "images": []}, "images"),
        ({"prompt": "x", "images": [{}]}, "images[0]"),
        ({"prompt": "x", "images": [{"image_url": "http://169.254.169.254/x"}]}, "images[0]"),
        ({"prompt": "x", "images": [{"file_id": "file-1"}]}, "images[0]"),
        ({"prompt": "x", "images": [{"image_url": "data:image/png;base64,AAAA"}] * 17}, "images"),
    ],
)
async def test_an_invalid_edit_in_json_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with run_fake() as api:
        answer = await api.post("images/edits", fields)
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.shows("E2.7")
async def test_without_an_image_service_requests_are_refused() -> None:
    async with run_api() as api:
        answer = await api.post("images/generations", {"prompt": "x"})
        assert answer.status == 400
        assert "--image-service" in answer.error["message"]
        json_edit = await api.post("images/edits", {"prompt": "x", "images": [{"image_url": "data:,no"}]})
        form = await post_form(api, "edits", ("prompt", b"x"), ("image", b"no image"))
        variation = await post_form(api, "variations", ("image", b"no image"))
        for other in (await api.post("images/generations", {}), json_edit, form, variation):
            assert other.error == answer.error  # before anything else is wrong
        models = (await api.get("models")).json()["data"]
    assert [model["id"] for model in models] == ["fake"]


async def test_models_of_image_services_are_listed_last() -> None:
    async with run_fake() as api:
        models = (await api.get("models")).json()["data"]
        assert [model["id"] for model in models] == ["fake", "fake-image"]
        assert (await api.get("models/fake-image")).json() == models[1]


@pytest.mark.parametrize(
    ("mark", "status", "code"),
    [
        ("fail", 500, "server_error"),
        ("busy", 429, "rate_limit_exceeded"),
        ("down", 503, "service_unavailable"),
        ("block", 400, "moderation_blocked"),
        ("page", 500, "server_error"),
    ],
)
async def test_a_failure_is_an_error_of_its_kind(mark: str, status: int, code: str) -> None:
    async with run_fake() as api:
        for stream in (False, True):
            answer = await api.post("images/generations", {"prompt": f"[fake {mark}]", "stream": stream})
            assert (answer.status, answer.error["code"]) == (status, code)


async def test_a_failure_after_a_preview_is_an_event() -> None:
    async with run_fake() as api:
        body = {"prompt": "[fake fail]", "stream": True, "partial_images": 2}
        preview, error = read_events(await api.post("images/generations", body))
    check_image_event(preview)
    assert error["error"]["code"] == "server_error"


async def test_a_client_that_leaves_cancels_the_request_to_the_service() -> None:
    stub = StubService()
    stub.silent = True
    async with serve_tcp(stub.handle) as port, run_api(image_service=(f"http://127.0.0.1:{port}",)) as api:
        running = asyncio.ensure_future(api.post("images/generations", {"prompt": "x"}))
        await stub.requested.wait()
        while not any("images" in path for path in stub.paths):
            stub.requested.clear()
            await stub.requested.wait()
        running.cancel()
        await stub.closed.wait()


@pytest.mark.shows("E2.1")
async def test_a_service_over_http_is_used_and_reported_as_ready() -> None:
    stub = StubService()
    stub.body = json.dumps({"data": [{"b64_json": encode_image(PNG), "revised_prompt": "a sea otter"}]}).encode()
    async with serve_tcp(stub.handle) as port, run_api(image_service=(f"http://127.0.0.1:{port}=my-key",)) as api:
        body = await api.post_ok("images/generations", {"prompt": "x", "model": "drawer"})
        ready = await call(api.app, "GET", "/ready")
        metrics = (await call(api.app, "GET", "/metrics")).body.decode()
    check_images(body)
    assert base64.b64decode(body["data"][0]["b64_json"]) == PNG
    assert body["data"][0]["revised_prompt"] == "a sea otter"
    assert "usage" not in body
    assert 'antiphon_image_service_up{service="openai"} 1' in metrics
    assert 'antiphon_image_service_running{service="openai"} 0' in metrics
    assert ready.json() == {"status": "ready", "image_services": {"up": 1, "all": 1}}


async def test_fields_without_effect_are_told() -> None:
    stub = StubService()
    stub.body = make_reply(PNG)
    async with serve_tcp(stub.handle) as port, run_api(image_service=(f"sd.cpp://127.0.0.1:{port}",)) as api:
        body = {"prompt": "x", "model": "y", "stream": True, "partial_images": 1, "other": 1}
        answer = await api.post("images/generations", body)
    assert answer.header(b"x-antiphon-ignored") == b"other, model, partial_images"
    assert [event["type"] for event in read_events(answer)] == ["image_generation.completed"]


async def test_an_animation_is_no_source() -> None:
    async with run_fake() as api:
        answer = await post_form(api, "edits", ("prompt", b"x"), ("image", gif(frames=300)))
    assert (answer.status, answer.error["param"]) == (400, "image")


def test_every_parameter_of_the_openai_package_is_known() -> None:
    """A parameter is honoured or refused by name; one that is missing here would be reported as ignored."""
    generate = image_generate_params.ImageGenerateParamsStreaming.__annotations__
    edit = image_edit_params.ImageEditParamsStreaming.__annotations__
    vary = image_create_variation_params.ImageCreateVariationParams.__annotations__
    assert {*generate} == {*wire.CreateImage.__struct_fields__}
    assert {*edit} - {"moderation"} == {*wire.EditImageForm.__struct_fields__} - {"moderation", "svg"}
    assert {*vary} | {"safety_identifier"} == {*wire.VariationForm.__struct_fields__}
