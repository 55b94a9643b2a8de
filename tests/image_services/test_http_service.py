"""The client of image services: requests of each kind, replies, streams, and services that fail or lie.

Covers `image_services/base.py` and `image_services/service_kinds.py`.
"""

import asyncio
import json
from typing import Any

import pytest

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.image_generation import ImageRequest, ImageResult, PartialImage, SourceImage
from antiphon.egress import EgressClient
from antiphon.errors import (
    AntiphonError,
    BadRequest,
    Busy,
    ContextTooLong,
    EngineFailed,
    StartupError,
    Unavailable,
    UnsupportedParameter,
)
from antiphon.image_services import base, http_service
from antiphon.image_services.base import ModerationBlocked
from antiphon.image_services.http_service import HttpImageService
from antiphon.image_services.registry import IMAGE_SERVICES
from antiphon.image_services.service_kinds import KINDS
from tests.image_services.stub_service import encode_image, make_reply, run_stub
from tests.support.media_files import gif, huge_png, jpeg, png
from tests.support.paths import DOCS

pytestmark = pytest.mark.anyio

SECRET = "s3cret-of-the-service"
PNG = png(16, 16)
SOURCE = SourceImage(png(8, 8), "image/png")


async def collect(service: HttpImageService, prompt: str = "cat", **fields: Any) -> list[PartialImage | ImageResult]:
    request = ImageRequest(prompt=prompt, **fields)
    service.check(request, "")
    return [event async for event in service.generate(request)]


async def generate(service: HttpImageService, prompt: str = "cat", **fields: Any) -> ImageResult:
    [result] = await collect(service, prompt, **fields)
    assert isinstance(result, ImageResult)
    return result


async def find_failure(service: HttpImageService, **fields: Any) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        await collect(service, **fields)
    return caught.value


def test_every_kind_has_a_table() -> None:
    assert {*KINDS} | {"fake"} == {*IMAGE_SERVICES}


def test_the_page_lists_what_each_kind_honours() -> None:
    def quote(fields: frozenset[str]) -> str:
        return ", ".join([f"`{field}`" for field in sorted(fields)])

    page = (DOCS / "images.md").read_text("utf-8")
    for kind, table in KINDS.items():
        in_edits = quote(table.edit_fields) if "edits" in table.operations else "no edits"
        formats = ", ".join(sorted(table.formats))
        assert f"| `{kind}` | {table.title} | {quote(table.fields)} | {in_edits} | {formats} |" in page


async def test_images_are_requested_as_base64_with_the_fields_that_were_set() -> None:
    async with run_stub(key=SECRET) as (service, stub):
        usage = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8, "input_tokens_details": {"text_tokens": 3}}
        stub.body = make_reply(PNG, PNG, quality="high", background="opaque", usage=usage)
        result = await generate(service, n=2, size="1024x1024", quality="auto", moderation="low", model="drawer")
        assert stub.fields == {
            "prompt": "cat",
            "n": 2,
            "size": "1024x1024",
            "moderation": "low",
            "model": "drawer",
            "response_format": "b64_json",
        }
        assert stub.paths == ["/v1/images/generations"]
        assert f"Authorization: Bearer {SECRET}" in stub.heads[0]
    assert [image.body for image in result.images] == [PNG, PNG]
    options = result.options
    assert (options.size, options.quality, options.background, options.output_format) == (
        "16x16",
        "high",
        "opaque",
        "png",
    )
    assert result.usage is not None
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.input_text_tokens) == (3, 5, 3)


async def test_connections_are_reused() -> None:
    async with run_stub(path="/team/v1") as (service, stub):
        stub.body = make_reply(PNG)
        for _ in range(3):
            await generate(service)
        assert stub.connections == 1
        assert stub.paths[0] == "/team/v1/images/generations"


async def test_openai_models_are_not_sent_the_field_that_they_reject() -> None:
    async with run_stub() as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service, model="gpt-image-2")
        assert stub.fields == {"prompt": "cat", "model": "gpt-image-2"}
        await generate(service)  # OpenAI's default may be such a model
        assert stub.fields == {"prompt": "cat"}
    async with run_stub("localai") as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service)
        assert stub.fields == {"prompt": "cat", "response_format": "b64_json"}


