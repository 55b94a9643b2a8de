"""A real diffusion pipeline behind the client of image services. Its weights are random, so only the form of its images
is checked.
"""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from antiphon.core.images import read_image_info
from tests.support.server_process import run_server
from tools.diffusers_cpu import DiffusersFolder
from tools.engine_install import run_engine

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    folder = DiffusersFolder(Path(os.environ.get("TEST_DIFFUSERS", "build/diffusers")))
    if not folder.is_ready:
        pytest.skip(f"real engine: nothing in {folder.path}: `make diffusers` installs it")
    with run_engine(folder) as url, run_server("--engine", "fake", "--image-service", url) as server:
        yield OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=120)


def measure(encoded: str | None) -> tuple[str, int, int]:
    image = read_image_info(base64.b64decode(encoded or ""))
    return image.media_type, image.width, image.height


def test_images_have_the_requested_number_and_size(client: OpenAI) -> None:
    made = client.images.generate(prompt="a lighthouse", n=2, size="96x64")
    assert [measure(image.b64_json) for image in made.data or ()] == [("image/png", 96, 64)] * 2


def test_previews_are_streamed_before_the_image(client: OpenAI) -> None:
    with client.images.generate(prompt="a lighthouse", size="64x64", stream=True, partial_images=2) as stream:
        events = [*stream]
    assert [event.type for event in events] == [*["image_generation.partial_image"] * 2, "image_generation.completed"]
    assert {measure(event.b64_json) for event in events} == {("image/png", 64, 64)}
    assert len({event.b64_json for event in events}) == 3


def test_an_image_is_edited(client: OpenAI) -> None:
    made = client.images.generate(prompt="a lighthouse", size="64x64")
    source = base64.b64decode((made.data or [])[0].b64_json or "")
    edited = client.images.edit(image=("a.png", source, "image/png"), prompt="at night", size="64x64")
    assert [measure(image.b64_json) for image in edited.data or ()] == [("image/png", 64, 64)]


def test_the_tool_makes_an_image_with_previews(client: OpenAI) -> None:
    stream = client.responses.create(
        model="fake",
        input="Draw a lighthouse.",
        tools=[{"type": "image_generation", "size": "64x64", "partial_images": 1}],
        tool_choice={"type": "image_generation"},
        stream=True,
    )
    events = [*stream]
    assert "response.image_generation_call.partial_image" in [event.type for event in events]
    [call] = [item for item in events[-1].response.output if item.type == "image_generation_call"]
    assert measure(call.result) == ("image/png", 64, 64)
