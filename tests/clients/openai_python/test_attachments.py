"""Images and files with the `openai` package against a real server: inline data, and URLs that the server may fetch."""

import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.media_files import encode_data_url, jpeg, pdf, png
from tests.support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.anyio

FILES = {"/a.png": png(64, 48), "/b.jpg": jpeg(32, 24), "/notes.txt": b"Buy milk.", "/c.pdf": pdf("Buy bread.")}


class FileHandler(BaseHTTPRequestHandler):
    """Serves the files, and redirects /moved to the first of them."""

    def do_GET(self) -> None:
        body = FILES.get(self.path)
        self.send_response(302 if self.path == "/moved" else 200 if body else 404)
        self.send_header("Location", "/a.png")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *values: Any) -> None: ...


@pytest.fixture(scope="module")
def file_server_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FileHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture(scope="module")
def server(file_server_url: str) -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--allow-egress", file_server_url.removeprefix("http://")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.v1, api_key="none", max_retries=0) as made:
        yield made


def make_input(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, *parts]}]


@pytest.mark.shows("C.26")
@pytest.mark.parametrize(
    ("url", "expected"),
    [("/a.png", "[image png 64x48]"), ("/moved", "[image png 64x48]"), ("/b.jpg", "[image jpeg 32x24]")],
)
@pytest.mark.uses("openai-python", "images")
def test_an_image_is_fetched_and_passed_to_the_engine(
    client: OpenAI, file_server_url: str, url: str, expected: str
) -> None:
    part = {"type": "input_image", "image_url": f"{file_server_url}{url}", "detail": "high"}
    response = client.responses.create(model="fake", input=make_input(part))
    assert response.output_text == f"You said: What is this? {expected}"


async def test_a_stream_accepts_an_image_as_a_data_url(server: ServerProcess) -> None:
    part = {"type": "input_image", "image_url": encode_data_url(png(20, 10)), "detail": "auto"}
    async with (
        AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0) as client,
        client.responses.stream(model="fake", input=make_input(part)) as stream,
    ):
        response = await stream.get_final_response()
    assert response.output_text == "You said: What is this? [image png 20x10]"


@pytest.mark.uses("openai-python", "files")
def test_files_are_read_from_data_and_from_a_url(client: OpenAI, file_server_url: str) -> None:
    inline_file = {
        "type": "input_file",
        "filename": "list.txt",
        "file_data": encode_data_url(b"Buy eggs.", "text/plain"),
    }
    text_file = {"type": "input_file", "file_url": f"{file_server_url}/notes.txt"}
    pdf_file = {"type": "input_file", "file_url": f"{file_server_url}/c.pdf"}
    text = client.responses.create(model="fake", input=make_input(inline_file, text_file, pdf_file)).output_text
    assert '<file name="list.txt">\nBuy eggs.\n</file>' in text
    assert '<file name="notes.txt">\nBuy milk.\n</file>' in text
    assert '<file name="c.pdf">\n[page 1]\nBuy bread.\n</file>' in text


@pytest.mark.shows("E.11")
@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest/meta-data/", "http://localhost/", "http://127.0.0.1:22/"]
)
def test_other_urls_are_rejected_with_the_flag_that_allows_them(client: OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(
            model="fake", input=make_input({"type": "input_image", "image_url": url, "detail": "auto"})
        )
    assert refused.value.code == "invalid_image_url"
    assert refused.value.param == "input[0].content[1].image_url"
    assert "--allow-egress" in refused.value.message


def test_a_missing_file_is_reported_with_its_http_status(client: OpenAI, file_server_url: str) -> None:
    part = {"type": "input_file", "file_url": f"{file_server_url}/nothing"}
    with pytest.raises(openai.BadRequestError, match="HTTP status 404") as refused:
        client.responses.create(model="fake", input=make_input(part))
    assert refused.value.param == "input[0].content[1].file_url"


def test_chat_completions_accept_images_and_files(client: OpenAI, file_server_url: str) -> None:
    parts: list[Any] = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": f"{file_server_url}/a.png"}},
        {"type": "file", "file": {"filename": "a.txt", "file_data": b64encode(b"Hi.").decode()}},
    ]
    answer = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == 'You said: What? [image png 64x48] <file name="a.txt">\nHi.\n</file>'
