"""Structural tags over a real vLLM, whose grammars honour them: in chats and responses, in JSON and in streams."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.oracles.chat import check_chat, check_chunk
from tests.oracles.responses import accumulate, check_event, check_response

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(400)]

CITY: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TAG: Any = {
    "type": "tag",
    "begin": "<place>",
    "content": {"type": "json_schema", "json_schema": CITY},
    "end": "</place>",
}
LED: Any = {"type": "sequence", "elements": [{"type": "const_string", "value": "It is "}, TAG]}
TAGGED: Any = {"type": "structural_tag", "format": LED}
ASKED: Any = {"temperature": 0, "max_tokens": 80, "messages": [{"role": "user", "content": "Which city?"}]}
WANTED: Any = {"temperature": 0, "max_output_tokens": 80, "input": "Which city?"}


def fits(text: str | None) -> bool:
    lead, _, rest = (text or "").partition("<place>")
    place, _, after = rest.partition("</place>")
    return (lead, after) == ("It is ", "") and json.loads(place)["city"] in ("Rome", "Oslo")


def untagged(told: Any) -> Any:
    """As the openai package knows it: it has no such format."""
    response = told.get("response", told)
    if "text" in response and "object" in response:
        assert response["text"]["format"] == TAGGED
        response["text"]["format"] = {"type": "text"}
    return told


@pytest.mark.shows("A3.18")
def test_a_chat_keeps_to_its_tags(small: OpenAI, model: str) -> None:
    reply = small.chat.completions.create(model=model, response_format=TAGGED, **ASKED)
    check_chat(json.loads(reply.to_json()))
    assert fits(reply.choices[0].message.content)
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.shows("A3.18")
def test_a_chat_that_streams_keeps_to_its_tags(small: OpenAI, model: str) -> None:
    chunks = [*small.chat.completions.create(model=model, response_format=TAGGED, stream=True, **ASKED)]
    for chunk in chunks:
        check_chunk(json.loads(chunk.to_json()))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert fits("".join(texts))
    assert len([text for text in texts if text]) > 5


@pytest.mark.shows("A3.18")
@pytest.mark.parametrize("asked", [{"response_format": TAGGED}, {"text": {"format": TAGGED}}], ids=["alias", "text"])
def test_a_response_keeps_to_its_tags(small: OpenAI, model: str, asked: Any) -> None:
    response = small.responses.create(model=model, extra_body=asked, **WANTED)
    check_response(untagged(response.to_dict(mode="json", warnings=False)))
    assert fits(response.output_text)
    assert response.status == "completed"


@pytest.mark.shows("A3.18")
def test_a_response_that_streams_keeps_to_its_tags(small: OpenAI, model: str) -> None:
    stream = small.responses.create(model=model, text={"format": TAGGED}, stream=True, **WANTED)
    events = [untagged(event.to_dict(mode="json", warnings=False)) for event in stream]
    for event in events:
        check_event(event)
    assert fits(accumulate(events).output_text)


@pytest.mark.shows("A3.18")
def test_tags_that_wait_for_a_trigger_leave_the_rest_free(small: OpenAI, model: str) -> None:
    """The older shape: what begins with the trigger has to be one of the structures."""
    older = {"structures": [{"begin": "<place>", "schema": CITY, "end": "</place>"}], "triggers": ["<place>"]}
    form: Any = {"type": "structural_tag", **older}
    reply = small.chat.completions.create(model=model, response_format=form, **{**ASKED, "max_tokens": 12})
    assert reply.choices[0].message.content


@pytest.mark.shows("A3.18")
def test_tags_that_the_engine_does_not_know_are_its_to_refuse(small: OpenAI, model: str) -> None:
    form: Any = {"type": "structural_tag", "format": {"type": "nonsense"}}
    with pytest.raises(openai.BadRequestError, match="structural_tag"):
        small.responses.create(model=model, text={"format": form}, **WANTED)
    with pytest.raises(openai.APIError, match="structural_tag"):
        [*small.responses.create(model=model, text={"format": form}, stream=True, **WANTED)]