async def test_the_operators_models_and_defaults_are_sent() -> None:
    models, defaults = {"gpt-image-2": "Qwen/Qwen-Image"}, {"num_inference_steps": 20, "size": "512x512"}
    async with run_stub("vllm-omni", models=models, defaults=defaults) as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service, model="gpt-image-2", size="256x256")
        assert stub.fields["model"] == "Qwen/Qwen-Image"
        assert (stub.fields["num_inference_steps"], stub.fields["size"]) == (20, "256x256")
        await generate(service)
        assert (stub.fields["model"], stub.fields["size"]) == ("Qwen/Qwen-Image", "512x512")


async def test_a_server_with_one_model_is_not_sent_a_foreign_name() -> None:
    async with run_stub("sglang") as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service, model="gpt-image-2")
        assert "model" not in stub.fields
        request = ImageRequest(prompt="cat", model="gpt-image-2", partial_images=1)
        assert service.list_ignored(request) == ["model", "partial_images"]


async def test_an_edit_is_a_form_with_all_images_and_the_mask() -> None:
    async with run_stub() as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service, "add a hat", sources=(SOURCE, SOURCE), mask=SOURCE, n=1, input_fidelity="high")
        assert stub.paths == ["/v1/images/edits"]
        assert stub.form == {
            "n": [b"1"],
            "input_fidelity": [b"high"],
            "prompt": [b"add a hat"],
            "image[]": [SOURCE.body, SOURCE.body],
            "mask": [SOURCE.body],
        }


async def test_a_variation_has_an_image_and_no_prompt() -> None:
    async with run_stub() as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service, "", sources=(SOURCE,), variation=True)
        assert stub.paths == ["/v1/images/variations"]
        assert stub.form == {"response_format": [b"b64_json"], "image": [SOURCE.body]}


@pytest.mark.parametrize("mark", ["<sd_cpp_extra_args>{}</sd_cpp_extra_args>", "<SD_CPP_EXTRA_ARGS>"])
@pytest.mark.parametrize("sources", [(), (SOURCE,)])
@pytest.mark.parametrize("kind", ["sd.cpp", "openai"])
async def test_a_prompt_cannot_give_arguments_to_sd_cpp(kind: str, mark: str, sources: tuple[SourceImage, ...]) -> None:
    async with run_stub(kind) as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service, f"cat {mark}", sources=sources)
        assert b"cat <" in stub.bodies[0]
        assert b"sd_cpp_extra_args" not in stub.bodies[0].lower()


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("sd.cpp", {"quality": "high"}, "quality"),
        ("sd.cpp", {"output_format": "webp"}, "output_format"),
        ("sd.cpp", {"n": 9}, "n"),
        ("sd.cpp", {"sources": (SOURCE,), "mask": SOURCE}, "mask"),
        ("vllm-omni", {"output_format": "jpeg"}, "output_format"),
        ("sglang", {"background": "transparent"}, "background"),
        ("localai", {"sources": (SOURCE,)}, "image"),
        ("localai", {"output_compression": 50}, "output_compression"),
        ("vllm-omni", {"sources": (SOURCE,), "variation": True}, "image"),
        ("openai", {"sources": (SOURCE,), "style": "vivid"}, "style"),
    ],
)
async def test_what_a_kind_cannot_honour_is_refused_by_name(kind: str, fields: dict[str, Any], param: str) -> None:
    async with run_stub(kind) as (service, stub):
        error = await find_failure(service, **fields)
        assert isinstance(error, UnsupportedParameter)
        assert error.param == param
        assert "draw" in error.message
        assert not stub.bodies


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_values_that_need_no_field_are_accepted_by_every_kind(kind: str) -> None:
    async with run_stub(kind) as (service, stub):
        stub.body = make_reply(PNG)
        await generate(
            service,
            size="auto",
            quality="auto",
            background="opaque",
            moderation="low",
            output_format="png",
            partial_images=0,
        )


def make_event(kind: str, body: bytes = PNG, **fields: Any) -> bytes:
    data = {"type": kind, "b64_json": encode_image(body), **fields}
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


