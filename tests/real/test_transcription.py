"""A model that hears, on a real vLLM behind Antiphon. Nobody trained it: only the form of what it says is judged."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.oracles.responses import check_transcript_event
from tests.real.engine_locations import VLLM, client_of
from tools.golden_cases import NOTE
from tools.random_models import HEARS

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

FILE = ("a.wav", NOTE.encode())
BRIEFLY: dict[str, Any] = {"model": HEARS, "file": FILE, "temperature": 0, "extra_body": {"max_completion_tokens": 5}}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with client_of(VLLM, HEARS) as made:
        yield made


@pytest.mark.shows("C.21", "G2.1")
def test_it_is_known_as_one_that_hears(client: OpenAI) -> None:
    (able,) = client.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert {*able["does"]} == {"transcribe", "translate", "tokenize", "detokenize"}
    with pytest.raises(openai.BadRequestError, match="does not generate"):
        client.responses.create(model=HEARS, input="Hello!")


@pytest.mark.shows("G2.1")
def test_it_writes_down_what_it_hears_whole_and_as_text_and_in_english(client: OpenAI) -> None:
    heard = client.audio.transcriptions.create(**BRIEFLY, language="en").text
    assert heard
    assert client.audio.transcriptions.create(**BRIEFLY, language="en", response_format="text") == heard
    full = client.audio.transcriptions.create(**BRIEFLY, language="en", response_format="verbose_json")
    assert full.language == "en"
    with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI does not think much of it any more
        assert client.audio.translations.create(**BRIEFLY).text


def test_a_stream_is_told_in_openais_events(client: OpenAI) -> None:
    whole = client.audio.transcriptions.create(**BRIEFLY, language="en").text
    events = list(client.audio.transcriptions.create(**BRIEFLY, language="en", stream=True))
    for event in events:
        check_transcript_event(event.to_dict())
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == whole
    last = events[-1]
    assert last.type == "transcript.text.done"
    assert last.text == whole


@pytest.mark.parametrize("wrong", [{"language": "xx"}, {"file": ("a.wav", b"no audio")}], ids=["language", "file"])
def test_what_it_cannot_hear_is_a_400_in_its_words(client: OpenAI, wrong: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="The vllm engine refuses this request"):
        client.audio.transcriptions.create(**{**BRIEFLY, **wrong})
