"""Images: the choice of a service by model, fields and health, admission, the deadline, and cancellation."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.image_generation import ImageRequest, ImageResult, PartialImage, SourceImage
from antiphon.egress import EgressClient
from antiphon.errors import (
    AntiphonError,
    Busy,
    EngineFailed,
    InvalidValue,
    ModelNotFound,
    Unavailable,
    UnsupportedParameter,
)
from antiphon.image_services.fake_service import FakeImageService
from antiphon.service.images import Images

pytestmark = pytest.mark.anyio

SOURCE = SourceImage(b"", "image/png")


class WatchedService(FakeImageService):
    """Counts the requests that it serves, and whether they were ended early."""

    def __init__(self, name: str = "fake", **fields: Any) -> None:
        super().__init__(ImageServiceSpec(url="fake", kind="fake", name=name, **fields), EgressClient())
        self.requests: list[ImageRequest] = []
        self.is_down = False
        self.began, self.ended, self.probed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def probe(self) -> None:
        self.probed.set()
        if self.is_down:
            raise Unavailable("It is down.")

    async def generate(self, request: ImageRequest) -> AsyncGenerator[PartialImage | ImageResult, None]:
        self.requests.append(request)
        self.began.set()
        try:
            async for event in super().generate(request):
                yield event
        finally:
            self.ended.set()


async def collect(images: Images, prompt: str = "cat", **fields: Any) -> list[PartialImage | ImageResult]:
    return [event async for event in images.generate("t", ImageRequest(prompt=prompt, **fields))]


def find_error(images: Images, param: str = "", **fields: Any) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        images.check(ImageRequest(**{"prompt": "cat", **fields}), param)
    return caught.value


async def test_previews_are_followed_by_the_result() -> None:
    events = await collect(Images([WatchedService()], 4), partial_images=2)
    assert [type(event) for event in events] == [PartialImage, PartialImage, ImageResult]


async def test_without_a_service_requests_are_refused() -> None:
    images = Images([], 4)
    assert not images
    assert "--image-service" in str(find_error(images))


async def test_a_model_selects_its_service() -> None:
    first, second = WatchedService("a", models={"x": "X"}), WatchedService("b", models={"y": "Y"})
    images = Images([first, second], 4)
    assert images.models == ["x", "y"]
    await collect(images, model="y")
    await collect(images)
    assert [len(first.requests), len(second.requests)] == [1, 1]
    error = find_error(images, "tools[0]", model="z")
    assert isinstance(error, ModelNotFound)
    assert error.param == "tools[0].model"


async def test_a_service_that_does_not_respond_is_used_only_without_another() -> None:
    first, second = WatchedService("a", models={"x": "X"}), WatchedService("b", models={"x": "X"})
    images = Images([first, second], 4)
    first.is_down = True
    probing = asyncio.ensure_future(images.run_forever())
    await second.probed.wait()
    await asyncio.sleep(0)
    assert images.count_healthy() == (1, 2)
    probing.cancel()
    await collect(images, model="x")
    assert [len(first.requests), len(second.requests)] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 32_001}, "prompt"),
        ({"n": 11}, "n"),
        ({"size": "1024"}, "size"),
        ({"size": "1000x1000"}, "size"),
        ({"size": "256x1024"}, "size"),
        ({"size": "3840x3840"}, "size"),
        ({"size": "4096x2048"}, "size"),
        ({"output_format": "svg"}, "output_format"),
        ({"background": "transparent", "output_format": "jpeg"}, "background"),
        ({"quality": "high"}, "quality"),
        ({"style": "vivid"}, "style"),
        ({"mask": SourceImage(b"", "image/png")}, "mask"),
        ({"sources": (SOURCE,), "mask": SourceImage(b"", "image/jpeg")}, "mask"),
        ({"sources": (SOURCE,), "mask": SourceImage(bytes(4 * 1024 * 1024 + 1), "image/png")}, "mask"),
    ],
)
async def test_what_no_service_can_honour_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = find_error(Images([WatchedService()], 4), "tools[2].", **fields)
    assert isinstance(error, InvalidValue | UnsupportedParameter)
    assert error.param == f"tools[2].{param}"


def test_a_mask_may_have_four_megabytes() -> None:
    mask = SourceImage(bytes(4 * 1024 * 1024), "image/png")
    Images([WatchedService()], 4).check(ImageRequest(prompt="x", sources=(SOURCE,), mask=mask), "")


async def test_a_full_queue_is_busy() -> None:
    service = WatchedService(slots=1)
    images = Images([service], 0)
    running = asyncio.ensure_future(collect(images, "[fake silence]"))
    await service.began.wait()
    with pytest.raises(Busy):
        await collect(images)
    running.cancel()
    await service.ended.wait()
    service.ended.clear()
    await asyncio.wait([running])
    await collect(images)


async def test_the_deadline_ends_a_silent_service() -> None:
    service = WatchedService(timeout=0.01)
    with pytest.raises(EngineFailed, match="within"):
        await collect(Images([service], 4), "[fake silence]")
    assert service.ended.is_set()


async def test_closing_the_generator_cancels_the_work() -> None:
    service = WatchedService()
    events = Images([service], 4).generate("t", ImageRequest(prompt="cat", partial_images=2))
    await anext(events)
    await events.aclose()
    assert service.ended.is_set()
