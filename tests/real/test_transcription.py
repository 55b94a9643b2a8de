"""A transcription model on a real vLLM behind Antiphon. The model is untrained, so only the form of its output is
checked.
"""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.oracles.responses import check_transcript_event
from tests.real.engine_locations import VLLM, open_client
from tools.golden_cases import NOTE
from tools.random_models import SPEECH_MODEL

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

FILE = ("a.wav", NOTE.encode())
FIELDS: dict[str, Any] = {
    "model": SPEECH_MODEL,
    "file": FILE,
    "temperature": 0,
    "extra_body": {"max_completion_tokens": 5},
}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with open_client(VLLM, SPEECH_MODEL) as openai_client:
        yield openai_client


@pytest.mark.shows("C.21", "G2.1")
def test_capabilities_list_the_audio_tasks(client: OpenAI) -> None:
    (capabilities,) = client.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert {*capabilities["does"]} == {"transcribe", "translate", "tokenize", "detokenize"}
    with pytest.raises(openai.BadRequestError, match="does not generate"):
        client.responses.create(model=SPEECH_MODEL, input="Hello!")


@pytest.mark.shows("G2.1")
def test_audio_is_transcribed_and_translated_in_several_formats(client: OpenAI) -> None:
    text = client.audio.transcriptions.create(**FIELDS, language="en").text
    assert text
    assert client.audio.transcriptions.create(**FIELDS, language="en", response_format="text") == text
    full = client.audio.transcriptions.create(**FIELDS, language="en", response_format="verbose_json")
    assert full.language == "en"
    with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI has deprecated this endpoint
        assert client.audio.translations.create(**FIELDS).text


def test_a_stream_has_the_events_of_openai(client: OpenAI) -> None:
    text = client.audio.transcriptions.create(**FIELDS, language="en").text
    events = list(client.audio.transcriptions.create(**FIELDS, language="en", stream=True))
    for event in events:
        check_transcript_event(event.to_dict())
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == text
    last = events[-1]
    assert last.type == "transcript.text.done"
    assert last.text == text


@pytest.mark.parametrize("wrong", [{"language": "xx"}, {"file": ("a.wav", b"no audio")}], ids=["language", "file"])
def test_invalid_audio_is_a_400_with_the_message_of_the_engine(client: OpenAI, wrong: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="The vllm engine refuses this request"):
        client.audio.transcriptions.create(**{**FIELDS, **wrong})
