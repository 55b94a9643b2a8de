"""Images in tool results are shown to models with vision, up to a limit, and their data are never rendered as text."""

import json
from typing import Any

import pytest

from antiphon.core.deltas import ToolOutputContent
from antiphon.core.history.history import make_history
from antiphon.core.image_generation import MAX_SHOWN_IMAGES
from antiphon.core.prompt import Json
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.render.content import AttachmentLookup
from antiphon.render.messages import render_chat
from tests.render.requests import ALL_FEATURES, make_request, render_messages, user_message

DATA = "A" * 4000
IMAGE = json.dumps({"type": "image", "data": DATA, "mimeType": "image/png"}, separators=(",", ":"))


def make_call(number: int, output: str = "a picture") -> Json:
    return {
        "type": "mcp_call", "id": f"mcp_{number}", "server_label": "s", "name": "look", "arguments": "{}",
        "output": output, "error": None,
    }  # fmt: skip


def render_outputs(count: int, features: frozenset[str] = ALL_FEATURES, data: str = "") -> list[Any]:
    """Render the outputs of `count` calls, each of which returned a text and an image."""
    create_request = make_request(input=[user_message(), *map(make_call, range(count))])
    tool_outputs: dict[str, ToolOutputContent] = {
        f"mcp_{number}": [InputText(text="Look:"), InputImage(image_url=f"data:image/png;base64,{number:04}{data}")]
        for number in range(count)
    }
    made = render_chat(
        make_history((), create_request.input, tool_outputs=tool_outputs), create_request, features, AttachmentLookup()
    )
    return [message["content"] for message in made.prompt.messages if message["role"] == "tool"]


def test_a_model_with_vision_receives_the_image() -> None:
    (content,) = render_outputs(1)
    assert [part["type"] for part in content] == ["text", "image_url"]


def test_a_model_without_vision_receives_a_placeholder() -> None:
    assert render_outputs(1, ALL_FEATURES - {"input_image"}) == ["Look:\n[A picture, which this model cannot see.]"]


def test_only_the_last_images_are_shown() -> None:
    contents = render_outputs(MAX_SHOWN_IMAGES + 2)
    assert [isinstance(content, str) for content in contents] == [True] * 2 + [False] * MAX_SHOWN_IMAGES
    assert "not shown again" in contents[0]


def test_images_of_more_than_sixteen_megabytes_are_not_shown_together() -> None:
    contents = render_outputs(4, data="A" * (5 * 1024 * 1024))
    assert [isinstance(content, str) for content in contents] == [True, False, False, False]
    contents = render_outputs(4, data="A" * (6 * 1024 * 1024))
    assert [isinstance(content, str) for content in contents] == [True, True, False, False]


@pytest.mark.parametrize(
    "line",
    [
        IMAGE,
        json.dumps({"type": "audio", "data": DATA}),
        json.dumps({"type": "resource", "resource": {"uri": "x://y", "blob": DATA}}),
    ],
)
def test_data_of_an_earlier_response_are_omitted_from_the_text(line: str) -> None:
    output = render_messages(user_message(), make_call(1, f"Look:\n{line}\nThat was it."))[-1]["content"]
    assert DATA not in output
    assert "left out: 4,000 characters" in output
    assert output.startswith("Look:\n{")
    assert output.endswith("\nThat was it.")


@pytest.mark.parametrize(
    "text", [DATA, f'{{"data":"{DATA}"', f'{{"type":"table","data":"{DATA}"}}', f'"data":"{DATA}"']
)
def test_text_that_is_not_media_is_unchanged(text: str) -> None:
    assert render_messages(user_message(), make_call(1, text))[-1]["content"] == text
