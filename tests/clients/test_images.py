"""Every call of the images resource with the `openai` package, sync and async, against a real server."""

import base64
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.media_files import png
from tests.support.server_process import ServerProcess, run_server

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG = png(16, 16)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--image-service", "fake") as server:
        yield server


def decode(b64_json: str | None) -> bytes:
    body = base64.b64decode(b64_json or "")
    assert body.startswith(SIGNATURE)
    return body


@pytest.mark.shows("E2.4", "E2.5", "E2.6")
def test_every_call_of_images_works_with_the_sdk(server: ServerProcess) -> None:
    with OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
        made = client.images.generate(prompt="a cat", size="1024x1024", n=2)
        assert made.data is not None
        first, second = [decode(image.b64_json) for image in made.data]
        assert first != second
        assert made.size == "1024x1024"
        edited = client.images.edit(image=[("a.png", first), ("b.png", second)], mask=PNG, prompt="add a hat")
        assert edited.data is not None
        decode(edited.data[0].b64_json)
        with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI has no models for it any more
            assert client.images.create_variation(image=first, n=1).data is not None
        assert "fake-image" in [model.id for model in client.models.list()]
        with pytest.raises(openai.BadRequestError) as refused:
            client.images.generate(prompt="a cat", quality="max")
        assert refused.value.param == "quality"


@pytest.mark.shows("E2.4", "E2.5")
def test_streams_of_images_work_with_the_sdk(server: ServerProcess) -> None:
    with OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
        made = [*client.images.generate(prompt="a cat", stream=True, partial_images=2)]
        assert [event.type.partition(".")[2] for event in made] == ["partial_image", "partial_image", "completed"]
        image = decode(made[-1].b64_json)
        edited = [*client.images.edit(image=image, prompt="add a hat", stream=True, partial_images=1)]
        assert [event.type for event in edited] == ["image_edit.partial_image", "image_edit.completed"]
        failing = client.images.generate(prompt="[fake fail]", stream=True, partial_images=1)
        assert next(failing).type == "image_generation.partial_image"
        with pytest.raises(openai.APIError):
            next(failing)


@pytest.mark.anyio
@pytest.mark.shows("E2.4", "E2.5")
async def test_every_call_of_images_works_with_the_async_sdk(server: ServerProcess) -> None:
    async with AsyncOpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
        made = await client.images.generate(prompt="a cat")
        assert made.data is not None
        image = decode(made.data[0].b64_json)
        assert (await client.images.edit(image=image, prompt="add a hat")).data is not None
        with pytest.warns(DeprecationWarning, match="deprecated"):
            assert (await client.images.create_variation(image=image)).data is not None
        stream = await client.images.generate(prompt="a cat", stream=True, partial_images=1)
        events = [event async for event in stream]
        assert [event.type.partition(".")[2] for event in events] == ["partial_image", "completed"]
        assert decode(events[-1].b64_json) == image


@pytest.mark.shows("E2.1", "E2.4", "E2.5")
def test_a_server_can_be_the_image_service_of_another(server: ServerProcess) -> None:
    """The other server has the same API, so its previews, images and errors pass through both."""
    with (
        run_server("--engine", "fake", "--image-service", f"{server.v1}=some-key") as outer,
        OpenAI(base_url=outer.v1, api_key="unused", max_retries=0) as client,
        OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as direct,
    ):
        events = [*client.images.generate(prompt="a cat", stream=True, partial_images=2)]
        expected = [*direct.images.generate(prompt="a cat", stream=True, partial_images=2)]
        assert [event.b64_json for event in events] == [event.b64_json for event in expected]
        image = decode(events[-1].b64_json)
        edited = client.images.edit(image=[image, PNG], mask=PNG, prompt="add a hat", background="transparent")
        again = direct.images.edit(image=[image, PNG], mask=PNG, prompt="add a hat", background="transparent")
        assert edited.data == again.data
        assert edited.usage is not None
        for mark, kind in (("block", openai.BadRequestError), ("busy", openai.RateLimitError)):
            with pytest.raises(kind):
                client.images.generate(prompt=f"[fake {mark}]")
        with pytest.raises(openai.NotFoundError):
            client.images.generate(prompt="a cat", model="unknown")
