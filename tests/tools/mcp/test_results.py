"""The output in the item of an MCP call, and the content that the model receives."""

import json
from base64 import b64encode
from typing import Any

import pytest

from antiphon.limits import Limits
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.tools.mcp.response_tools import render_model_output, render_output, trim_content, truncate
from tests.support.media_files import png

MAX_BYTES = 1 << 20
IMAGE = b64encode(png(8, 8)).decode()


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(data: str = IMAGE, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": kind}


def test_texts_are_joined_by_newlines() -> None:
    assert render_output({"content": [_text("one"), _text("two")]}, MAX_BYTES) == "one\ntwo"


def test_structured_content_is_shown_if_there_is_no_text() -> None:
    structured = {"structuredContent": {"a": [1, "é"]}}
    assert render_output({"content": [], **structured}, MAX_BYTES) == '{"a":[1,"é"]}'
    assert render_output({"content": [_text('{"a": 1}')], **structured}, MAX_BYTES) == '{"a": 1}'
    assert render_output({"content": []}, MAX_BYTES) == ""


def test_other_content_is_shown_as_json_lines() -> None:
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    resource = {"type": "resource", "resource": {"uri": "file:///b", "text": "two\nlines"}}
    output = render_output({"content": [_text("see"), audio, link, resource]}, MAX_BYTES)
    assert [json.loads(line) for line in output.splitlines()[1:]] == [audio, link, resource]


def test_oversized_data_is_omitted_and_the_line_stays_valid_json() -> None:
    line = json.loads(render_output({"content": [_image("A" * 5000)]}, 1000))
    assert line == {"type": "image", "data": "left out: 5,000 characters", "mimeType": "image/png"}


def test_a_model_receives_images_in_their_order() -> None:
    content = render_model_output(
        {"content": [_text("before"), _image(kind="text/plain"), _text("after")]}, MAX_BYTES, Limits()
    )
    assert content == [
        InputText(text="before"),
        InputImage(image_url=f"data:image/png;base64,{IMAGE}"),
        InputText(text="after"),
    ]


@pytest.mark.parametrize("data", ["", "!!!!", b64encode(b"<svg/>").decode(), IMAGE[:40]])
def test_an_invalid_image_is_not_passed_to_the_model(data: str) -> None:
    assert render_model_output({"content": [_text("x"), _image(data)]}, MAX_BYTES, Limits()) == ""


def test_an_oversized_image_is_not_passed_to_the_model() -> None:
    assert render_model_output({"content": [_image()]}, MAX_BYTES, Limits(image_pixels=10)) == ""
    assert render_model_output({"content": [_image()]}, MAX_BYTES, Limits(image_bytes=10)) == ""


def test_an_output_is_truncated_between_characters() -> None:
    assert truncate("ééé", 6) == "ééé"
    assert truncate("éééé", 5).startswith("éé\n[The output is cut off here: it has 8 bytes, and at most 5")


def test_the_content_of_an_error_is_bounded() -> None:
    content = trim_content({"content": [_text("no " * 1000), _text("never")]}, 100)
    assert len(content) == 1
    assert len(json.dumps(content)) < 400
