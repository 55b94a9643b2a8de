"""The fake image service: real PNG files from the hash of a request, previews, and faults."""

import zlib
from typing import Any

import pytest

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.image_generation import ImageRequest, ImageResult, PartialImage, SourceImage
from antiphon.core.images import read_image_info
from antiphon.egress import EgressClient
from antiphon.errors import Busy, EngineFailed, Unavailable, UnsupportedParameter
from antiphon.image_services.base import ModerationBlocked
from antiphon.image_services.fake_service import FakeImageService, draw_png

pytestmark = pytest.mark.anyio


def make_service() -> FakeImageService:
    return FakeImageService(ImageServiceSpec(url="fake", kind="fake", name="fake"), EgressClient())


async def generate(prompt: str, **fields: Any) -> tuple[list[PartialImage], ImageResult]:
    events = [event async for event in make_service().generate(ImageRequest(prompt=prompt, **fields))]
    previews = [event for event in events if isinstance(event, PartialImage)]
    assert isinstance(events[-1], ImageResult)
    assert len(previews) == len(events) - 1
    return previews, events[-1]


async def test_the_same_request_gives_the_same_image() -> None:
    [first], [second], [other] = [(await generate(prompt))[1].images for prompt in ("cat", "cat", "dog")]
    assert first.body == second.body != other.body
    assert first.revised_prompt == "cat"


async def test_the_image_is_a_complete_png_of_the_requested_size() -> None:
    _, result = await generate("cat", size="160x64", background="transparent", n=2)
    assert result.options.size == "160x64"
    assert result.options.background == "transparent"
    assert result.images[0].body != result.images[1].body
    body = result.images[0].body
    info = read_image_info(body)
    assert (info.width, info.height) == (160, 64)
    data = body[body.index(b"IDAT") + 4 : body.index(b"IEND") - 8]
    assert len(zlib.decompress(data)) == 161 * 64


async def test_an_edit_depends_on_the_image_and_the_mask() -> None:
    source, mask = SourceImage(b"a", "image/png"), SourceImage(b"b", "image/png")
    requests = [ImageRequest(prompt="x"), ImageRequest(prompt="x", sources=(source,))]
    requests.append(ImageRequest(prompt="x", sources=(source,), mask=mask))
    assert len({draw_png(request, 0) for request in requests}) == 3


async def test_previews_come_before_the_result() -> None:
    previews, result = await generate("cat", partial_images=2)
    assert [preview.index for preview in previews] == [0, 1]
    assert len({*(preview.body for preview in previews), result.images[0].body}) == 3
    assert result.usage is not None
    assert result.usage.output_tokens > 0


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("fail", EngineFailed),
        ("busy", Busy),
        ("down", Unavailable),
        ("block", ModerationBlocked),
        ("page", EngineFailed),
    ],
)
async def test_a_mark_in_the_prompt_causes_a_fault(fault: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await generate(f"cat [fake {fault}]")


async def test_a_failure_comes_after_the_first_preview() -> None:
    events = make_service().generate(ImageRequest(prompt="[fake fail]", partial_images=3))
    assert isinstance(await anext(events), PartialImage)
    with pytest.raises(EngineFailed):
        await anext(events)


async def test_other_formats_than_png_are_refused() -> None:
    with pytest.raises(UnsupportedParameter, match="'output_format' webp") as caught:
        make_service().check(ImageRequest(prompt="x", output_format="webp"), "")
    assert caught.value.param == "output_format"
