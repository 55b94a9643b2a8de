"""Pictures and files with the openai package, against a real server: from data, and from a URL that it may fetch."""

import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.media_files import as_url, jpeg, pdf, png
from tests.support.server_process import Live, serving

pytestmark = pytest.mark.anyio

FILES = {"/a.png": png(64, 48), "/b.jpg": jpeg(32, 24), "/notes.txt": b"Buy milk.", "/c.pdf": pdf("Buy bread.")}


class Shelf(BaseHTTPRequestHandler):
    """Holds the files, and redirects from /moved to the first of them."""

    def do_GET(self) -> None:
        body = FILES.get(self.path)
        self.send_response(302 if self.path == "/moved" else 200 if body else 404)
        self.send_header("Location", "/a.png")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *values: Any) -> None: ...


@pytest.fixture(scope="module")
def shelf() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shelf)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture(scope="module")
def seeing(shelf: str) -> Iterator[Live]:
    with serving("--engine", "fake", "--allow-egress", shelf.removeprefix("http://")) as live:
        yield live


@pytest.fixture
def client(seeing: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=seeing.v1, api_key="none", max_retries=0) as made:
        yield made


def asked(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, *parts]}]


@pytest.mark.shows("C.26")
@pytest.mark.parametrize(
    ("url", "seen"),
    [("/a.png", "[image png 64x48]"), ("/moved", "[image png 64x48]"), ("/b.jpg", "[image jpeg 32x24]")],
)
def test_a_picture_is_fetched_and_seen(client: OpenAI, shelf: str, url: str, seen: str) -> None:
    part = {"type": "input_image", "image_url": f"{shelf}{url}", "detail": "high"}
    response = client.responses.create(model="fake", input=asked(part))
    assert response.output_text == f"You said: What is this? {seen}"


async def test_a_stream_sees_as_well(seeing: Live) -> None:
    part = {"type": "input_image", "image_url": as_url(png(20, 10)), "detail": "auto"}
    async with (
        AsyncOpenAI(base_url=seeing.v1, api_key="none", max_retries=0) as client,
        client.responses.stream(model="fake", input=asked(part)) as stream,
    ):
        response = await stream.get_final_response()
    assert response.output_text == "You said: What is this? [image png 20x10]"


def test_files_are_read_from_data_and_from_a_url(client: OpenAI, shelf: str) -> None:
    held = {"type": "input_file", "filename": "list.txt", "file_data": as_url(b"Buy eggs.", "text/plain")}
    named = {"type": "input_file", "file_url": f"{shelf}/notes.txt"}
    printed = {"type": "input_file", "file_url": f"{shelf}/c.pdf"}
    said = client.responses.create(model="fake", input=asked(held, named, printed)).output_text
    assert '<file name="list.txt">\nBuy eggs.\n</file>' in said
    assert '<file name="notes.txt">\nBuy milk.\n</file>' in said
    assert '<file name="c.pdf">\n[page 1]\nBuy bread.\n</file>' in said


@pytest.mark.shows("E.11")
@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest/meta-data/", "http://localhost/", "http://127.0.0.1:22/"]
)
def test_other_urls_are_refused_with_the_flag_that_would_open_them(client: OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="fake", input=asked({"type": "input_image", "image_url": url, "detail": "auto"}))
    assert refused.value.code == "invalid_image_url"
    assert refused.value.param == "input[0].content[1].image_url"
    assert "--allow-egress" in refused.value.message


def test_what_is_not_there_is_said(client: OpenAI, shelf: str) -> None:
    part = {"type": "input_file", "file_url": f"{shelf}/nothing"}
    with pytest.raises(openai.BadRequestError, match="HTTP status 404") as refused:
        client.responses.create(model="fake", input=asked(part))
    assert refused.value.param == "input[0].content[1].file_url"


def test_chat_sees_and_reads_in_the_same_way(client: OpenAI, shelf: str) -> None:
    parts: list[Any] = [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": f"{shelf}/a.png"}},
        {"type": "file", "file": {"filename": "a.txt", "file_data": b64encode(b"Hi.").decode()}},
    ]
    answer = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == 'You said: What? [image png 64x48] <file name="a.txt">\nHi.\n</file>'
