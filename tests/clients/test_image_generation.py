"""The `openai` package with image_generation: an image is made, streamed with previews, and edited."""

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses.response_output_item import ImageGenerationCall
from openai.types.responses.tool_param import ImageGeneration

from antiphon.core.images import read_image_info
from tests.support.server_process import ServerProcess, run_server

TOOL: ImageGeneration = {"type": "image_generation", "size": "512x256", "partial_images": 2}
SCRIPT = """
[[reply]]
when = { output = "An image was made" }
steps = [{ say = ["Here it is."] }]

[[reply]]
when = { contains = "hat" }
steps = [{ call = { name = "image_generation", arguments = { prompt = "a hat", action = "edit" } } }]

[[reply]]
when = { contains = "draw" }
steps = [{ call = { name = "image_generation", arguments = { prompt = "an otter" } } }]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    script: Path = tmp_path_factory.mktemp("script") / "script.toml"
    script.write_text(SCRIPT)
    with run_server("--engine", "fake", "--fake-script", str(script), "--image-service", "fake") as server:
        yield server


@pytest.mark.shows("E.20")
def test_an_image_is_made_streamed_and_edited(server: ServerProcess) -> None:
    with OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=60) as client:
        with client.responses.stream(model="fake", input="draw", tools=[TOOL]) as stream:
            previews = [event for event in stream if event.type == "response.image_generation_call.partial_image"]
            first = stream.get_final_response()
        assert [preview.partial_image_index for preview in previews] == [0, 1]
        made = first.output[0]
        assert isinstance(made, ImageGenerationCall)
        assert read_image_info(b64decode(made.result or "")).width == 512
        assert client.responses.retrieve(first.id).output[0] == made
        second = client.responses.create(model="fake", input="hat", previous_response_id=first.id, tools=[TOOL])
        edited = second.output[0]
        assert isinstance(edited, ImageGenerationCall)
        assert (edited.action, edited.status) == ("edit", "completed")
        assert edited.result not in (None, made.result)
        with pytest.raises(BadRequestError) as refused:
            client.responses.create(model="fake", input="x", tools=[{"type": "image_generation", "size": "1x1"}])
        assert refused.value.param == "tools[0].size"
