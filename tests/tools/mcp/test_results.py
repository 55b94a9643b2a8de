"""What a call's item shows of its result, and what the model is told."""

import json
from base64 import b64encode
from typing import Any

import pytest

from antiphon.limits import Limits
from antiphon.protocol.types.items import InputImage, InputText
from antiphon.tools.mcp.results import content_of, cut, output_of, said_of
from tests.support.media_files import png

MOST = 1 << 20
PICTURE = b64encode(png(8, 8)).decode()


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(data: str = PICTURE, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": kind}


def test_texts_are_joined_by_line_ends() -> None:
    assert output_of({"content": [_text("one"), _text("two")]}, MOST) == "one\ntwo"


def test_structured_content_is_shown_if_no_text_says_it() -> None:
    structured = {"structuredContent": {"a": [1, "é"]}}
    assert output_of({"content": [], **structured}, MOST) == '{"a":[1,"é"]}'
    assert output_of({"content": [_text('{"a": 1}')], **structured}, MOST) == '{"a": 1}'
    assert output_of({"content": []}, MOST) == ""


def test_everything_else_is_a_line_of_json() -> None:
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    held = {"type": "resource", "resource": {"uri": "file:///b", "text": "two\nlines"}}
    output = output_of({"content": [_text("see"), audio, link, held]}, MOST)
    assert [json.loads(line) for line in output.splitlines()[1:]] == [audio, link, held]


def test_data_that_is_too_large_is_left_out_and_the_line_stays_whole() -> None:
    line = json.loads(output_of({"content": [_image("A" * 5000)]}, 1000))
    assert line == {"type": "image", "data": "left out: 5,000 characters", "mimeType": "image/png"}


def test_a_model_is_shown_pictures_in_their_places() -> None:
    said = said_of({"content": [_text("before"), _image(kind="text/plain"), _text("after")]}, MOST, Limits())
    assert said == [
        InputText(text="before"),
        InputImage(image_url=f"data:image/png;base64,{PICTURE}"),
        InputText(text="after"),
    ]


@pytest.mark.parametrize("data", ["", "!!!!", b64encode(b"<svg/>").decode(), PICTURE[:40]])
def test_what_is_no_picture_is_not_shown(data: str) -> None:
    assert said_of({"content": [_text("x"), _image(data)]}, MOST, Limits()) == ""


def test_a_picture_beyond_the_limits_is_not_shown() -> None:
    assert said_of({"content": [_image()]}, MOST, Limits(image_pixels=10)) == ""
    assert said_of({"content": [_image()]}, MOST, Limits(image_bytes=10)) == ""


def test_an_output_is_cut_between_characters() -> None:
    assert cut("ééé", 6) == "ééé"
    assert cut("éééé", 5).startswith("éé\n[The output is cut off here: it has 8 bytes, and at most 5")


def test_the_content_of_an_error_is_bounded_too() -> None:
    content = content_of({"content": [_text("no " * 1000), _text("never")]}, 100)
    assert len(content) == 1
    assert len(json.dumps(content)) < 400
