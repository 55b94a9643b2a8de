"""The `openai` package with image_generation: an image is made, streamed with previews, and edited."""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses.response_output_item import ImageGenerationCall
from openai.types.responses.tool_param import ImageGeneration

from antiphon.core.images import read_image_info
from tests.support.media_files import png, png_chunk
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


IMAGE_BYTES, IMAGES = 6 * 1024 * 1024, 17  # more than 100 MB together


class ImageHandler(BaseHTTPRequestHandler):
    """An images API that returns a PNG of six megabytes, each time another one."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        image = png(1024, 1024, png_chunk(b"prIv", os.urandom(IMAGE_BYTES)))
        self._reply(json.dumps({"created": 0, "data": [{"b64_json": b64encode(image).decode()}]}).encode())

    def _reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


@contextmanager
def run_image_service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ImageHandler) as service:
        Thread(target=service.serve_forever, daemon=True).start()
        yield f"sglang://127.0.0.1:{service.server_port}"
        service.shutdown()


def read_peak_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.shows("E.20")
@pytest.mark.timeout(600)
def test_a_hundred_megabytes_of_images_grow_the_server_by_less_than_three_times_as_much(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    options = ("--engine", "fake", "--fake-script", str(script), "--store", str(tmp_path / "my.db"))
    with run_image_service() as service, run_server(*options, "--image-service", service) as server:
        client = OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=120)
        client.responses.create(model="fake", input="draw", tools=[{"type": "image_generation"}])
        before, conversation, previous = read_peak_bytes(server), [], None
        for _ in range(IMAGES):
            response = client.responses.create(
                model="fake", input="draw", previous_response_id=previous, tools=[{"type": "image_generation"}]
            )
            assert response.output_text == "Here it is."
            conversation.append(response.id)
            previous = response.id
        for response_id in conversation:
            (made, *_) = client.responses.retrieve(response_id).output
            assert isinstance(made, ImageGenerationCall)
            assert len(made.result or "") > IMAGE_BYTES
        edited = client.responses.create(
            model="fake", input="hat", previous_response_id=previous, tools=[{"type": "image_generation"}]
        )
        assert edited.output[0].status == "completed"  # type: ignore[union-attr]
        grown = read_peak_bytes(server) - before
        assert grown < 3 * IMAGES * IMAGE_BYTES, f"{grown:,} bytes"
