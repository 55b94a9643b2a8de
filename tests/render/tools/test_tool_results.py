"""Pictures that a tool gave are shown to a model that sees, within a bound, and are never told as text."""

import json
from typing import Any

import pytest

from antiphon.core.deltas import Said
from antiphon.core.history.history import make_history
from antiphon.core.prompt import Json
from antiphon.protocol.types.items import InputImage, InputText
from antiphon.render.attachments import Attached
from antiphon.render.messages import render_chat
from antiphon.render.tools.tool_results import MOST_PICTURES
from tests.render.requests import ALL, messages, request, user

DATA = "A" * 4000
PICTURE = json.dumps({"type": "image", "data": DATA, "mimeType": "image/png"}, separators=(",", ":"))


def call(number: int, output: str = "a picture") -> Json:
    return {
        "type": "mcp_call", "id": f"mcp_{number}", "server_label": "s", "name": "look", "arguments": "{}",
        "output": output, "error": None,
    }  # fmt: skip


def told(count: int, honours: frozenset[str] = ALL) -> list[Any]:
    """What a model is told of so many calls, each of which gave a text and a picture."""
    asked = request(input=[user(), *map(call, range(count))])
    said: dict[str, Said] = {
        f"mcp_{number}": [InputText(text="Look:"), InputImage(image_url=f"data:image/png;base64,{number:04}")]
        for number in range(count)
    }
    made = render_chat(make_history((), asked.input, said=said), asked, honours, Attached())
    return [message["content"] for message in made.prompt.messages if message["role"] == "tool"]


def test_a_model_that_sees_is_shown_the_picture() -> None:
    (content,) = told(1)
    assert [part["type"] for part in content] == ["text", "image_url"]


def test_a_model_that_does_not_see_is_told_that_there_was_one() -> None:
    assert told(1, ALL - {"input_image"}) == ["Look:\n[A picture, which this model cannot see.]"]


def test_only_the_last_pictures_are_shown() -> None:
    contents = told(MOST_PICTURES + 2)
    assert [isinstance(content, str) for content in contents] == [True] * 2 + [False] * MOST_PICTURES
    assert "not shown again" in contents[0]


@pytest.mark.parametrize(
    "line",
    [
        PICTURE,
        json.dumps({"type": "audio", "data": DATA}),
        json.dumps({"type": "resource", "resource": {"uri": "x://y", "blob": DATA}}),
    ],
)
def test_data_of_an_earlier_response_is_not_told_as_text(line: str) -> None:
    output = messages(user(), call(1, f"Look:\n{line}\nThat was it."))[-1]["content"]
    assert DATA not in output
    assert "left out: 4,000 characters" in output
    assert output.startswith("Look:\n{")
    assert output.endswith("\nThat was it.")


@pytest.mark.parametrize(
    "text", [DATA, f'{{"data":"{DATA}"', f'{{"type":"table","data":"{DATA}"}}', f'"data":"{DATA}"']
)
def test_what_is_no_picture_stays_as_it_is(text: str) -> None:
    assert messages(user(), call(1, text))[-1]["content"] == text