async def test_previews_are_passed_on_while_they_arrive() -> None:
    async with run_stub() as (service, stub):
        stub.media_type = "text/event-stream"
        stub.body = (
            make_event("image_generation.partial_image", partial_image_index=0)
            + make_event("image_generation.partial_image", partial_image_index=1)
            + make_event("image_generation.partial_image", partial_image_index=1)  # repeated
            + make_event("image_generation.partial_image", partial_image_index=7)  # not requested
            + make_event("image_generation.completed", png(32, 16), usage={"input_tokens": 1, "output_tokens": 2})
        )
        first, second, result = await collect(service, partial_images=2)
        assert (stub.fields["stream"], stub.fields["partial_images"]) == (True, 2)
    assert isinstance(first, PartialImage)
    assert isinstance(second, PartialImage)
    assert isinstance(result, ImageResult)
    assert (first.index, second.index, first.body) == (0, 1, PNG)
    assert result.options.size == "32x16"
    assert result.usage is not None


async def test_a_kind_without_previews_sends_the_result_alone() -> None:
    async with run_stub("sglang") as (service, stub):
        stub.body = make_reply(PNG)
        await generate(service, partial_images=2)
        assert "stream" not in stub.fields


@pytest.mark.parametrize(
    "body",
    [
        b"",
        make_event("image_generation.partial_image", b"<html>", partial_image_index=0),
        b'data: {"error": {"message": "out of memory"}}\n\n',
        b'event: error\ndata: {"message": "out of memory"}\n\n',
        b"data: nonsense\n\n",
        make_event("image_generation.partial_image") + b"data: [DONE]\n\n",
    ],
)
async def test_a_stream_without_an_image_is_a_failure(body: bytes) -> None:
    async with run_stub() as (service, stub):
        stub.media_type, stub.body = "text/event-stream", body
        assert isinstance(await find_failure(service, partial_images=1), EngineFailed)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, b'{"error": "prompt required"}', BadRequest),  # stable-diffusion.cpp
        (400, b'{"error": {"message": "no", "code": "moderation_blocked"}}', ModerationBlocked),
        (422, b'{"detail": "size is wrong"}', BadRequest),  # FastAPI
        (400, b'{"error": {"message": "prompt is too long"}}', ContextTooLong),
        (401, b'{"error": {"message": "wrong key"}}', EngineFailed),
        (302, b"", EngineFailed),
        (429, b"{}", Busy),
        (500, b'{"error": "server_error", "message": "CUDA"}', EngineFailed),
        (503, b"<html>", Unavailable),
    ],
)
async def test_errors_are_mapped_by_their_status(status: int, body: bytes, error: type[AntiphonError]) -> None:
    async with run_stub(key=SECRET) as (service, stub):
        stub.status, stub.body = status, body
        found = await find_failure(service)
        assert type(found) is error
        assert SECRET not in found.message


BOMB = huge_png(60_000, 60_000)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>It works!</html>",
        b"{}",
        b"[]",
        b'{"data": []}',
        b'{"data": [{}]}',
        b'{"data": [{"b64_json": "not base64!"}]}',
        b'{"data": [{"b64_json": 7}]}',
        make_reply(b"<html>"),
        make_reply(PNG[:40]),
        make_reply(gif()),
        make_reply(BOMB),
        make_reply(PNG, PNG),
        b'{"error": {"message": "out of memory"}}',
        b'{"data": [{"url": "http://169.254.169.254/latest/meta-data/"}]}',
        b'{"data": [{"url": "http://127.0.0.1:1/x.png"}]}',
        b'{"data": [{"url": "file:///etc/passwd"}]}',
        b'{"data": [{"url": "/v1/images/1/content"}]}',
        b'{"data": [{"url": "data:image/png,plain"}]}',
    ],
)
async def test_a_service_that_lies_fails_within_the_limits(body: bytes) -> None:
    async with run_stub() as (service, stub):
        stub.body = body
        error = await find_failure(service)
        assert type(error) is EngineFailed
        assert "169.254" not in error.message


async def test_another_format_than_requested_is_a_failure() -> None:
    async with run_stub("sd.cpp") as (service, stub):
        stub.body = make_reply(PNG)
        assert "png instead of jpeg" in (await find_failure(service, output_format="jpeg")).message
        stub.body = make_reply(jpeg())
        assert (await generate(service, output_format="jpeg")).options.output_format == "jpeg"


