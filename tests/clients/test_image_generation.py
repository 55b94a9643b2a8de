"""The `openai` package with image_generation: an image is made, streamed with previews, and edited."""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses.response_output_item import ImageGenerationCall
from openai.types.responses.tool_param import ImageGeneration

from antiphon.core.images import read_image_info
from drills.harness.memory import MemoryMeter
from tests.support.media_files import png, png_chunk
from tests.support.server_process import ServerProcess, run_server
from tests.support.services import Postgres

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


IMAGE_BYTES, IMAGES = 8 * 1024 * 1024, 4  # one prompt shows one of them, and an edit takes three
SENT_BYTES, SENT_IMAGES = 8 * 1024 * 1024, 8
COMPLETION = {
    "object": "chat.completion",
    "model": "seer",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "I see."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
CHUNKS = b"""
data: {"model": "seer", "choices": [{"index": 0, "delta": {"content": "I see."}}]}

data: {"model": "seer", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}

data: [DONE]

"""


def make_image(size: int) -> str:
    """Return another PNG of this many bytes each time, in base64."""
    return b64encode(png(1024, 1024, png_chunk(b"prIv", os.urandom(size)))).decode()


class EngineHandler(BaseHTTPRequestHandler):
    """An images API that returns large images, and a chat API that reads them."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply({"data": [{"id": "seer", "object": "model"}]})

    def do_POST(self) -> None:
        left, end, streams = int(self.headers["content-length"]), b"", False
        while left > 0:
            piece = self.rfile.read(min(left, 1024 * 1024))
            left -= len(piece)
            streams |= b'"stream":true' in end + piece
            assert b"image/jpeg" not in end + piece, "The type of an image was not corrected."
            end = piece[-20:]
        if streams:
            self._send(CHUNKS, "text/event-stream")
            return
        image = {"created": 0, "data": [{"b64_json": make_image(IMAGE_BYTES)}]}
        self._reply(image if self.path.startswith("/v1/images/") else COMPLETION)

    def _reply(self, value: object) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("store") / "my.db")


@pytest.fixture(scope="module")
def postgres_store(postgres: Postgres) -> Iterator[str]:
    with postgres.temporary_database() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgresql"))])
def large_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a store on the disk, an image service, an engine behind HTTP, and room for large requests."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "script.toml").write_text(SCRIPT)
    with ThreadingHTTPServer(("127.0.0.1", 0), EngineHandler) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{other.server_port}"
        engines = ("--engine", "fake", "--fake-script", str(folder / "script.toml"), "--engine", f"http://{address}")
        limits = ("--limit-body-bytes", str(2**27), "--limit-attached-bytes", str(2**27))
        store = ("--store", request.getfixturevalue(f"{request.param}_store"), "--files", str(folder / "files"))
        with run_server(*engines, "--image-service", f"sglang://{address}", *limits, *store) as server:
            yield server
        other.shutdown()


def create(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    status, body = server.post({"model": "fake", "tools": [{"type": "image_generation"}], **fields})
    assert status == 200, body[:300]
    response: dict[str, Any] = json.loads(body)
    return response


@pytest.mark.shows("E.20")
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="platform: not Linux")
def test_images_that_were_made_grow_the_server_by_less_than_three_times_as_much(large_server: ServerProcess) -> None:
    previous, conversation = create(large_server, input="draw")["id"], []
    memory = MemoryMeter(large_server.process.pid)
    for _ in range(IMAGES):
        previous = create(large_server, input="draw", previous_response_id=previous)["id"]
        conversation.append(previous)
    for response_id in conversation:
        status, body = large_server.send("GET", f"/v1/responses/{response_id}")
        assert (status, len(body) > IMAGE_BYTES) == (200, True)
    edited = create(large_server, input="hat", previous_response_id=previous)
    assert edited["output"][0]["action"] == "edit"
    assert edited["output"][0]["status"] == "completed"
    grown = memory.measure_peak_growth()
    assert grown < 3 * IMAGES * IMAGE_BYTES, f"{grown:,} bytes"


@pytest.mark.shows("E.20")
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="platform: not Linux")
@pytest.mark.parametrize("fields", [{"store": False}, {"stream": True}], ids=["not stored", "stored and streamed"])
@pytest.mark.parametrize("media_type", ["image/png", "image/jpeg"], ids=["right type", "corrected type"])
def test_images_that_a_user_sends_grow_the_server_by_less_than_three_times_as_much(
    large_server: ServerProcess, media_type: str, fields: dict[str, bool]
) -> None:
    def see(size: int) -> None:
        urls = [f"data:{media_type};base64,{make_image(size)}" for _ in range(SENT_IMAGES)]
        content = [{"type": "input_image", "image_url": url} for url in urls]
        status, body = large_server.post({"model": "seer", "input": [{"role": "user", "content": content}], **fields})
        assert (status, b"I see." in body) == (200, True), body[:300]

    see(1000)
    memory = MemoryMeter(large_server.process.pid)
    see(SENT_BYTES)
    grown = memory.measure_peak_growth()
    assert grown < 3 * SENT_IMAGES * SENT_BYTES, f"{grown:,} bytes"


@pytest.mark.shows("E.20")
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="platform: not Linux")
def test_images_of_a_conversation_grow_the_server_by_less_than_three_times_as_much(large_server: ServerProcess) -> None:
    def keep(size: int) -> None:
        urls = [f"data:image/png;base64,{make_image(size)}" for _ in range(SENT_IMAGES)]
        content = [{"type": "input_image", "image_url": url} for url in urls]
        status, body = large_server.send("POST", "/v1/conversations", {"items": [{"role": "user", "content": content}]})
        assert status == 200, body[:300]
        conversation = json.loads(body)["id"]
        status, body = large_server.post({"model": "seer", "input": "Which?", "conversation": conversation})
        assert (status, b"I see." in body) == (200, True), body[:300]
        path = f"/v1/conversations/{conversation}/items?include[]=message.input_image.image_url"
        status, body = large_server.send("GET", path)
        assert (status, urls[0].encode() in body) == (200, True)

    keep(1000)
    memory = MemoryMeter(large_server.process.pid)
    keep(SENT_BYTES)
    grown = memory.measure_peak_growth()
    assert grown < 3 * SENT_IMAGES * SENT_BYTES, f"{grown:,} bytes"
