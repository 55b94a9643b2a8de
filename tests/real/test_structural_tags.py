"""Structural tags with a real vLLM, whose grammars support them: in chats and responses, in JSON and in streams."""

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
SEQUENCE: Any = {"type": "sequence", "elements": [{"type": "const_string", "value": "It is "}, TAG]}
TAG_FORMAT: Any = {"type": "structural_tag", "format": SEQUENCE}
CHAT_FIELDS: Any = {"temperature": 0, "max_tokens": 80, "messages": [{"role": "user", "content": "Which city?"}]}
RESPONSE_FIELDS: Any = {"temperature": 0, "max_output_tokens": 80, "input": "Which city?"}


def matches_tag(text: str | None) -> bool:
    lead, _, tail = (text or "").partition("<place>")
    content, _, after = tail.partition("</place>")
    return (lead, after) == ("It is ", "") and json.loads(content)["city"] in ("Rome", "Oslo")


def replace_format(payload: Any) -> Any:
    """Replace the format, because the openai package has no structural tags."""
    response = payload.get("response", payload)
    if "text" in response and "object" in response:
        assert response["text"]["format"] == TAG_FORMAT
        response["text"]["format"] = {"type": "text"}
    return payload


@pytest.mark.shows("A3.18")
def test_a_chat_matches_its_tags(embedded_client: OpenAI, model: str) -> None:
    reply = embedded_client.chat.completions.create(model=model, response_format=TAG_FORMAT, **CHAT_FIELDS)
    check_chat(json.loads(reply.to_json()))
    assert matches_tag(reply.choices[0].message.content)
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.shows("A3.18")
def test_a_streamed_chat_matches_its_tags(embedded_client: OpenAI, model: str) -> None:
    chunks = [
        *embedded_client.chat.completions.create(model=model, response_format=TAG_FORMAT, stream=True, **CHAT_FIELDS)
    ]
    for chunk in chunks:
        check_chunk(json.loads(chunk.to_json()))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert matches_tag("".join(texts))
    assert len([text for text in texts if text]) > 5


@pytest.mark.shows("A3.18")
@pytest.mark.parametrize(
    "body", [{"response_format": TAG_FORMAT}, {"text": {"format": TAG_FORMAT}}], ids=["alias", "text"]
)
def test_a_response_matches_its_tags(embedded_client: OpenAI, model: str, body: Any) -> None:
    response = embedded_client.responses.create(model=model, extra_body=body, **RESPONSE_FIELDS)
    check_response(replace_format(response.to_dict(mode="json", warnings=False)))
    assert matches_tag(response.output_text)
    assert response.status == "completed"


@pytest.mark.shows("A3.18")
def test_a_streamed_response_matches_its_tags(embedded_client: OpenAI, model: str) -> None:
    stream = embedded_client.responses.create(model=model, text={"format": TAG_FORMAT}, stream=True, **RESPONSE_FIELDS)
    events = [replace_format(event.to_dict(mode="json", warnings=False)) for event in stream]
    for event in events:
        check_event(event)
    assert matches_tag(accumulate(events).output_text)


@pytest.mark.shows("A3.18")
def test_text_outside_of_triggered_tags_is_unconstrained(embedded_client: OpenAI, model: str) -> None:
    """The older shape: text that begins with a trigger has to match one of the structures."""
    older = {"structures": [{"begin": "<place>", "schema": CITY, "end": "</place>"}], "triggers": ["<place>"]}
    form: Any = {"type": "structural_tag", **older}
    reply = embedded_client.chat.completions.create(
        model=model, response_format=form, **{**CHAT_FIELDS, "max_tokens": 12}
    )
    assert reply.choices[0].message.content


@pytest.mark.shows("A3.18")
def test_unknown_tags_are_rejected_by_the_engine(embedded_client: OpenAI, model: str) -> None:
    form: Any = {"type": "structural_tag", "format": {"type": "nonsense"}}
    with pytest.raises(openai.BadRequestError, match="structural_tag"):
        embedded_client.responses.create(model=model, text={"format": form}, **RESPONSE_FIELDS)
    with pytest.raises(openai.APIError, match="structural_tag"):
        [*embedded_client.responses.create(model=model, text={"format": form}, stream=True, **RESPONSE_FIELDS)]