async def test_a_reply_above_the_limit_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_service, "_MAX_REPLY_BYTES", 100_000)
    async with run_stub() as (service, stub):
        stub.body = make_reply(bytes(2_000_000))
        assert "size limit" in (await find_failure(service)).message
        stub.media_type, stub.body = "text/event-stream", make_event("image_generation.completed", bytes(2_000_000))
        assert "size limit" in (await find_failure(service, partial_images=1)).message


async def test_a_stream_above_the_limit_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_service, "_MAX_STREAM_BYTES", 1000)
    async with run_stub() as (service, stub):
        preview = make_event("image_generation.partial_image", partial_image_index=7)  # not requested
        stub.media_type, stub.body = "text/event-stream", preview * 9 + make_event("image_generation.completed")
        assert "a stream that exceeds the size limit" in (await find_failure(service, partial_images=1)).message


async def test_one_image_in_base64_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_service, "MAX_RESULT_BYTES", len(PNG) - 1)
    async with run_stub() as (service, stub):
        stub.body = make_reply(PNG)
        assert "an image that cannot be read" in (await find_failure(service)).message


async def test_images_in_base64_of_one_result_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_RESULT_BYTES", 2 * len(PNG))
    async with run_stub() as (service, stub):
        stub.body = make_reply(PNG, PNG)
        assert len((await generate(service, n=2)).images) == 2
        stub.body = make_reply(PNG, PNG, PNG)
        assert f"more than {2 * len(PNG)} bytes of images" in (await find_failure(service, n=3)).message


async def test_a_truncated_reply_is_a_failure() -> None:
    async with run_stub() as (service, stub):
        stub.body = make_reply(PNG)
        stub.length = len(stub.body) + 10
        assert type(await find_failure(service)).__mro__[1] is EngineFailed


async def test_a_url_of_the_service_itself_is_fetched_without_redirects() -> None:
    async with run_stub("localai") as (service, stub):
        stub.body = f'{{"data": [{{"url": "http://127.0.0.1:{stub.port}/1.png"}}]}}'.encode()
        stub.pages["/1.png"] = 200, PNG
        assert (await generate(service)).images[0].body == PNG
        stub.pages["/1.png"] = 302, b""
        assert isinstance(await find_failure(service), EngineFailed)
        assert stub.paths == ["/v1/images/generations", "/1.png"] * 2


async def test_a_service_that_is_down_is_unavailable() -> None:
    async with run_stub() as (service, stub):
        stub.status = 500
        with pytest.raises(EngineFailed):
            await service.probe()
        stub.status = 404
        await service.probe()
        assert stub.paths == ["/v1/models", "/v1/models"]
    with pytest.raises(Unavailable):
        await service.probe()
    assert isinstance(await find_failure(service), Unavailable)


async def test_closing_the_generator_closes_the_connection() -> None:
    async with run_stub() as (service, stub):
        stub.silent = True
        running = asyncio.ensure_future(generate(service))
        await stub.requested.wait()
        running.cancel()
        await stub.closed.wait()


async def test_a_slow_service_is_given_up_after_its_timeout() -> None:
    async with run_stub(timeout=0.05) as (service, stub):
        stub.silent = True
        assert isinstance(await find_failure(service), EngineFailed)


@pytest.mark.parametrize("url", ["http://user:pw@host", "http://", "http://host?x=1"])
async def test_an_invalid_url_is_a_startup_error(url: str) -> None:
    with pytest.raises(StartupError, match="draw"):
        HttpImageService(ImageServiceSpec(url=url, name="draw"), EgressClient())


@pytest.mark.parametrize("body", [PNG[:-12], PNG[:-16]])
async def test_a_truncated_image_is_refused(body: bytes) -> None:
    async with run_stub() as (service, stub):
        stub.body = make_reply(body)
        assert type(await find_failure(service)) is EngineFailed


async def test_urls_of_one_result_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (http_service, base):
        monkeypatch.setattr(module, "MAX_RESULT_BYTES", len(PNG) + 1)
    async with run_stub("localai") as (service, stub):
        url = f'{{"url": "http://127.0.0.1:{stub.port}/1.png"}}'
        stub.body = f'{{"data": [{",".join([url] * 5)}]}}'.encode()
        stub.pages["/1.png"] = 200, PNG
        assert type(await find_failure(service, n=5)) is EngineFailed
        assert stub.paths.count("/1.png") <= 2
